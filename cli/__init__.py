"""The command line: each command parses, calls one library function, prints. Torch is imported by commands alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from attnprobe import __version__
from attnprobe.distributed import main_speaks_first, quiet_torch
from attnprobe.errors import AttnProbeError, UsageError

from .output import log_to_stderr

COMMANDS = {
    "doctor": "What a checkpoint is, and what can be done with it.",
    "importance": "Which attention positions, heads and sites a checkpoint needs.",
    "sparsify": "Learn attention masks, with controls; export the masked model.",
    "retrofit": "Residual attention for a finished checkpoint, with controls.",
    "finetune": "Dropouts of attention while fine-tuning, compared over seeds.",
    "evaluate": "Metric and loss of a checkpoint, gated or not, as JSON.",
    "report": "Make a run's report again, or merge several runs into one.",
}
"""The commands with their one-line help, so that listing them imports none of them."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            raise UsageError(f"there is no command {args[0]!r}; commands are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 110,
    },
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 unsupported model, 4 verification failed.",
)
@click.version_option(__version__, prog_name="attnprobe")
def cli() -> None:
    """Which attention does a Transformer checkpoint need, what can it do without, what does it cost?"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failure, 2 usage, 3 unsupported model, 4 verification failed."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. An error is one line on stderr."""
    log_to_stderr()
    quiet_torch()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with main_speaks_first():
            result = cli.main(args=list(arguments) or ["--help"], prog_name="attnprobe", standalone_mode=False)
    except AttnProbeError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        hint = f" See {error.ctx.command_path} --help." if error.ctx else ""
        return _fail(error.format_message() + hint, error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    click.echo(f"attnprobe: error: {' '.join(message.split())}", err=True)
    return code
