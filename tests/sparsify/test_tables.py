"""From outcomes to tables and to the choice: known answers, paired intervals, and nothing of the test data."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnprobe.data.positions import partition
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask
from attnprobe.masks.sparsity import Account
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.tables import (
    COLUMNS,
    KEPT_COLUMNS,
    TRAINING_COLUMNS,
    choose,
    kept_table,
    tradeoff_row,
    tradeoff_table,
    training_table,
)
from attnprobe.training.scores import Loss, Scores, compare

DOCUMENTED = [
    *("point", "checkpoint", "data", "method", "granularity", "sharing", "diagonal", "train", "target"),
    *("cell_sparsity", "nominal_sparsity", "block_sparsity", "block_size"),
    *("metric_name", "value", "ci_low", "ci_high", "dense", "drop", "drop_ci_low", "drop_ci_high", "loss"),
    *("heldout_value", "heldout_dense", "heldout_drop", "heldout_drop_ci_high"),
    *("counted_sparsity", "sparsity_before_threshold", "steps", "seconds", "seed", "draw", "examples", "exported"),
]
"""What reports and readers of tradeoff.csv rely on, in this order; the shares kept follow."""


def scores(prediction: Any, reference: Any = None, loss: Any = None) -> Scores:
    table = np.asarray(prediction, dtype=np.float32)
    table = table[:, None] if table.ndim == 1 else table
    nothing = np.zeros(len(table), dtype=np.float32)
    return Scores(
        prediction=table,
        reference=nothing if reference is None else np.asarray(reference, dtype=np.float32),
        loss=nothing if loss is None else np.asarray(loss, dtype=np.float32),
    )


def compared(metric: str, model: Scores, dense: Scores, *, resamples: int = 999, seed: int = 0) -> Loss:
    return compare(metric, model, dense, resamples=resamples, seed=seed)


LABELS = np.arange(400) % 2


def answers(wrong: NDArray[np.int64] | range) -> Scores:
    """Right but for some of 400 examples."""
    predicted = LABELS.copy()
    predicted[list(wrong)] ^= 1
    return scores(predicted, LABELS)


def test_accuracy_by_hand() -> None:
    """60 wrong against 40: 5 points, which 100 differing examples make uncertain by 2.4 and no more."""
    loss = compared("accuracy", answers(range(20, 80)), answers(range(40)))
    assert (loss.value, loss.dense) == (0.85, 0.9)
    assert loss.drop == pytest.approx(0.05)
    differ = np.repeat([1.0, -1.0, 0.0], [40, 20, 340])  # right of dense less right of the model
    error = 1.96 * differ.std() / 20
    assert loss.drop_low == pytest.approx(0.05 - error, abs=0.006)
    assert loss.drop_high == pytest.approx(0.05 + error, abs=0.006)
    own = 1.96 * np.sqrt(0.85 * 0.15 / 400)
    assert (loss.low, loss.high) == pytest.approx((0.85 - own, 0.85 + own), abs=0.008)


def test_the_drop_is_paired() -> None:
    """Models that fail on the same examples lose nothing, for sure; on others, by the same count, it is uncertain."""
    same = compared("accuracy", answers(range(60)), answers(range(60)))
    assert (same.drop, same.drop_low, same.drop_high) == (0, 0, 0)
    assert same.low < same.value < same.high
    other = compared("accuracy", answers(range(100, 160)), answers(range(60)))
    assert other.drop == 0
    assert other.drop_low < -0.03
    assert other.drop_high > 0.03
    worse = compared("accuracy", answers(range(61)), answers(range(60)))
    assert worse.drop == pytest.approx(1 / 400)
    assert worse.drop_low == 0
    assert worse.drop_high <= 5 / 400
    better = compared("accuracy", answers(range(0)), answers(range(40)))
    assert (better.drop, better.value) == pytest.approx((-0.1, 1))
    assert better.drop_high < 0


def test_the_interval_is_its_seeds() -> None:
    first, again, other = (compared("accuracy", answers(range(60)), answers(range(40, 90)), seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert (first.value, first.drop) == (other.value, other.drop)


def test_metrics_that_are_counts() -> None:
    """Pooled over examples, never a mean of shares: 3 of 4 and 1 of 6 tokens are 4 of 10."""
    model, dense = scores([[3, 4], [1, 6]]), scores([[4, 4], [6, 6]])
    loss = compared("token_accuracy", model, dense)
    assert (loss.value, loss.dense) == pytest.approx((0.4, 1))
    assert loss.drop == pytest.approx(0.6)
    # resampled examples are the first twice, both, or the second twice
    assert (loss.low, loss.high) == pytest.approx((1 / 6, 3 / 4))
    assert (loss.drop_low, loss.drop_high) == pytest.approx((1 / 4, 5 / 6))
    spans = compared("span_f1", scores([[1, 2, 3], [0, 1, 0]]), scores([[3, 3, 3], [0, 0, 0]]))
    assert (spans.value, spans.dense) == pytest.approx((2 / 6, 1))
    assert spans.drop == pytest.approx(2 / 3)


def test_fidelity_is_compared_with_the_dense_models_own() -> None:
    """Cosines: the dense model's are 1 to itself, so the drop is what is lost of them."""
    cosines = [0.9, 0.8, 1.0, 0.7]
    loss = compared("cosine", scores(cosines), scores([1, 1, 1, 1]))
    assert (loss.value, loss.dense) == pytest.approx((0.85, 1))
    assert loss.drop == pytest.approx(0.15)
    assert (loss.drop_low, loss.drop_high) == pytest.approx((1 - loss.high, 1 - loss.low))
    agreement = compared("agreement", scores([1, 0, 1, 1], [1, 1, 1, 1]), scores([1, 1, 1, 1], [1, 1, 1, 1]))
    assert (agreement.value, agreement.drop) == (0.75, 0.25)


