"""One whole run of a tiny classifier: its tables, the schedule, the model that it leaves, and its page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attnprobe.finetune.learning import Tuned, train
from attnprobe.finetune.points import Training
from attnprobe.runs import read_run
from cli import run as command_line
from tests.finetune.conftest import finetune, rows
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.sweeps import lay_ground

METHODS = ("none", "weights", "attendout")
COSTS = {"none": 1.0, "weights": 1.5, "attendout": 3.0}
"""Made-up seconds a step, so that equal time is the same everywhere."""

OPTIONS: dict[str, Any] = {"seeds": ("0", "1"), "match": ("steps", "time"), "held_out": 0.4, "whole": True}
HELD_OUT, REWARD, OWN, EVALUATED = 27, 4, 36, 23
"""Rows, of 67 to learn from and 23 to measure on."""

STEPS = {"steps": {"none": 6, "weights": 6, "attendout": 6}, "time": {"none": 18, "weights": 12, "attendout": 6}}


def _timed(ground: Any, training: Training, steps: int, *rest: Any, **more: Any) -> Tuned:
    return replace(train(ground, training, steps, *rest, **more), seconds=steps * COSTS.get(training.dropout, 1.0))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_ground(tmp_path_factory.mktemp("finetune") / "ground")


@pytest.fixture(scope="module")
def whole(ground: Path) -> Iterator[Path]:
    with mock.patch("attnprobe.finetune.run.train", _timed):
        yield finetune(ground, "whole", dropout=METHODS, **OPTIONS)


def table(run: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(run / f"{name}.csv", keep_default_na=name != "finetune", na_values=[""])


def test_a_row_for_every_training(whole: Path) -> None:
    found = rows(whole)
    expected = [
        f"{method}{'-time' if match == 'time' else ''}-s{seed}"
        for match in ("steps", "time")
        for method in METHODS
        for seed in (0, 1)
    ]
    assert list(found.index) == expected
    for (match, method), group in found.groupby(["match", "dropout"]):
        assert list(group["seed"]) == [0, 1]
        assert set(group["steps"]) == {STEPS[match][method]}
        assert group["loss"].nunique() == 2
    assert set(found["trained_on"][found["dropout"] == "attendout"]) == {OWN}
    assert set(found["trained_on"][found["dropout"] != "attendout"]) == {OWN + REWARD}
    assert set(found["examples"]) == {EVALUATED}
    assert set(found["metric_name"]) == {"accuracy"}
    assert found["value"].between(found["ci_low"], found["ci_high"]).all()
    assert (found["ci_low"] < found["ci_high"]).all()
    costs = pd.read_csv(whole / "finetune.csv")
    assert (costs["seconds_per_step"] == costs["dropout"].map(COSTS)).all()
    assert (costs["peak_memory"].dropna() > 0).all()


def test_equal_time_begins_as_equal_steps(whole: Path) -> None:
    """The dearest method's trainings are the same twice; the others learn for longer, and end elsewhere."""
    found = rows(whole).drop(columns=["match", "exported"])
    for seed in (0, 1):
        pd.testing.assert_series_equal(
            found.loc[f"attendout-s{seed}"], found.loc[f"attendout-time-s{seed}"], check_names=False
        )
        assert found.loc[f"none-s{seed}", "loss"] != found.loc[f"none-time-s{seed}", "loss"]


def test_what_was_dropped(whole: Path) -> None:
    found, rates = rows(whole), pd.read_csv(whole / "rates.csv")
    assert set(rates["site"]) == {0, 1}
    means = rates.groupby(["training", "site"])["rate"].mean().unstack()
    np.testing.assert_allclose(means.loc[found.index, 0], found["drop_rate_1"], rtol=1e-5)
    np.testing.assert_allclose(means.loc[found.index, 1], found["drop_rate_2"], rtol=1e-5)
    np.testing.assert_allclose(found[["drop_rate_1", "drop_rate_2"]].mean(axis=1), found["drop_rate"], rtol=1e-5)
    of_method = found.groupby("dropout")["drop_rate"]
    assert set(of_method.get_group("none")) == {0.0}
    assert set(of_method.get_group("weights")) == {0.1}
    learnt = of_method.get_group("attendout")
    assert learnt.between(0.05, 0.2).all()
    assert set(rates["progress"][rates["dropout"] == "attendout"]) == {0.5, 1.0}
    assert rates["progress"][rates["training"] == "none-s0"].nunique() == 6


def test_what_was_logged(whole: Path) -> None:
    log = pd.read_csv(whole / "training.csv")
    assert list(log.columns) == ["training", "step", "loss", "grad_norm", "learning_rate", "reward", "winner"]
    for training, row in rows(whole).iterrows():
        assert list(log["step"][log["training"] == training]) == list(range(1, row["steps"] + 1))
    assert (log["grad_norm"] > 0).all()
    contests = log[log["training"].str.startswith("attendout")]
    assert contests["reward"].isna().equals(contests["step"] < 3)
    assert contests["reward"].dropna().between(-1, 1).all()
    assert set(contests["winner"].dropna()) <= {0.0, 1.0}
    assert log[~log["training"].isin(contests["training"])]["reward"].isna().all()


def test_methods_are_compared_within_what_is_alike(whole: Path) -> None:
    found, compared = rows(whole), pd.read_csv(whole / "comparisons.csv")
    pairs = [
        *(("weights", "none"), ("attendout", "none")),
        *(("none", "weights"), ("attendout", "weights")),
    ]
    keys = zip(compared["match"], compared["dropout"], compared["against"], strict=True)
    assert list(keys) == [(match, *pair) for match in ("steps", "time") for pair in pairs]
    values = found.groupby(["match", "dropout"])["value"]
    for row in compared.itertuples():
        ours, theirs = (np.asarray(values.get_group((row.match, name))) for name in (row.dropout, row.against))
        assert row.difference == pytest.approx((ours - theirs).mean(), abs=1e-6)
        assert row.wins == (ours > theirs).sum()
    assert (compared["p_corrected"] >= compared["p_value"]).all()
    assert set(compared["seeds"]) == {2}


