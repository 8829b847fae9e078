"""What commands say: results on stdout, logs on stderr."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from attnprobe.distributed import is_main


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"attnprobe: {record.levelname.lower()}: {' '.join(record.getMessage().split())}"


def log_to_stderr() -> None:
    """Send the library's log to stderr, a line each; of processes that train together, the main one's."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("attnprobe")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO if is_main() else logging.ERROR)
    logger.propagate = False


def silence() -> None:
    """Keep the log to errors."""
    logging.getLogger("attnprobe").setLevel(logging.ERROR)


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout; NaN, which JSON has no word for, as null."""
    click.echo(json.dumps(_without_nan(value), indent=2, ensure_ascii=False, default=str))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and value != value else value


def print_run(folder: Path, *, as_json: bool) -> None:
    """Print what a run that may export a model has found, and where everything is."""
    from attnprobe.report import headline

    finding, report, exported = headline(folder), folder / "report.html", folder / "model"
    if as_json:
        shown = str(exported) if exported.exists() else None
        print_json({"run": str(folder), "report": str(report), "model": shown, "finding": finding})
    else:
        click.echo(f"{finding}\nreport: {report}" + (f"\nmodel: {exported}" if exported.exists() else ""))


def typed() -> str | None:
    """The command line of this process; None when the command was not started from a shell."""
    if Path(sys.argv[0]).stem != "attnprobe":
        return None
    return shlex.join(["attnprobe", *sys.argv[1:]])


def default_folder(command: str, checkpoint: str) -> Path:
    """`runs/COMMAND-CKPT`, named after the last part of the checkpoint's path or id."""
    name = re.sub(r"[^\w.-]+", "-", Path(checkpoint).name or "checkpoint")
    return Path("runs") / f"{command}-{name}"
