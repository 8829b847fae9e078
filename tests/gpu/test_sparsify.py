"""Whole sweeps on a GPU, and what they export, read again on either device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

import attnprobe
from tests.helpers.tolerance import assert_differs, assert_near

LINES = ("the film is good", "a cat", "it is not a very good plot and the dog ran")


def _logits(model: Any, folder: Path) -> Tensor:
    batch = AutoTokenizer.from_pretrained(folder)(list(LINES), padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits.cpu()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("train", "flags", "number"),
    [("gates", "", ":0"), ("gates", "--bf16", ""), ("all", "", ""), ("all", "--bf16", ":0")],
)
def test_a_sweep_learns_and_exports(
    device: str, ground: Path, command: Callable[[str], None], train: str, flags: str, number: str
) -> None:
    out = ground / f"sweep-{train}{flags}"
    command(
        f"sparsify model --train-file train.csv --eval-file eval.csv --methods dam,random --target-sparsity 0.6 "
        f"--max-steps 12 --max-length 16 --per-device-batch-size 4 --draws 1 --resamples 10 --max-drop 100 --quiet "
        f"--train {train} {flags} --device {device}{number} --output-dir {out}"
    )
    rows = pd.read_csv(out / "tradeoff.csv").set_index("method")
    assert np.isfinite(rows.loc["dam", ["value", "loss", "cell_sparsity"]].astype(float)).all()
    assert rows.loc["dam", "counted_sparsity"] == pytest.approx(0.6, abs=0.03)
    assert json.loads((out / "run.json").read_text())["summary"]["exported"]
    here = attnprobe.load(out / "model").to(device)
    there = attnprobe.load(out / "model")
    assert here.device.type == torch.device(device).type
    masked = _logits(here, out / "model")
    assert_near(masked, _logits(there, out / "model"), 1e-4)
    attnprobe.unload(there)
    assert_differs(masked, _logits(there, out / "model"))
