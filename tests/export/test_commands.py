"""Commands that are given an export as their checkpoint run the masked model, and say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from attnprobe.checkpoint import open_checkpoint
from attnprobe.data.sources import DataOptions
from attnprobe.doctor import examine
from attnprobe.doctor_text import render
from attnprobe.errors import UsageError
from attnprobe.evaluation import evaluate
from attnprobe.export.words import kept_share
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import run_importance
from attnprobe.masks.mask import PatternMask
from attnprobe.options import GateOptions, ModelOptions
from attnprobe.runs import read_run
from attnprobe.workbench import prepare
from cli.doctor import command
from tests.export.exported import Exported, classifier, export
from tests.helpers.probing import SENTENCES, write_csv

WINDOW = PatternMask(name="window", parameters={"reach": 1})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def window(place: Path) -> Exported:
    """A classifier under the pattern that `evaluate --pattern window` knows too."""
    dense = classifier(place)
    return export(place / "window", dense.checkpoint, WINDOW, dense.rules)


@pytest.fixture(scope="module")
def data(place: Path) -> DataOptions:
    file = write_csv(place / "data.csv", SENTENCES)
    return DataOptions(eval_file=file, text_columns=("sentence",), label_column="label")


def scores(exported: Path | str, data: DataOptions, **gates: Any) -> dict[str, Any]:
    return evaluate(str(exported), data=data, model=ModelOptions(), gates=GateOptions(resamples=31, **gates))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_evaluate(window: Exported, data: DataOptions, backend: str) -> None:
    """The export scores what the dense model scores under the pattern; what is dropped comes on top."""
    dense = str(window.checkpoint.path)
    found, expected = scores(window.folder, data, backend=backend), scores(dense, data, pattern="window")
    for key in ("metric", "loss", "cell_sparsity", "ci_low", "ci_high"):
        assert found[key] == pytest.approx(expected[key], rel=1e-5)
    assert found["divergence"] == pytest.approx(0, abs=1e-6)
    assert found["loss"] != pytest.approx(scores(dense, data)["loss"], rel=1e-3)
    assert found["checkpoint"]["mask"] == "the fixed pattern window (reach 1)"
    both = scores(window.folder, data, backend=backend, drop=("diagonal",))
    expected = scores(dense, data, pattern="window", drop=("diagonal",))
    for key in ("metric", "loss", "cell_sparsity"):
        assert both[key] == pytest.approx(expected[key], rel=1e-5)
    assert both["divergence"] > 1e-4


def test_evaluate_counts_what_gates_close(place: Path, data: DataOptions) -> None:
    exported = classifier(place / "gates")
    bench = prepare(str(exported.folder), data, ModelOptions())
    kept = valid = 0.0
    for batch in bench.batches(bench.encoded.plan(1)):
        at = exported.rules.positions(batch.inputs["input_ids"], batch.inputs["attention_mask"])
        for site in range(2):
            kept += float((exported.mask.keep(at, site) & at.valid.unsqueeze(1)).sum())
            valid += 3 * float(at.valid.sum())
    assert scores(exported.folder, data)["cell_sparsity"] == pytest.approx(1 - kept / valid)
    assert 0.2 < 1 - kept / valid < 0.6


def test_importance(window: Exported, data: DataOptions, tmp_path: Path) -> None:
    """Dense is the export as it is: a class outside of the window changes nothing more."""
    window = export(tmp_path / "model", window.checkpoint, WINDOW, window.rules)
    options = ImportanceOptions(methods=("mass", "ablation"), ablation_levels=("class",), control_draws=1, resamples=31)
    run_importance(
        str(window.folder), data=data, model=ModelOptions(), options=options, output_dir=tmp_path / "run", quiet=True
    )
    table = pd.read_csv(tmp_path / "run" / "importance.csv")
    rows = table[(table["method"] == "ablation") & (table["unit"] == "loss")].set_index("position_class")
    loss = {name: rows[name].to_dict() for name in ("value", "loss_dense")}
    assert loss["loss_dense"]["diagonal"] == pytest.approx(scores(window.folder, data)["loss"], rel=1e-5)
    assert loss["value"]["neighbour"] == pytest.approx(0, abs=1e-6)
    assert abs(loss["value"]["diagonal"]) > 1e-3
    record = read_run(tmp_path / "run").record
    assert record["checkpoint"]["mask"] == "the fixed pattern window (reach 1)"
    assert record["checkpoint"]["digest"] == open_checkpoint(str(window.folder)).digest
    export(window.folder, window.checkpoint, replace(WINDOW, parameters={"reach": 2}), window.rules)
    with pytest.raises(UsageError, match=r"checkpoint\.digest"):
        run_importance(
            str(window.folder),
            data=data,
            model=ModelOptions(),
            options=options,
            output_dir=tmp_path / "run",
            mode="resume",
            quiet=True,
        )


def test_doctor(place: Path) -> None:
    exported = classifier(place / "doctor", "cell")
    findings = examine(str(exported.folder))
    found = findings["export"]
    assert found is not None
    share = kept_share(exported.mask, exported.rules, sites=2, heads=3, length=24)
    assert share == pytest.approx(float(exported.mask.tensors()["gates"].float().mean()))
    assert found == {
        "attnprobe": "0.1.0",
        "mask": "a gate for each pair of positions, for texts of up to 24 tokens",
        "kind": "gates",
        "granularity": "cell",
        "diagonal": "free",
        "kept_share": share,
        "tokens": 24,
        "longest": 24,
        "provenance": {"method": "random", "target": 0.4},
    }
    assert findings["usable_length"] == 24
    assert findings["backends"] == {"eager": None, "sdpa": None}
    assert {note["code"] for note in findings["notes"]} == {"export", "mask_length"}
    text = " ".join(render(findings).split())
    assert (
        f"mask a gate for each pair of positions, for texts of up to 24 tokens; keeps {share:.1%} of the cells" in text
    )
    assert "of 24 tokens; method random, target 0.4" in text
    assert "- a mask is applied by attnprobe alone" in text
    printed = CliRunner().invoke(command, [str(exported.folder), "--json"], catch_exceptions=False)
    assert json.loads(printed.stdout) == findings
    dense = examine(str(exported.checkpoint.path))
    assert dense["export"] is None
    assert "\nmask " not in render(dense)


def test_doctor_of_a_pattern(window: Exported) -> None:
    found = examine(str(window.folder))["export"]
    assert found is not None
    assert (found["kind"], found["granularity"], found["longest"], found["tokens"]) == ("pattern", None, None, 61)
    assert found["kept_share"] == pytest.approx((3 * 61 - 2) / 61**2)


def test_lengths_beyond_a_mask_by_cell_are_refused(place: Path, data: DataOptions) -> None:
    exported = classifier(place / "lengths", "cell")
    with pytest.raises(UsageError, match=r"--max-length 30 is more than .* can read; give at most 24"):
        prepare(str(exported.folder), data, ModelOptions(max_length=30))
    assert prepare(str(exported.folder), data, ModelOptions()).encoded.max_length == 24
