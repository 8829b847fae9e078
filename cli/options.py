"""Command-line options made from the library's option classes: one place for each default and each help text."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
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
    flag = str(described.metadata.get("flag", "--" + name.replace("_", "-")))
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


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names separated by commas."""
    del context, parameter
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


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
        raise UsageError(f"--config {path}: no such file; give the path of a YAML file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} can't be read as YAML ({_reason(error)}); mend or leave it out") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} must hold option names and values, not a {type(content).__name__}")
    options = {
        flag.removeprefix("--"): option
        for option in context.command.params
        if isinstance(option, click.Option) and option.name != "config"
        for flag in option.opts
    }
    values: dict[str, str | list[str]] = {}
    for key, value in content.items():
        option = options.get(str(key).replace("_", "-"))
        if option is None:
            raise UsageError(f"--config {path}: unknown option {key!r:.60}; {_nearest(str(key), options, context)}")
        if value is not None:
            values[str(option.name)] = _as_typed(value, option, f"--config {path}: {key}")
    context.default_map = {**(context.default_map or {}), **values}


def _nearest(key: str, options: Collection[str], context: click.Context) -> str:
    """Options that an unknown one may be meant for, or where all of them are listed."""
    alike = get_close_matches(key.replace("_", "-"), options, n=3)
    return f"did you mean {' or '.join(alike)}?" if alike else f"{context.command_path} --help lists all of them"


def _reason(error: Exception) -> str:
    """Why a configuration file can't be read, in short."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None)}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _as_typed(value: Any, option: click.Option, where: str) -> str | list[str]:
    """A value of the file as it would be typed, for click to check: a list for options that take several names."""
    several = option.multiple or option.callback is _names
    items = value if isinstance(value, list) else [value]
    if any(not isinstance(item, str | int | float) for item in items) or (items != [value] and not several):
        raise UsageError(
            f"{where} must be {'a name or a list of names' if several else 'one value'}, not {value!r:.60}"
        )
    typed = [str(item) for item in items]
    return typed if option.multiple else ",".join(typed)


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