def test_the_best_on_the_rows_held_out_is_exported(whole: Path) -> None:
    found = rows(whole)
    (exported,) = found.index[found["exported"]]
    assert found["heldout_value"].nunique() > 1
    assert found.loc[exported, "heldout_value"] == found["heldout_value"].max()
    assert read_run(whole).record["summary"]["exported"] == exported
    assert json.loads((whole / "model/attnprobe-finetune.json").read_text())["training"] == exported
    assert exported in (whole / "model/README.md").read_text()


def test_the_net_that_is_better_on_the_rows_held_out_is_measured(whole: Path) -> None:
    found = rows(whole)
    assert set(found["net"][found["dropout"] == "attendout"]) <= {"A", "D"}
    assert found["net"][found["dropout"] != "attendout"].isna().all()


def _logits(model: Path, texts: list[str]) -> Tensor:
    """What anyone gets who knows nothing of attnprobe, row by row: (rows, classes)."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForSequenceClassification.from_pretrained(model).eval()
    with torch.no_grad():
        return torch.cat([loaded(**tokenizer(text, return_tensors="pt")).logits for text in texts])


def test_transformers_alone_loads_the_model_that_was_measured(ground: Path, whole: Path) -> None:
    data = pd.read_csv(ground / "eval.csv")
    found = rows(whole)
    exported = found[found["exported"]].iloc[0]
    labels = torch.tensor(data["label"].to_numpy())
    logits = _logits(whole / "model", list(data["sentence"]))
    assert float((logits.argmax(-1) == labels).float().mean()) == pytest.approx(exported["value"], abs=1e-6)
    assert float(functional.cross_entropy(logits, labels)) == pytest.approx(exported["loss"], rel=1e-5)
    before = _logits(ground / "model", list(data["sentence"]))
    assert float(functional.cross_entropy(before, labels)) != pytest.approx(exported["loss"], rel=1e-3)
    assert not (whole / "model/attnprobe.json").exists()
    assert tiny.read_tensors(whole / "model").keys() == tiny.read_tensors(ground / "model").keys()


def test_the_folder_holds_what_the_run_says(whole: Path) -> None:
    record = read_run(whole).record
    assert record["status"] == "complete"
    assert {path.name for path in whole.iterdir()} == {name.removesuffix("/") for name in record["files"]} | {
        "run.json"
    }
    training = record["training"]
    assert (training["examples"], training["reward"], training["held_out"]) == (OWN + REWARD, REWARD, HELD_OUT)


def test_the_page_is_made_again_from_the_tables(whole: Path, tmp_path: Path) -> None:
    page = (whole / "report.html").read_text()
    assert "Dropout of attention while fine-tuning model" in page
    assert "reinforce, window" in page
    copied = Path(shutil.copytree(whole, tmp_path / "copied"))
    (copied / "report.html").unlink()
    shutil.rmtree(copied / "model")
    assert command_line(["report", str(copied), "--quiet"]) == 0
    assert "With equal steps, “" in (copied / "report.html").read_text()


def test_the_learnt_schedule_is_the_mean_over_seeds_with_equal_steps(whole: Path) -> None:
    learnt = json.loads((whole / "schedule.json").read_text())
    rates = pd.read_csv(whole / "rates.csv").query("dropout == 'attendout' and match == 'steps'")
    means = rates.groupby(["progress", "site"])["rate"].mean().unstack()
    assert learnt["progress"] == list(means.index)
    np.testing.assert_allclose(learnt["rates"], means, rtol=1e-5)
    assert rates.groupby(["progress", "site"])["rate"].nunique().max() == 2


def test_a_later_run_follows_the_schedule(ground: Path, whole: Path) -> None:
    learnt = json.loads((whole / "schedule.json").read_text())
    run = finetune(ground, "scheduled", dropout=("scheduled",), schedule=str(whole / "schedule.json"))
    (row,) = rows(run).itertuples()
    assert (row.variant, row.exported) == ("schedule.json", True)
    for site, found in pd.read_csv(run / "rates.csv").groupby("site"):
        of_site = [rates[site] for rates in learnt["rates"]]
        np.testing.assert_allclose(found["rate"], np.interp(found["progress"], learnt["progress"], of_site), rtol=1e-5)
        assert found["rate"].nunique() > 2
    assert not (run / "schedule.json").exists()
    assert pd.read_csv(run / "comparisons.csv").empty


def test_a_run_that_is_complete_stays_as_it_is(ground: Path, whole: Path) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()}
    with mock.patch("attnprobe.finetune.run.train", side_effect=AssertionError("trained again")):
        finetune(ground, "whole", dropout=METHODS, mode="resume", **OPTIONS)
    assert {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()} == before


def test_a_run_shorter_than_the_log_is_whole(ground: Path) -> None:
    """Two steps, and a row of the log every 25."""
    run = finetune(ground, "short", dropout=("weights", "attendout"), max_steps=2, logging_steps=25)
    assert rows(run).loc["weights-s0", "drop_rate"] == pytest.approx(0.1)
    assert 0 < rows(run).loc["attendout-s0", "drop_rate"] < 0.5
    assert set(pd.read_csv(run / "training.csv")["training"]) == set(rows(run).index)
