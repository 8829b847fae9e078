"""The documents say what the code does: tables, commands, links, the worked example."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import pytest

from attnprobe.architectures import SUPPORTED, UNSUPPORTED
from attnprobe.data.positions import BIDIRECTIONAL, REGIONS, UNIONS, membership
from attnprobe.data.sources import DataOptions
from attnprobe.importance.methods import LEVELS, METHODS
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import FILES
from attnprobe.masks.patterns import PATTERNS
from attnprobe.options import GateOptions, ModelOptions
from cli import COMMANDS
from cli.options import build

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {title!r}"
    return found[1]


def _rows(title: str) -> dict[str, str]:
    """A section's table of two columns whose first is code."""
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", _section(title), re.MULTILINE))


def _code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _command_lines() -> list[str]:
    blocks = (block for document in DOCUMENTS for block in _code(document.read_text(encoding="utf-8"), "console"))
    return sorted({line for block in blocks for line in re.findall(r"^\$ attnprobe (.+)$", block, re.MULTILINE)})


def test_methods() -> None:
    assert _rows("Methods") == {name: method.summary for name, method in METHODS.items()}


def test_position_classes() -> None:
    assert _rows("Position classes") == {name: each.meaning for name, each in BIDIRECTIONAL.items()}
    document = (ROOT / "docs" / "position_classes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([a-z_]+)`", document)) >= {*BIDIRECTIONAL, *UNIONS, *REGIONS}


def test_families() -> None:
    families, _ = _section("Supported models").split("\n\n", 2)[1:]
    assert re.findall(r"`([^`]+)`", families) == sorted(SUPPORTED)
    softmax = re.search(r"own softmax\.\*\*.*?code 3", _section("What does not work, and why"), re.DOTALL)
    assert softmax
    assert set(re.findall(r"`([^`]+)`", softmax[0])) <= set(UNSUPPORTED)


def test_files_of_a_run() -> None:
    assert set(_rows("What a run leaves")) == {*FILES, "run.json"}


def test_levels_of_the_example() -> None:
    assert ", ".join(f"`{level}`" for level in LEVELS) in " ".join(EXAMPLE.split())


@pytest.mark.parametrize("line", _command_lines())
def test_command_lines_parse(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "norm" in line:  # the method of the worked example
        monkeypatch.setitem(METHODS, "norm", METHODS["mass"])
        line = line.replace("mass,norm", "mass")
    name, *arguments = shlex.split(line)
    assert name in COMMANDS
    command: click.Command = import_module(f"cli.{name}").command
    values = command.make_context(name, arguments).params
    for options in (DataOptions, ModelOptions, GateOptions, ImportanceOptions):
        if {field.name for field in fields(options)} <= set(values):
            build(options, values)
    membership([drop for drop in values.get("drop", ()) if drop not in REGIONS], causal=False)
    assert values.get("pattern") in (None, *PATTERNS)


def test_commands_are_named_as_they_are() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`attnprobe ([a-z]\w*)", document.read_text(encoding="utf-8")):
            assert name in COMMANDS, f"{document.name}: attnprobe {name}"


def test_every_command_is_shown() -> None:
    assert set(re.findall(r"attnprobe ([a-z]+)", README)) >= set(COMMANDS)


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_no_figure_is_missing() -> None:
    assert not [document.name for document in DOCUMENTS if "FIGURE" in document.read_text(encoding="utf-8")]


def test_the_example_of_a_method_works(monkeypatch: pytest.MonkeyPatch) -> None:
    source, entry, test = _code(EXAMPLE, "python")
    module = ModuleType("attnprobe.importance.norm")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(import_module("attnprobe.importance"), "norm", module, raising=False)
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    namespace: dict[str, object] = {"__name__": "test_norm"}
    exec(compile(test, "test_norm", "exec"), namespace)
    check = namespace["test_shares_by_class_site_and_head"]
    assert callable(check)
    check()
    table = eval(f"{{{entry}}}", vars(import_module("attnprobe.importance.methods")))
    assert list(table) == ["norm"]
