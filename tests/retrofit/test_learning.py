"""Retrofits of a tiny classifier: where they start, how gates move, where they end, and the models they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from attnprobe.errors import UsageError
from attnprobe.options import ModelOptions
from attnprobe.residual.stream import carried, residual
from attnprobe.retrofit.learning import Retrofitter, train
from attnprobe.retrofit.options import RetrofitOptions
from attnprobe.retrofit.points import Training
from attnprobe.retrofit.sweep import RetrofitGround, opened
from attnprobe.training.lesson import training_order
from attnprobe.training.scores import score
from tests.helpers.retrofits import SMALL, data_of, retrofit, rows
from tests.helpers.sweeps import lay_ground
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

CANONICAL = Training(kind="retrofit", variant="sum", end="canonical", seed=3)
LEARNED = Training(kind="retrofit", variant="sum", end="learned", seed=3)
IMMEDIATE = Training(kind="immediate", variant="mean", end="canonical", seed=3)
CONTINUED = Training(kind="continued", seed=3)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_ground(
        tmp_path_factory.mktemp("retrofit") / "laid", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


@contextmanager
def laid(folder: Path, **options: Any) -> Iterator[RetrofitGround]:
    with opened(
        str(folder / "model"),
        data_of(folder),
        ModelOptions(per_device_batch_size=4),
        RetrofitOptions(**{**SMALL, **options}),
    ) as on:
        yield on


def test_the_first_step_is_the_checkpoints(ground: Path, tmp_path: Path) -> None:
    """Bit for bit, by its loss."""
    losses: list[float] = []
    for training in (CONTINUED, LEARNED):
        with laid(ground, max_steps=1, learning_rate=1e-9, gate_learning_rate=1e-9, max_grad_norm=0.0) as on:
            on.begin(training)
            gates, log = train(on, training, on.options, tmp_path / training.name)
            assert (gates is None) == (training is CONTINUED)
            losses.append(log[0]["loss"])
    assert losses[0] == losses[1]


def test_gates_are_driven_to_one_from_the_top(ground: Path, tmp_path: Path) -> None:
    with laid(ground, ramp=4 / 7) as on:
        on.begin(CANONICAL)
        gates, log = train(on, CANONICAL, on.options, tmp_path / "t")
    assert gates is not None
    assert gates.settled("sum").canonical
    means = [row["gate"] for row in log]
    assert means[-3:] == [1.0] * 3
    assert means[0] < 0.2


def test_gates_stay_as_learnt(ground: Path, tmp_path: Path) -> None:
    with laid(ground) as on:
        on.begin(LEARNED)
        gates, _ = train(on, LEARNED, on.options, tmp_path / "t")
    assert gates is not None
    settled = gates.settled("sum")
    assert not settled.canonical
    assert settled.gates.unique().numel() > 1
    assert 0 < float(settled.gates.abs().max()) < 0.2


def test_immediate_gates_are_one_from_the_first_step(ground: Path, tmp_path: Path) -> None:
    with laid(ground) as on:
        on.begin(IMMEDIATE)
        gates, log = train(on, IMMEDIATE, on.options, tmp_path / "t")
    assert gates is not None
    assert {row["gate"] for row in log} == {1.0}


def test_a_training_is_plain_pytorch(ground: Path, tmp_path: Path) -> None:
    """Against a loop of its own: AdamW, the same batches, warm-up and fall, gates of 1."""
    options: dict[str, Any] = {"max_steps": 3, "weight_decay": 0.0, "max_grad_norm": 0.0, "warmup": 0.0}
    with laid(ground, **options) as on:
        on.begin(IMMEDIATE)
        train(on, IMMEDIATE, on.options, tmp_path / "t")
        trained = {name: tensor.clone() for name, tensor in on.session.model.state_dict().items()}
        on.begin(IMMEDIATE)
        model, encoded = on.session.model, on.lesson.encoded
        order = training_order(encoded.lengths, on.lesson.rows, batch_size=4, batches=3, seed=3)
        learner = Retrofitter(model, None, objective=on.bench.objective, dense=None, distill=0.0).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=on.options.learning_rate, weight_decay=0.0, fused=True)
        with carried(on.session, "mean", lambda: torch.ones(on.sites - 1, 1)):
            for step in range(3):
                for group in optimizer.param_groups:
                    group["lr"] = on.options.learning_rate * (1 - step / 3)
                loss = learner(**on.lesson.collate(order[4 * step : 4 * step + 4]))["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        learner.eval()
        for name, tensor in model.state_dict().items():
            assert_near(trained[name], tensor, 1e-5)


def test_weights_are_given_back(ground: Path, tmp_path: Path) -> None:
    with laid(ground) as on:
        before = {name: tensor.clone() for name, tensor in on.session.model.state_dict().items()}
        on.begin(CANONICAL)
        train(on, CANONICAL, on.options, tmp_path / "t")
        changed = on.session.model.state_dict()
        assert any(not torch.equal(changed[name], tensor) for name, tensor in before.items())
        on.begin(CONTINUED)
        for name, tensor in on.session.model.state_dict().items():
            assert_identical(tensor, before[name])


def test_alignment_keeps_the_function_and_begins_every_retrofit(ground: Path) -> None:
    aligned = Training(kind="retrofit", variant="sum", end="canonical", align="scores")
    with laid(ground) as on:
        everyone = list(range(len(on.bench.encoded)))
        on.begin(CONTINUED)
        plain = score(on, on.bench.encoded, everyone).loss
        on.begin(aligned)
        np.testing.assert_allclose(score(on, on.bench.encoded, everyone).loss, plain, atol=1e-5)
        first = {name: tensor.clone() for name, tensor in on.session.model.state_dict().items()}
        assert on.alignment is not None
        on.begin(CONTINUED)
        on.begin(aligned)
        for name, tensor in on.session.model.state_dict().items():
            assert_identical(tensor, first[name])


def test_a_whole_run(ground: Path) -> None:
    run = retrofit(
        ground,
        "whole",
        whole=True,
        controls=("continued", "immediate", "unaligned"),
        sparsify=("0.5",),
        sparsify_steps=3,
    )
    table = rows(run)
    assert table["exported"].sum() == 1
    exported = table[table["exported"]].iloc[0]
    assert (exported["kind"], exported["end"], exported["align"]) == ("retrofit", "canonical", "scores")
    assert (table["start"][table["kind"] != "immediate"] == table.loc["dense", "value"]).all()
    assert table["behind_continued"].notna().sum() == 3
    assert (table["gate_mean"].dropna() == 1).all()
    assert table.loc["dense", "steps"] == 0
    heads = pd.read_csv(run / "heads.csv")
    assert set(heads["training"]) == set(table.index)
    assert heads.query("training == 'dense' and special == 'included'")["entropy_median"].median() == pytest.approx(
        table.loc["dense", "entropy_median"], rel=1e-5
    )
    bears = pd.read_csv(run / "sparsity.csv")
    assert set(bears["training"]) == set(table.index) - {"dense"}
    assert bears["counted_sparsity"].between(0.4, 0.6).all()
    record = json.loads((run / "model/attnprobe.json").read_text())
    assert record["applied"]["residual"]["variant"] == "sum"
    assert record["provenance"]["training"] == table.index[table["exported"]][0]
    assert "With residual attention (sum, canonical end)" in (run / "report.html").read_text()
    _require_measured(ground, run, float(exported["loss"]))


def _require_measured(ground: Path, run: Path, loss: float) -> None:
    """See that the export, opened again, has the loss that the table says, also as what is dense beside it."""
    options = ModelOptions(per_device_batch_size=4), RetrofitOptions(**SMALL)
    with opened(str(run / "model"), data_of(ground), *options) as on:
        everyone = list(range(len(on.bench.encoded)))
        assert float(np.mean(score(on, on.bench.encoded, everyone).loss)) == pytest.approx(loss, rel=1e-5)
        assert float(np.mean(score(on, on.bench.encoded, everyone, dense=True).loss)) == pytest.approx(loss, rel=1e-5)
        assert on.bench.checkpoint.residual is not None
        with pytest.raises(UsageError, match="residual already"), residual(on.session, on.bench.checkpoint.residual):
            pass


def test_a_run_is_the_same_for_a_seed(ground: Path) -> None:
    first, again = (rows(retrofit(ground, name, seeds=("4",))) for name in ("first", "again"))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    other = rows(retrofit(ground, "other", seeds=("5",)))
    trained = first["kind"] == "retrofit"
    assert not np.allclose(first[trained]["loss"], other[other["kind"] == "retrofit"]["loss"])
    assert_differs(torch.tensor([1.0]), torch.tensor([2.0]))


def test_distillation_keeps_it_nearer_to_the_checkpoint(ground: Path, tmp_path: Path) -> None:
    """With divergence alone the first gradient is 0, so that the weights stay where they are."""
    with laid(ground, distill=1.0, max_steps=1, weight_decay=0.0) as on:
        before = on.session.model.classifier.weight.clone()
        on.begin(CONTINUED)
        train(on, CONTINUED, on.options, tmp_path / "t")
        assert_near(on.session.model.classifier.weight, before, 1e-3)
