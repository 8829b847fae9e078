"""What gets installed, and what it says of itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attnprobe import __version__

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def _project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return content["project"]  # type: ignore[no-any-return]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from a copy of the tree, so that the build leaves nothing here."""
    pytest.importorskip("setuptools", "77", reason="setuptools >= 77 is not installed (extra: test)")
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("attnprobe", "cli", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD, "out"], cwd=tree, check=True, capture_output=True)
    (built,) = (tree / "out").iterdir()
    assert built.name == f"attnprobe-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: set[str]) -> None:
    info = f"attnprobe-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in wheel} == {"attnprobe", info}
    assert wheel >= {"attnprobe/py.typed", f"{info}/entry_points.txt", f"{info}/licenses/LICENSE"}


def test_the_wheel_holds_every_source_file(wheel: set[str]) -> None:
    """A folder that is missing from `packages` in pyproject.toml would be found here."""
    library = {path.relative_to(ROOT) for path in (ROOT / "attnprobe").rglob("*.py")}
    library |= {path.relative_to(ROOT) for path in (ROOT / "attnprobe" / "report" / "templates").iterdir()}
    commands = {Path("attnprobe") / path.relative_to(ROOT) for path in (ROOT / "cli").glob("*.py")}
    assert {path.as_posix() for path in library | commands} <= wheel


def test_one_version() -> None:
    assert _project()["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\S+)\]", changelog, re.MULTILINE)[0] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_dependency_is_pinned_within_its_range() -> None:
    project, pins = _project(), _pins()
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *extras["demo"], *extras["test"]):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


@pytest.mark.parametrize(("name", "version"), [("torch", "2.11.0"), ("transformers", "5.17.0"), ("pandas", "2.2.0")])
def test_floors(name: str, version: str) -> None:
    (found,) = (r for r in map(Requirement, _project()["dependencies"]) if r.name == name)
    assert found.specifier.contains(version)
