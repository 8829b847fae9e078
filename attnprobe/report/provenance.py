"""What was run: checkpoint, data, arguments, versions, command line, files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from attnprobe.report.labels import FILES
from attnprobe.report.page import Block, Facts, Section, Table
from attnprobe.report.tables import Record


def provenance_section(run: Record) -> Section:
    """Everything needed to make the run again."""
    run_facts = {key: run.info.get(key) for key in ("status", "seed", "started", "finished", "seconds")}
    parts: list[tuple[str, Mapping[str, object]]] = [
        ("Checkpoint", run.part("checkpoint")),
        ("Data", run.part("data")),
        ("Objective", run.part("objective")),
        ("Run", run_facts),
        ("Arguments", run.part("arguments")),
        ("Versions", run.part("versions")),
        ("Figures of the run", run.part("summary")),
    ]
    blocks: list[Block] = [Facts(title="Command line", items=[("", command_line(run))], code=True)]
    blocks += [Facts(title=title, items=_items(part)) for title, part in parts if _items(part)]
    blocks.append(files_table(run))
    return Section(
        key="run",
        title="What was run",
        text=["This page was made from the tables of the run folder alone; they hold every figure shown here."],
        blocks=blocks,
    )


def command_line(run: Record) -> str:
    """The command line as recorded, or else as the recorded arguments amount to."""
    recorded = run.info.get("command_line")
    if isinstance(recorded, str):
        return recorded
    if isinstance(recorded, list):
        return shlex.join(map(str, recorded))
    words = ["attnprobe", str(run.info.get("command", "importance"))]
    arguments = dict(run.part("arguments"))
    words += [str(arguments.pop(name)) for name in ("checkpoint", "ckpt") if arguments.get(name)][:1]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [word for item in value for word in (flag, str(item))]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return shlex.join(words)


def files_table(run: Record) -> Table:
    """The files of the run folder, without hidden ones and the report itself; folders only where they are known."""
    shown = [path for path in run.path.iterdir() if not path.name.startswith(".") and path.name != "report.html"]
    rows = [
        [path.name, FILES.get(path.name, ""), _size(_bytes(path))]
        for path in sorted(shown)
        if path.is_file() or path.name in FILES
    ]
    return Table(
        caption="Files of the run folder.", columns=["File", "Holds", "Size"], rows=rows, text_columns=frozenset({1})
    )


def _items(part: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _value(value)) for name, value in part.items() if value not in (None, "", [], {})]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(_bytes(inner) for inner in path.iterdir())


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{max(size / 1e3, 0.1):,.1f} kB"