def test_correlations_of_values() -> None:
    truth = np.linspace(0, 5, 41)
    noise = np.random.default_rng(0).normal(size=41)
    loss = compared("pearson", scores(truth + 3 * noise, truth), scores(truth, truth))
    assert loss.dense == pytest.approx(1)
    assert loss.value == pytest.approx(np.corrcoef(truth, (truth + 3 * noise).astype(np.float32))[0, 1], abs=1e-5)
    assert loss.drop_low < loss.drop < loss.drop_high


def test_a_single_example_has_no_interval() -> None:
    loss = compared("accuracy", scores([1], [1]), scores([1], [1]))
    assert (loss.value, loss.drop) == (1, 0)
    assert np.isnan([loss.low, loss.high, loss.drop_low, loss.drop_high]).all()


MASK = GateMask(granularity=Granularity(name="head", length=5), gates=torch.ones(2, 3, 1, dtype=torch.bool))
CLASSES = list(partition(causal=False))


def account(*, kept: int = 1, causal: bool = False, missing: tuple[str, ...] = ()) -> Account:
    """Two sites of three heads, four cells a class, some kept."""
    names = list(partition(causal))
    valid = torch.tensor([0 if name in missing else 4 for name in names])
    return Account(
        kept=(valid > 0).long().expand(2, 3, -1) * kept,
        valid=valid,
        nominal=0.7,
        block=0.25,
        block_size=128,
        causal=causal,
    )


def outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "scores": scores([1, 0, 1], [1, 1, 1], [0.1, np.nan, 0.3]),
        "held_out": scores([1], [1]),
        "mask": MASK,
        "account": account(),
        "counted_sparsity": 0.76,
        "before_threshold": None,
        "log": [],
        "steps": 0,
        "seconds": 1.5,
    }
    return Outcome(**{**values, **changes})


class _Blind:
    """An outcome whose evaluation scores must not be looked at."""

    def __init__(self, counted_sparsity: float, mask: Any = MASK) -> None:
        self.counted_sparsity, self.mask = counted_sparsity, mask


def loss_of(drop: float, high: float) -> Loss:
    return Loss(value=0.0, dense=0.0, low=0.0, high=0.0, drop=drop, drop_low=drop - 0.1, drop_high=high)


