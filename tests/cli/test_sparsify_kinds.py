"""`sparsify` of every kind of checkpoint, data and granularity, on the command line: two steps each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import ROWS, Call
from tests.helpers import tiny_checkpoints as tiny

TARGET = 0.7
STEPS = f"--per-device-batch-size 4 --max-steps 2 --draws 1 --resamples 10 --target-sparsity {TARGET} --output-dir new"
PAIRS = tuple(zip(ROWS, ROWS[::-1], strict=True)) * 2


class Kind(NamedTuple):
    """A checkpoint with what it learns from, options, the metric, and how far from the target gates may end.

    Attributes:
        make: writes the checkpoint into a folder.
        data: the data's file, and its contents.
        options: of the command.
        metric: that is to be measured.
        coarse: share of the cells that one gate may govern; 1: the mask is learnt without a target.
        absent: a class of cells that the data has none of.
    """

    make: Callable[[Path], object]
    data: tuple[str, str]
    options: str
    metric: str
    coarse: float
    absent: str


PROSE = ("d.txt", "".join(f"{row}\n" for row in ROWS * 2))
LABELLED = ("s.csv", "text,label\n" + "".join(f"{row},{number % 2}\n" for number, row in enumerate(ROWS * 2)))
PAIRED = ("p.csv", "text_a,text_b,label\n" + "".join(f"{a},{b},{n % 2}\n" for n, (a, b) in enumerate(PAIRS)))
VALUES = (
    "v.csv",
    "sentence1,sentence2,label\n" + "".join(f"{a},{b},{number / 7:.3f}\n" for number, (a, b) in enumerate(PAIRS)),
)
TAGGED = (
    "t.conll",
    "".join(
        "".join(f"{word} {'B-PER' if word == 'cat' else 'O'}\n" for word in row.split()) + "\n" for row in ROWS * 2
    ),
)

KINDS = {
    "classifier by cell": Kind(
        tiny.bert_classifier, LABELLED, "--granularity cell --share heads", "accuracy", 0.01, "first_key"
    ),
    "classifier by head": Kind(tiny.bert_classifier, LABELLED, "--granularity head", "accuracy", 0.17, "first_key"),
    "pairs": Kind(
        tiny.bert_classifier,
        PAIRED,
        "--text-column text_a --text-column text_b --segment-aware --diagonal keep",
        "accuracy",
        0.02,
        "first_key",
    ),
    "regression": Kind(
        lambda folder: tiny.bert_classifier(folder, labels=("score",)),
        VALUES,
        "--train all --symmetric",
        "pearson",
        0.02,
        "first_key",
    ),
    "tags": Kind(tiny.bert_token_classifier, TAGGED, "--diagonal drop", "span_f1", 0.02, "cross_segment"),
    "masked LM": Kind(
        tiny.bert_masked_lm,
        PROSE,
        "--granularity block --block-size 2 --max-length 20",
        "token_accuracy",
        0.05,
        "first_key",
    ),
    "no head": Kind(tiny.bert_base, PROSE, "--share sites --paper-form", "cosine", 1.0, "first_key"),
    "gpt2": Kind(
        tiny.gpt2_causal_lm,
        PROSE,
        "--granularity block --block-size 5 --max-length 25",
        "token_accuracy",
        0.1,
        "cls_key",
    ),
    "llama": Kind(
        lambda folder: tiny.llama_causal_lm(folder, vocabulary=257),
        PROSE,
        "--relaxation soft",
        "token_accuracy",
        0.02,
        "cls_key",
    ),
}


def _line(kind: Kind, sandbox: Path) -> str:
    kind.make(sandbox / "model")
    name, content = kind.data
    (sandbox / name).write_text(content)
    return f"sparsify model --train-file {name} --eval-file {name} {STEPS} {kind.options}"


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(name: str, sandbox: Path, call: Call) -> None:
    kind = KINDS[name]
    outcome = call(f"{_line(kind, sandbox)} --methods dam,random,window")
    assert outcome.code == 0, outcome.err
    assert all(line.startswith(("attnprobe: info: ", "attnprobe: warning: ")) for line in outcome.err.splitlines())
    table = pd.read_csv(sandbox / "new/tradeoff.csv").set_index("method")
    assert sorted(set(table.index)) == ["dam", "dense", "random", "window"]
    assert set(table["metric_name"]) == {kind.metric}
    assert np.isfinite(table[["value", "loss", "dense", "cell_sparsity", "nominal_sparsity"]]).all(axis=None)
    for method in ("dam", "random") if kind.coarse < 1 else ("random",):
        missed = float(table["counted_sparsity"][method]) - TARGET
        assert -0.01 <= missed <= kind.coarse
    assert table[f"kept_{kind.absent}"].isna().all()
    assert (sandbox / "new/report.html").is_file()
    masks = np.load(sandbox / "new/masks.npz")
    assert len(masks.files) == 4
    assert "first_key" not in kind.absent or "[CLS]" in masks["tokens"]


def test_a_decoder_is_exported(sandbox: Path, call: Call) -> None:
    """By the one command, and measured again by another."""
    line = f"{_line(KINDS['llama'], sandbox)} --methods window --held-out 0.5 --max-drop 100"
    assert "model: new/model" in call(line).out
    loss = float(pd.read_csv(sandbox / "new/tradeoff.csv").set_index("method")["loss"]["window"])
    found = json.loads(call("evaluate new/model --eval-file d.txt").out)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["checkpoint"]["mask"].startswith("the fixed pattern window")


def test_an_export_is_sparsified_with_its_weights(sandbox: Path, call: Call) -> None:
    """What counts as dense is the export under its mask, also beside weights that learn."""
    line = _line(KINDS["llama"], sandbox)
    call(f"{line} --methods window --held-out 0.5 --max-drop 100")
    further = line.replace("sparsify model", "sparsify new/model")
    assert call(f"{further} --methods dam --train all --held-out 0.5 --output-dir again").code == 0
    first, again = (
        pd.read_csv(sandbox / run / "tradeoff.csv").query("train == 'none'").set_index("method")
        for run in ("new", "again")
    )
    assert again.loc["dense", "loss"] == pytest.approx(first.loc["window", "loss"], rel=1e-5)
    assert again.loc["dense", "loss"] != pytest.approx(first.loc["dense", "loss"], rel=1e-5)
