"""The report of `retrofit`, from tables alone: its first line in every case, its notes, and what a page shows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnprobe.errors import RunFolderError
from attnprobe.report import headline, write_report
from attnprobe.report.retrofit import read_retrofit, retrofit_page
from attnprobe.retrofit.tables import COLUMNS, SPARSITY_COLUMNS, TRAINING_COLUMNS

DENSE: dict[str, Any] = {"kind": "dense", "value": 0.966, "entropy_median": 1.335}
CONTINUED: dict[str, Any] = {"kind": "continued", "value": 0.968, "entropy_median": 1.334}
RETROFIT: dict[str, Any] = {
    "kind": "retrofit",
    "variant": "sum",
    "end": "canonical",
    "align": "scores",
    "value": 0.96,
    "behind_continued": 0.008,
    "entropy_median": 0.719,
    "gate_mean": 1.0,
    "likeness_before": 0.02,
    "likeness_after": 0.31,
}
IMMEDIATE: dict[str, Any] = {**RETROFIT, "kind": "immediate", "variant": "mean", "start": 0.424, "value": 0.962}


def row(of: dict[str, Any], *, seed: int = 0, half: float = 0.01, **more: Any) -> dict[str, Any]:
    """A row of retrofit.csv; ``half``: half width of every interval."""
    made = {"seed": seed, "steps": 0 if of["kind"] == "dense" else 250, "start": 0.966, "dense": 0.966, **of, **more}
    made["drop"] = made["dense"] - made["value"]
    made |= {"metric_name": "accuracy", "loss": 0.2, "seconds": 60.0, "examples": 500, "jsd_same": 0.3}
    made |= {"jsd_matched": 0.2, "entropy_spread": 0.9, "grad_norm": math.nan if of["kind"] == "dense" else 2.5}
    made.setdefault("exported", False)
    made["training"] = "-".join(str(made.get(name, "")) for name in ("variant", "end", "kind", "align", "seed"))
    for name, low, high in (
        ("value", "ci_low", "ci_high"),
        ("drop", "drop_ci_low", "drop_ci_high"),
        ("behind_continued", "behind_continued_ci_low", "behind_continued_ci_high"),
    ):
        if name in made:
            made |= {low: made[name] - half, high: made[name] + half}
    return made


def run_of(folder: Path, rows: list[dict[str, Any]], **tables: pd.DataFrame) -> Path:
    """A run folder with these rows and tables."""
    folder.mkdir(exist_ok=True)
    record = {
        "schema_version": 1,
        "command": "retrofit",
        "status": "complete",
        "checkpoint": {"name": "minilm-trec", "family": "bert", "sites": 6, "heads": 12},
        "data": {"source": "test.csv", "examples": 500},
        "objective": {"kind": "task"},
        "arguments": {},
        "warnings": [],
    }
    (folder / "run.json").write_text(json.dumps(record))
    pd.DataFrame(rows).reindex(columns=list(COLUMNS)).to_csv(folder / "retrofit.csv", index=False)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_the_first_line(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [row(DENSE), row(CONTINUED), row(RETROFIT)])
    assert headline(run) == (
        "With residual attention (sum, canonical end) after 250 steps, accuracy is 0.960 [0.950, 0.970]; the "
        "checkpoint has 0.966. It is 0.8 points [-0.2, 1.8] behind as many steps without it (0.968), no measurable "
        "difference. A row of its attention has a median entropy of 0.719 nats, against 1.33 without."
    )


def test_behind_and_ahead_beyond_the_interval(tmp_path: Path) -> None:
    behind = run_of(tmp_path / "behind", [row(DENSE), row(CONTINUED), row({**RETROFIT, "behind_continued": 0.03})])
    assert "It is 3.0 points [2.0, 4.0] behind as many steps without it (0.968)." in headline(behind)
    page = retrofit_page(read_retrofit(behind))
    assert "Worse than continued training, beyond the interval: Retrofit, sum, canonical." in page.notes
    ahead = run_of(tmp_path / "ahead", [row(DENSE), row(CONTINUED), row({**RETROFIT, "behind_continued": -0.03})])
    assert "It is 3.0 points [2.0, 4.0] ahead of as many steps without it (0.968)." in headline(ahead)
    assert not any("Worse" in note for note in retrofit_page(read_retrofit(ahead)).notes)


def test_without_the_control_and_over_seeds(tmp_path: Path) -> None:
    plain = {name: value for name, value in RETROFIT.items() if name != "behind_continued"}
    run = run_of(tmp_path / "run", [row(DENSE), row(plain), row({**plain, "value": 0.97}, seed=1)])
    said = headline(run)
    assert "accuracy is 0.96" in said
    assert "the mean of 2 seeds; the checkpoint has 0.966." in said
    assert "behind" not in said
    assert said.endswith("against 1.33 in the checkpoint.") or said.endswith("against 1.34 in the checkpoint.")


def test_no_retrofit(tmp_path: Path) -> None:
    assert headline(run_of(tmp_path / "run", [row(DENSE), row(CONTINUED)])).startswith("No retrofit was trained")


def test_a_whole_page(tmp_path: Path) -> None:
    exported, unaligned = ({**RETROFIT, **more} for more in ({"exported": True}, {"align": "none"}))
    rows = [row(of) for of in (DENSE, CONTINUED, exported, unaligned, IMMEDIATE)]
    heads = pd.DataFrame(
        [
            {
                **{"training": of["training"], "site": site, "head": head, "special": special},
                **{"entropy_median": 1.0 + head, "entropy_q25": 0.5, "entropy_q75": 2.0},
            }
            for of in rows
            for site in range(3)
            for head in range(2)
            for special in ("included", "excluded")
        ]
    )
    training = pd.DataFrame(
        [
            {"training": of["training"], "step": step, "loss": 1 / step, "grad_norm": 2.0, "gate": step / 250}
            for of in rows[1:]
            for step in (1, 125, 250)
        ]
    ).reindex(columns=list(TRAINING_COLUMNS))
    bears = pd.DataFrame(
        [
            {
                **{name: of.get(name) for name in ("training", "kind", "variant", "end", "align", "seed")},
                **{"target": 0.9, "counted_sparsity": 0.9, "value": 0.94, "ci_low": 0.92, "ci_high": 0.96},
                **{"unmasked": of["value"], "drop": 0.02, "drop_ci_low": 0.01, "drop_ci_high": 0.03},
            }
            for of in rows[1:3]
        ]
    ).reindex(columns=list(SPARSITY_COLUMNS))
    run = run_of(tmp_path / "run", rows, heads=heads, training=training, sparsity=bears)
    page = retrofit_page(read_retrofit(run))
    assert [section.key for section in page.sections][:4] == ["metric", "attention", "sparsity", "learning"]
    assert page.alerts == []
    assert any("0.424 before the first step" in note for note in page.notes)
    assert any("by 0.02 on average, after alignment by 0.31" in note for note in page.notes)
    shown = write_report(run).read_text()
    for told in ("Retrofit, sum, canonical ★ exported", "heads as they are", "Gates at 1 from the first step", "90 %"):
        assert told in shown
    assert "nan" not in shown.lower().split("<script")[0]


def test_a_page_without_its_tables(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [row(DENSE), row(RETROFIT)])
    page = retrofit_page(read_retrofit(run))
    assert page.alerts == ["This run left no heads.csv, training.csv, so the sections made from them are missing."]
    (run / "retrofit.csv").unlink()
    with pytest.raises(RunFolderError, match=r"a run folder holds retrofit\.csv"):
        headline(run)
