"""Merged runs as text: one tidy CSV, a readable Markdown table, JSON records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pandas as pd

from attnprobe.report.numbers import estimate, typeset
from attnprobe.report.tables import TEXT
from attnprobe.report.tradeoff.collecting import Merged
from attnprobe.report.tradeoff.means import INTERVALS, Mean
from attnprobe.report.tradeoff.rows import by_target
from attnprobe.report.tradeoff.sentences import finding, in_points, percent
from attnprobe.report.tradeoff.study import Study

WHOLE = frozenset(("steps", "seed", "draw", "examples", "block_size"))
"""Columns of whole numbers."""


def merged_table(merged: Merged) -> pd.DataFrame:
    """All rows of all runs as text, as they stand in their tables, behind a column `run`."""
    tables = [named.rows for named in merged.runs if len(named.rows.columns)]
    return pd.concat(tables, ignore_index=True).fillna("")


def as_csv(merged: Merged) -> str:
    """The merged table, figures as they stood."""
    return merged_table(merged).to_csv(index=False, lineterminator="\n")


def as_json(merged: Merged) -> str:
    """The rows of the merged table as records: numbers, booleans and text; null for what there is none of."""
    rows = [{str(name): _value(str(name), str(cell)) for name, cell in row.items()} for row in _records(merged)]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def as_markdown(merged: Merged) -> str:
    """A table of means over seeds for each checkpoint, data set and metric, below its finding."""
    parts = ["# Attention sparsity and what it costs", INTERVALS]
    for study in merged.studies:
        parts += [f"## {_cell(study.name)}", _cell(typeset(finding(study))), _markdown_table(study)]
    return "\n\n".join(parts) + "\n"


def _records(merged: Merged) -> list[Mapping[object, object]]:
    return list(merged_table(merged).to_dict("records"))


def _value(name: str, cell: str) -> str | bool | int | float | None:
    if name == "exported":
        return cell.lower() in ("true", "1", "1.0")
    if cell == "":
        return None
    if name in TEXT or name == "run":
        return cell
    try:
        number = float(cell)
    except ValueError:
        return cell
    if not math.isfinite(number):
        return None
    return int(number) if name in WHOLE and number == int(number) else number


def _markdown_table(study: Study) -> str:
    columns = ["Mask", "Target", "Cell sparsity", "Nominal", "Block"]
    columns += [f"{study.metric.capitalize()} [95 %]", "Drop, points [95 %]", "Seeds or draws"]
    rows = [[_cell(typeset(cell)) for cell in _row(mean)] for mean in by_target(study)]
    lines = [[_cell(name) for name in columns], [":--", *("--:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(mean: Mean) -> list[str]:
    dense = mean.line.kind == "dense"
    return [
        mean.line.name + (" (exported)" if mean.exported else ""),
        percent(mean.target) if math.isfinite(mean.target) else "",
        *("" if dense else percent(mean.of(f"{name}_sparsity")) for name in ("cell", "nominal", "block")),
        estimate(mean.value, mean.low, mean.high),
        "" if dense and not mean.line.tuned else in_points(mean.drop, mean.drop_low, mean.drop_high),
        str(len(mean.points)),
    ]


def _cell(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
