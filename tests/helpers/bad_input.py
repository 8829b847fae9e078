"""Rows of bad input: a command line in a spoilt sandbox, and what must be left of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.cli.conftest import Call

Spoil = Callable[[Path], object]


class Bad(NamedTuple):
    """A command line in a spoilt sandbox, its exit code, and what its one line must say."""

    line: str
    code: int
    says: tuple[str, ...]
    spoil: Spoil = lambda _: None


def write(name: str, content: str | bytes) -> Spoil:
    """Write a file of the sandbox."""
    data = content.encode() if isinstance(content, str) else content
    return lambda sandbox: (sandbox / name).write_bytes(data)


def remove(name: str) -> Spoil:
    """Remove a file of the sandbox."""
    return lambda sandbox: (sandbox / name).unlink()


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, every folder with None."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def require_refused(bad: Bad, sandbox: Path, call: Call) -> None:
    """Spoil the sandbox and run the line: one line on stderr with all that it must say, and no file touched."""
    bad.spoil(sandbox)
    before = contents(sandbox)
    outcome = call(bad.line)
    assert outcome.err.startswith("attnprobe: error: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    assert "Traceback" not in outcome.err
    for fragment in bad.says:
        assert fragment in outcome.err
    assert (outcome.code, outcome.out) == (bad.code, "")
    assert contents(sandbox) == before
    assert len(outcome.err) < 600