def chosen(rows: list[tuple[float, float, float]], max_drop: float = 0.01, *, dense: bool = True) -> str | None:
    """Of points with (sparsity on the rows counted, drop, its upper bound), the name of the one chosen."""
    points = [Point(method="dense")] if dense else []
    points += [Point(method="dam", seed=n) for n in range(len(rows))]
    held_out = {"dense": loss_of(0.0, 0.0)} | {
        f"dam-s{n}": loss_of(drop, high) for n, (_, drop, high) in enumerate(rows)
    }
    outcomes = {"dense": _Blind(0.0, None)} | {f"dam-s{n}": _Blind(row[0]) for n, row in enumerate(rows)}
    point = choose(points, held_out, cast("dict[str, Outcome]", outcomes), max_drop)
    return None if point is None else point.name


CHOICES: dict[str, tuple[list[tuple[float, float, float]], str | None]] = {
    "the sparsest that fits": ([(0.5, 0.0, 0.004), (0.9, 0.001, 0.009), (0.95, 0.02, 0.03)], "dam-s1"),
    "by the bound, not the drop": ([(0.8, 0.005, 0.01), (0.9, 0.0, 0.02)], "dam-s0"),
    "the bound itself fits": ([(0.8, 0.0, 0.01)], "dam-s0"),
    "of equals the one that drops least": (
        [(0.9, 0.004, 0.009), (0.9001, 0.001, 0.009), (0.8999, 0.003, 0.008)],
        "dam-s1",
    ),
    "half a point sparser wins": ([(0.9, -0.01, 0.0), (0.906, 0.009, 0.0099)], "dam-s1"),
    "less does not": ([(0.9, -0.01, 0.0), (0.9049, 0.009, 0.0099)], "dam-s0"),
    "better than dense": ([(0.3, -0.2, -0.1)], "dam-s0"),
    "none fits": ([(0.5, 0.0, 0.011)], None),
    "none is known": ([(0.5, 0.0, float("nan"))], None),
    "there is none": ([], None),
}


@pytest.mark.parametrize(("rows", "name"), CHOICES.values(), ids=CHOICES)
def test_choosing_by_the_bound_on_rows_held_out(rows: list[tuple[float, float, float]], name: str | None) -> None:
    assert chosen(rows) == name


def test_a_larger_drop_may_be_allowed() -> None:
    assert chosen([(0.5, 0.0, 0.02), (0.9, 0.0, 0.05)], 0.03) == "dam-s0"
    assert chosen([(0.5, 0.0, 0.02), (0.9, 0.0, 0.05)], 0.05, dense=False) == "dam-s1"


SHARED = {"checkpoint": "tiny", "data": "here", "sharing": "sites", "block_size": 128}


def row(point: Point, result: Outcome, *, exported: bool = False) -> dict[str, Any]:
    on_data = Loss(value=0.8, dense=0.9, low=0.7, high=0.85, drop=0.1, drop_low=0.05, drop_high=0.2)
    held_out = Loss(value=0.6, dense=0.7, low=0.5, high=0.65, drop=0.11, drop_low=0.01, drop_high=0.21)
    return tradeoff_row(
        point, result, shared=SHARED, metric="accuracy", on_data=on_data, held_out=held_out, exported=exported
    )


LEARNT = Point(method="dam", granularity="offset", diagonal="keep", train="gates", target=0.9, seed=3)


def test_a_row_by_hand() -> None:
    found = row(LEARNT, outcome(before_threshold=0.755, steps=600), exported=True)
    expected = {
        **SHARED,
        **{"point": LEARNT.name, "method": "dam", "granularity": "offset", "diagonal": "keep", "train": "gates"},
        **{"target": 0.9, "cell_sparsity": 0.75, "nominal_sparsity": 0.7, "block_sparsity": 0.25},
        **{"metric_name": "accuracy", "value": 0.8, "ci_low": 0.7, "ci_high": 0.85, "dense": 0.9},
        **{"drop": 0.1, "drop_ci_low": 0.05, "drop_ci_high": 0.2, "loss": pytest.approx(0.2)},
        **{"heldout_value": 0.6, "heldout_dense": 0.7, "heldout_drop": 0.11, "heldout_drop_ci_high": 0.21},
        **{"counted_sparsity": 0.76, "sparsity_before_threshold": 0.755, "steps": 600, "seconds": 1.5},
        **{"seed": 3, "draw": None, "examples": 3, "exported": True},
        **{f"kept_{name}": 0.25 for name in CLASSES},
    }
    assert found == expected
    assert set(found) <= set(COLUMNS)


