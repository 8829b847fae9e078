"""Scores of gated checkpoints: against the model run directly, and against ablation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnprobe.data.sources import DataOptions
from attnprobe.errors import UsageError
from attnprobe.evaluation import evaluate
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import run_importance
from attnprobe.options import GateOptions, ModelOptions
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.probing import HEADS, SENTENCES, write_csv
from tests.references.importance import Cell, ReferenceBert, classes, cross_entropy, everywhere

CLS, SEP = (tiny.BERT_SPECIALS.index(token) for token in ("[CLS]", "[SEP]"))
DROPS = ("diagonal", "cls_key", "cls_query", "next", "special", "window")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DataOptions]:
    root = tmp_path_factory.mktemp("evaluation")
    (root / "model").mkdir()
    checkpoint = str(tiny.bert_classifier(root / "model"))
    file = write_csv(root / "data.csv", SENTENCES)
    return checkpoint, DataOptions(eval_file=file, text_columns=("sentence",), label_column="label")


def scores(place: tuple[str, DataOptions], **gates: Any) -> dict[str, Any]:
    checkpoint, data = place
    options = GateOptions(resamples=31, **gates)
    found = evaluate(checkpoint, data=data, model=ModelOptions(per_device_batch_size=3), gates=options)
    json.dumps(found, allow_nan=False)
    return found


def by_reference(place: tuple[str, DataOptions], removed: Any) -> tuple[float, float]:
    """(accuracy, mean loss), each sentence alone and without padding."""
    checkpoint, _ = place
    tokenizer = tiny.wordpiece_tokenizer(Path(checkpoint))
    reference = ReferenceBert(tiny.read_tensors(Path(checkpoint)), heads=HEADS)
    losses, right = [], []
    for text, label in SENTENCES:
        ids = tokenizer(text)["input_ids"]
        cells = everywhere(removed(ids), sites=range(tiny.LAYERS), heads=range(HEADS))
        logits = reference.run(ids, [0] * len(ids), removed=cells).logits
        losses.append(float(cross_entropy(logits, label)))
        right.append(int(logits.argmax()) == label)
    return sum(right) / len(right), sum(losses) / len(losses)


def in_class(name: str) -> Any:
    return lambda ids: classes(ids, [0] * len(ids), cls=CLS, sep=SEP, window=4)[name]


def outside_window(ids: list[int]) -> list[Cell]:
    return [(i, j) for i in range(len(ids)) for j in range(len(ids)) if abs(i - j) > 1]


def outside_star(ids: list[int]) -> list[Cell]:
    return [(i, j) for i, j in outside_window(ids) if i and j]


def first_column(ids: list[int]) -> list[Cell]:
    return [(i, 0) for i in range(len(ids))]


def sep_row(ids: list[int]) -> list[Cell]:
    return [(ids.index(SEP), j) for j in range(len(ids))]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("gates", "removed"),
    [
        ({}, lambda _: []),
        *(({"drop": (name,)}, in_class(name)) for name in DROPS),
        ({"drop": ("cls_column",)}, first_column),
        ({"drop": ("sep_row",)}, sep_row),
        ({"drop": ("diagonal", "cls_column")}, lambda ids: {*first_column(ids), *((i, i) for i in range(len(ids)))}),
        ({"pattern": "window"}, outside_window),
        ({"pattern": "star"}, outside_star),
        ({"pattern": "star", "drop": ("diagonal",)}, lambda ids: {*outside_star(ids), *in_class("diagonal")(ids)}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_metric_and_loss_against_the_reference(
    place: tuple[str, DataOptions], gates: dict[str, Any], removed: Any, backend: str
) -> None:
    found = scores(place, **gates, backend=backend)
    accuracy, loss = by_reference(place, removed)
    assert found["metric_name"] == "accuracy"
    assert found["metric"] == pytest.approx(accuracy)
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["examples"] == len(SENTENCES)
    assert found["ci_low"] <= found["metric"] <= found["ci_high"]
    cells = [sum(1 for _ in removed([CLS, *[9] * n, SEP])) for n in (len(text.split()) for text, _ in SENTENCES)]
    everything = [(len(text.split()) + 2) ** 2 for text, _ in SENTENCES]
    assert found["cell_sparsity"] == pytest.approx(sum(cells) / sum(everything))
    assert (found["divergence"] > 1e-4) == bool(gates)


def test_dropping_a_class_is_what_ablation_measures(place: tuple[str, DataOptions], tmp_path: Path) -> None:
    checkpoint, data = place
    options = ImportanceOptions(methods=("ablation",), ablation_levels=("class",), control_draws=1, resamples=31)
    run_importance(checkpoint, data=data, model=ModelOptions(), options=options, output_dir=tmp_path, quiet=True)
    table = pd.read_csv(tmp_path / "importance.csv")
    for name in DROPS:
        row = table[(table["position_class"] == name) & (table["unit"] == "loss")].iloc[0]
        if row["examples"] == len(SENTENCES):
            found = scores(place, drop=(name,))
            assert row["loss_ablated"] == pytest.approx(found["loss"], rel=1e-5)
            assert row["metric_ablated"] == pytest.approx(found["metric"], rel=1e-5)
            kl = table[(table["position_class"] == name) & (table["unit"] == "kl")].iloc[0]
            assert kl["value"] == pytest.approx(found["divergence"], rel=1e-4)


def test_language_models_and_encoders_have_scores_too(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("".join(f"{text}\n" for text, _ in SENTENCES))
    data = DataOptions(eval_file=tmp_path / "prose.txt")
    for name, make, kind in (
        ("mlm", tiny.bert_masked_lm, "masked_lm"),
        ("causal", tiny.gpt2_causal_lm, "causal_lm"),
        ("base", tiny.bert_base, "fidelity"),
    ):
        (tmp_path / name).mkdir()
        checkpoint = str(make(tmp_path / name))
        dense, gated = (
            evaluate(checkpoint, data=data, model=ModelOptions(), gates=GateOptions(resamples=31, drop=drop))
            for drop in ((), ("diagonal",))
        )
        assert dense["objective"]["kind"] == kind
        assert dense["divergence"] == pytest.approx(0, abs=1e-6)
        assert gated["divergence"] > 1e-4
        assert math.isfinite(gated["metric"])
        assert (dense["loss"] < 1e-6) == (kind == "fidelity")


def test_unknown_names_are_refused_in_one_line(place: tuple[str, DataOptions]) -> None:
    for gates, told in (({"drop": ("diagonall",)}, "'diagonall'"), ({"pattern": "stars"}, "'stars'")):
        with pytest.raises(UsageError, match=told) as caught:
            scores(place, **gates)
        assert "\n" not in str(caught.value)
