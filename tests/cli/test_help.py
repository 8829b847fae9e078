"""Help: at hand at once, complete, and the same for either spelling of an option."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module

import click
import pytest

from attnprobe import __version__
from cli import COMMANDS, cli
from tests.cli.conftest import Call

HEAVY = ("torch", "transformers", "pandas", "numpy", "scipy", "sklearn", "plotly", "captum", "datasets", "pyarrow")

IMPORTED = """
import json, sys
from attnprobe.cli import run
codes = [run([*command.split(), "--help"]) for command in sys.argv[1:]] + [run([]), run(["--version"])]
print(json.dumps({"codes": codes, "imported": [name for name in %r if name in sys.modules]}))
"""


def _command(name: str) -> click.Command:
    command = import_module(f"cli.{name}").command
    assert isinstance(command, click.Command)
    return command


def _without_blanks(text: str) -> str:
    """Help is wrapped at blanks and hyphens."""
    return "".join(text.split())


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED % (HEAVY,), "", *COMMANDS], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"codes": [0] * (len(COMMANDS) + 3), "imported": []}
    assert done.stderr == ""


@pytest.mark.parametrize("line", ["--help", "-h", ""])
def test_help_lists_the_commands(line: str, call: Call) -> None:
    outcome = call(line)
    assert (outcome.code, outcome.err) == (0, "")
    for name, text in COMMANDS.items():
        assert f"  {name} " in outcome.out
        assert text in outcome.out


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "attnprobe.cli", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: attnprobe ")
    assert done.stderr == ""


def test_version(call: Call) -> None:
    outcome = call("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"attnprobe, version {__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str, call: Call) -> None:
    outcome = call(f"{name} --help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"Usage: attnprobe {name} " in outcome.out
    shown = _without_blanks(outcome.out)
    for option in _command(name).params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.name} has no help"
            for text in (*option.opts, *option.secondary_opts, option.help):
                assert _without_blanks(text) in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_line(name: str) -> None:
    assert _command(name).name == name
    assert _command(name).help
    assert COMMANDS[name].endswith(".")


@pytest.mark.parametrize("flag", ["--max-length", "--max_length", "--max-length=0", "--max_length=0"])
def test_hyphens_and_underscores(flag: str, call: Call) -> None:
    line = f"evaluate nowhere {flag}" if "=" in flag else f"evaluate nowhere {flag} 0"
    outcome = call(line)
    assert outcome.code == 2
    assert outcome.err == "attnprobe: error: --max-length must be at least 1, not 0\n"


def test_values_keep_their_underscores(call: Call) -> None:
    outcome = call("importance nowhere --ablation_levels class_site,no_level")
    assert "unknown 'no_level'" in outcome.err


def test_unknown_options_are_not_guessed(call: Call) -> None:
    """No abbreviations: `--eval` must not become `--eval-file`."""
    assert call("evaluate nowhere --eval d.csv").code == 2


def test_the_group_is_the_table() -> None:
    assert cli.list_commands(click.Context(cli)) == list(COMMANDS)


def test_help_names_every_class_and_method(call: Call) -> None:
    """The options know no torch, so what they say of classes is written apart from the table of classes."""
    from attnprobe.data.positions import BIDIRECTIONAL, CAUSAL, REGIONS, UNIONS
    from attnprobe.importance.methods import METHODS

    words = set(re.findall(r"[a-z_]+", call("evaluate --help").out))
    assert words >= {*BIDIRECTIONAL, *CAUSAL, *UNIONS, *REGIONS}
    shown = call("importance --help").out
    assert set(re.findall(r"[a-z_]+", shown)) >= {*BIDIRECTIONAL, *CAUSAL, *UNIONS}
    for method in METHODS.values():
        assert _without_blanks(method.summary) in _without_blanks(shown)


def test_help_tells_the_exit_codes(call: Call) -> None:
    shown = _without_blanks(call("--help").out)
    assert _without_blanks("0 ok, 1 failure, 2 usage, 3 unsupported model, 4 verification failed") in shown