def test_classes_that_the_data_has_none_of_are_left_out() -> None:
    found = row(LEARNT, outcome(account=account(missing=("cross_segment", "other"))))
    assert "kept_cross_segment" not in found
    assert found["kept_diagonal"] == 0.25
    causal = row(LEARNT, outcome(account=account(causal=True, missing=("first_query",))))
    assert {name for name in causal if name.startswith("kept_first")} == {"kept_first_key"}


def test_the_dense_model_has_no_sparsity_and_no_mask() -> None:
    found = row(Point(method="dense"), outcome(mask=None, account=None, counted_sparsity=0.0))
    assert [found[name] for name in ("cell_sparsity", "nominal_sparsity", "block_sparsity", "target", "draw")] == [
        *(0.0, 0.0, 0.0),
        *(None, None),
    ]
    assert found["sharing"] == found["granularity"] == found["diagonal"] == ""
    assert not any(name.startswith("kept_") for name in found)


def test_controls_share_nothing() -> None:
    random = Point(method="random", granularity="offset", diagonal="free", target=0.9, draw=2)
    found = row(random, outcome())
    assert (found["sharing"], found["draw"]) == ("", 2)


def test_the_table_has_all_columns_in_order() -> None:
    assert list(COLUMNS[: len(DOCUMENTED)]) == DOCUMENTED
    assert set(COLUMNS[len(DOCUMENTED) :]) == {
        f"kept_{name}" for name in (*partition(causal=False), *partition(causal=True))
    }
    dense = Point(method="dense")
    table = tradeoff_table(
        [row(dense, outcome(mask=None, account=None)), row(LEARNT, outcome(before_threshold=0.7), exported=True)]
    )
    assert list(table.columns) == list(COLUMNS)
    assert table["point"].tolist() == ["dense", LEARNT.name]
    assert table["draw"].isna().all()
    assert table["target"].isna().tolist() == [True, False]
    assert table["exported"].tolist() == [False, True]
    assert [str(table[name].dtype) for name in ("draw", "seed", "steps")] == ["Int64"] * 3
    text = table.to_csv(index=False)
    assert ",3,," in text  # whole numbers stay whole where others are missing
    assert table["kept_diagonal"].isna().tolist() == [True, False]


def test_what_each_head_keeps() -> None:
    points = [Point(method="dense"), LEARNT]
    table = account(missing=("other",))
    table.kept[1, 2, CLASSES.index("previous")] = 3
    outcomes = {"dense": outcome(mask=None, account=None), LEARNT.name: outcome(account=table)}
    found = kept_table(points, outcomes)
    assert list(found.columns) == list(KEPT_COLUMNS) == ["point", "site", "head", "position_class", "kept", "cells"]
    assert len(found) == 2 * 3 * (len(CLASSES) - 1)
    assert set(found["point"]) == {LEARNT.name}
    own = found[(found["site"] == 1) & (found["head"] == 2)].set_index("position_class")
    assert own["kept"].to_dict() == {name: 0.75 if name == "previous" else 0.25 for name in CLASSES[:-1]}
    assert set(found["cells"]) == {4}
    assert list(kept_table(points[:1], outcomes).columns) == list(KEPT_COLUMNS)


def test_the_logs_of_trainings() -> None:
    logs: list[dict[str, float]] = [
        {"step": 25.0, "loss": 0.5, "wanted_density": 0.4, "density": 0.41, "learning_rate": 0.1},
        {"step": 50.0, "loss": 0.25},
    ]
    points = [Point(method="dense"), LEARNT]
    found = training_table(points, {"dense": outcome(), LEARNT.name: outcome(log=logs)})
    assert list(found.columns) == list(TRAINING_COLUMNS)
    assert found["step"].tolist() == [25, 50]
    assert found["loss"].tolist() == [0.5, 0.25]
    assert found["density"].isna().tolist() == [False, True]
    empty = training_table(points[:1], {"dense": outcome()})
    assert list(empty.columns) == list(TRAINING_COLUMNS)
    assert len(empty) == 0
