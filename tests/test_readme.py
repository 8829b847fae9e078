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

import attnprobe
from attnprobe.architectures import SUPPORTED, UNSUPPORTED
from attnprobe.data.positions import BIDIRECTIONAL, REGIONS, UNIONS, membership
from attnprobe.data.sources import DataOptions
from attnprobe.importance.methods import LEVELS, METHODS
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import FILES
from attnprobe.masks.granularity import GRANULARITIES
from attnprobe.masks.patterns import PATTERNS
from attnprobe.masks.relaxations import RELAXATIONS
from attnprobe.options import GateOptions, ModelOptions
from attnprobe.report.tradeoff.merging import FORMATS
from attnprobe.residual.stream import VARIANTS
from attnprobe.retrofit.looks import LOOKED_AT
from attnprobe.retrofit.options import CONTROLS, DEEPEST_SUM
from attnprobe.retrofit.run import FILES as RETROFIT_FILES
from attnprobe.sparsify.methods import METHODS as MASK_METHODS
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.run import FILES as SPARSIFY_FILES
from attnprobe.sparsify.schedule import AVERAGED, COOLING
from attnprobe.sparsify.sweep import OPEN
from attnprobe.sparsify.tables import COLUMNS
from attnprobe.training.folder import MODEL
from cli import COMMANDS
from cli.options import build

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
MASKS = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
RETROFIT = (ROOT / "docs" / "retrofit.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def _section(title: str, document: str = README) -> str:
    """What is below a heading, up to the next of its level or above."""
    found = re.search(rf"^(##+) {re.escape(title)}\n", document, re.MULTILINE)
    assert found, f"no section {title!r}"
    rest = document[found.end() :]
    end = re.search(rf"^#{{2,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def _rows(title: str, document: str = README) -> dict[str, str]:
    """A section's tables whose first column is code: the rest of the row by the first column."""
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", _section(title, document), re.MULTILINE))


def _code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _command_lines() -> list[str]:
    blocks = (block for document in DOCUMENTS for block in _code(document.read_text(encoding="utf-8"), "console"))
    typed = r"^\$ (?:attnprobe|torchrun .*-m attnprobe\.cli) (.+)$"
    return sorted({line for block in blocks for line in re.findall(typed, block.replace("\\\n", " "), re.MULTILINE)})


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
    assert set(_rows("Of `importance`")) == {*FILES, "run.json"}
    assert set(_rows("Of `sparsify`")) == {*SPARSIFY_FILES, "run.json", f"{MODEL}/"}
    assert set(_rows("Of `retrofit`")) == {*RETROFIT_FILES, "run.json"}


def test_retrofit() -> None:
    assert list(_rows("The score stream", RETROFIT)) == list(VARIANTS)
    assert list(_rows("The controls", RETROFIT)) == list(CONTROLS)
    assert f"default up to {DEEPEST_SUM} sites" in RETROFIT
    assert f"at most {LOOKED_AT} rows" in RETROFIT


def test_masks() -> None:
    assert _rows("Ways to a mask") == {name: method.summary for name, method in MASK_METHODS.items()}
    assert _rows("Granularities") == {name: each.summary for name, each in GRANULARITIES.items()}
    assert set(_rows("Sparsity")) <= set(COLUMNS)
    assert list(_rows("Granularities", MASKS)) == list(GRANULARITIES)
    assert list(_rows("How a gate is drawn", MASKS)) == list(RELAXATIONS)
    assert f"`{SparsifyOptions().relaxation}` is the default" in MASKS
    assert f"reaching over {AVERAGED:g} of these steps" in MASKS
    assert f"at a logit of {OPEN:g}" in MASKS
    assert COOLING == 0.1  # "the last tenth"
    by_gates = [name for name, method in MASK_METHODS.items() if method.kind in ("random", "scored")]
    assert list(_rows("Controls", MASKS)) == [*by_gates, *PATTERNS]


def test_every_package_is_in_the_layout() -> None:
    packages = {path.parent for path in (ROOT / "attnprobe").glob("*/**/*.py")}
    names = {f"{package.relative_to(ROOT).as_posix()}/" for package in packages}
    told = {name for name in _rows("Layout", CONTRIBUTING) if name.startswith("attnprobe/")}
    assert told == names | {"attnprobe/*.py"}


def test_every_benchmark_is_named() -> None:
    named = set(re.findall(r"`benchmarks\.(\w+)", _section("Benchmarks", CONTRIBUTING)))
    assert named == {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "common"}


def test_options_are_named_as_they_are() -> None:
    commands = [import_module(f"cli.{name}").command for name in COMMANDS]
    options = [option for command in commands for option in command.params]
    known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
    for document in DOCUMENTS:
        for flag in re.findall(r"`(--[a-z][a-z0-9-]*)", document.read_text(encoding="utf-8")):
            assert flag in known, f"{document.name}: {flag}"


def test_functions_are_named_as_they_are() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"\battnprobe\.([a-z]+)\(", document.read_text(encoding="utf-8")):
            assert name in attnprobe.__all__, f"{document.name}: attnprobe.{name}"


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
    for options in (DataOptions, ModelOptions, GateOptions, ImportanceOptions, SparsifyOptions):
        if {field.name for field in fields(options)} <= set(values):
            build(options, values)
    assert set((values.get("formats") or "csv").split(",")) <= set(FORMATS)
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
