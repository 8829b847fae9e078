"""Command-line options made from the library's option classes: one place for each default and each help text."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from attnprobe.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
Options = TypeVar("Options")

_REPEATED = {"text_columns": "--text-column", "drop": "--drop"}
"""Fields given by a flag that is repeated; other lists are given once, with commas."""

_SWITCHES = {"include_special": "--include-special/--exclude-special"}


def options_of(*kinds: type) -> Callable[[Function], Function]:
    """Add the options of some option classes to a command, in the order of their fields."""

    def decorate(function: Function) -> Function:
        for kind in reversed(kinds):
            hints = typing.get_type_hints(kind)
            for described in reversed(fields(kind)):
                function = _option(described, hints[described.name])(function)
        return function

    return decorate


def build(kind: type[Options], values: dict[str, Any]) -> Options:
    """An option class from the values click gathered; what it was not given keeps its default."""
    taken = {}
    for described in fields(kind):  # type: ignore[arg-type]
        value = values.get(described.name)
        if value is not None:
            taken[described.name] = value
    return kind(**taken)


def _option(described: Field[Any], hint: Any) -> Callable[[Function], Function]:
    name = described.name
    help_text = str(described.metadata["help"])
    choices = described.metadata.get("choices")
    default = described.default if described.default is not MISSING else None
    if name in _REPEATED:
        return click.option(_REPEATED[name], name, multiple=True, metavar="NAME", help=help_text)
    if name in _SWITCHES:
        return click.option(_SWITCHES[name], name, default=default, show_default=True, help=help_text)
    flag = "--" + name.replace("_", "-")
    if hint is bool:
        return click.option(flag, name, is_flag=True, help=help_text)
    if hint == tuple[str, ...]:
        shown = ",".join(default) if default else None
        return click.option(
            flag,
            name,
            type=click.UNPROCESSED,
            callback=_names,
            metavar="NAME,...",
            help=_with_default(help_text, shown),
        )
    kind: Any = click.Choice(choices) if choices else _scalar(hint)
    shown = None if default is None else str(default)
    return click.option(flag, name, type=kind, default=None, help=_with_default(help_text, shown))


def _with_default(text: str, default: str | None) -> str:
    return text if default is None else f"{text} [default: {default}]"


def _scalar(hint: Any) -> Any:
    for member in typing.get_args(hint) or (hint,):
        if member is Path:
            return click.Path(path_type=Path)
        if member in (int, float, str):
            return member
    raise AssertionError(f"no option type for {hint}")


def _names(context: click.Context, parameter: click.Parameter, value: Any) -> tuple[str, ...] | None:
    """Names separated by commas; a list from a configuration file as it is."""
    del context, parameter
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    return tuple(str(name).strip() for name in names if str(name).strip())


def config_option(function: Function) -> Function:
    """Add `--config FILE.yaml`, whose keys are option names; the command line has the last word."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="YAML file of option names and values; options given on the command line win.",
    )(function)


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    del parameter
    if path is None:
        return
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"--config {path}: no such file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} can't be read as YAML: {' '.join(str(error).split())}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} must hold option names and values, not a {type(content).__name__}")
    flags = {
        flag.removeprefix("--"): option.name
        for option in context.command.params
        if isinstance(option, click.Option)
        for flag in option.opts
    }
    values = {}
    for key, value in content.items():
        name = flags.get(str(key).replace("_", "-"))
        if name is None or name == "config":
            known = ", ".join(sorted(set(flags) - {"config", "help"}))
            raise UsageError(f"--config {path}: unknown option {key!r}; options of this command: {known}")
        values[name] = value
    context.default_map = {**(context.default_map or {}), **values}


def run_folder_options(function: Function) -> Function:
    """Add `--output-dir`, `--overwrite`, `--resume` and `--quiet`."""
    for option in (
        click.option("--quiet", is_flag=True, help="No progress bar and no log, errors apart."),
        click.option("--resume", is_flag=True, help="Go on with the run that the folder holds."),
        click.option("--overwrite", is_flag=True, help="Replace the run that the folder holds."),
        click.option(
            "--output-dir",
            type=click.Path(path_type=Path),
            default=None,
            help="Run folder to make. [default: runs/COMMAND-CKPT]",
        ),
    ):
        function = option(function)
    return function


def run_mode(*, overwrite: bool, resume: bool) -> Literal["new", "overwrite", "resume"]:
    """What to do with a folder that holds a run.

    Raises:
        UsageError: both are asked for.
    """
    if overwrite and resume:
        raise UsageError("--overwrite and --resume exclude each other: start anew, or go on")
    return "overwrite" if overwrite else "resume" if resume else "new"
