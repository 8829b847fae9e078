"""Attention, masks and probes on a GPU give what they give on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.checkpoint import open_checkpoint
from attnprobe.export.attaching import attached
from attnprobe.export.format import Applied
from attnprobe.masks.granularity import GRANULARITIES, Granularity
from attnprobe.masks.mask import GateMask, Mask
from attnprobe.masks.tokens import TokenRules
from attnprobe.scoring import first_output
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.tolerance import assert_differs, assert_near

LINES = ("the film is good", "a cat", "it is not a very good plot and the dog ran")
LENGTH = 16
NEAR = 1e-4


def _logits(folder: Path, device: str, *, mask: Mask | None = None, backend: str = "eager") -> Tensor:
    checkpoint = open_checkpoint(str(folder), device=device)
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    assert tokenizer is not None
    batch = tokenizer(list(LINES), padding=True, return_tensors="pt")
    rules = TokenRules.of(tokenizer, causal=False)
    with torch.no_grad(), attached(model, Applied(mask=mask, rules=rules), backend=backend):
        output = first_output(model, {name: tensor.to(device) for name, tensor in batch.items()})
    assert output.device.type == torch.device(device).type
    return output.cpu()


def _mask(name: str) -> Mask:
    granularity = Granularity(name=name, length=LENGTH, block_size=4)
    generator = torch.Generator().manual_seed(0)
    gates = torch.rand(tiny.LAYERS, tiny.HEADS, granularity.gates, generator=generator) < 0.5
    return GateMask(granularity=granularity, gates=gates)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_an_attached_model_gives_what_it_gives_on_the_host(device: str, ground: Path, backend: str) -> None:
    assert_near(_logits(ground / "model", device, backend=backend), _logits(ground / "model", "cpu"), NEAR)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", GRANULARITIES)
def test_a_mask_acts_as_on_the_host(device: str, ground: Path, name: str, backend: str) -> None:
    here = _logits(ground / "model", device, mask=_mask(name), backend=backend)
    assert_near(here, _logits(ground / "model", "cpu", mask=_mask(name)), NEAR)
    assert_differs(here, _logits(ground / "model", "cpu"))


def test_a_gpu_is_named_by_its_number(device: str, ground: Path) -> None:
    last = torch.cuda.device_count() - 1 if device == "cuda" else 0
    assert_near(_logits(ground / "model", f"{device}:{last}"), _logits(ground / "model", "cpu"), NEAR)


@pytest.mark.parametrize("method", ["mass", "ablation", "taylor", "integrated-gradients"])
def test_importance_is_the_same(device: str, ground: Path, command: Callable[[str], None], method: str) -> None:
    line = f"importance model --eval-file eval.csv --max-length 16 --methods {method} --n-steps 3 --control-draws 1"
    line += " --ablation-levels class,head --resamples 10 --per-device-batch-size 8 --quiet"
    tables: list[NDArray[np.float64]] = []
    for name in (device, "cpu"):
        folder = f"importance-{method}-{name}-{len(tables)}"
        command(f"{line} --device {name} --output-dir {folder}")
        tables.append(pd.read_csv(ground / folder / "importance.csv").select_dtypes("number").to_numpy(np.float64))
    np.testing.assert_allclose(tables[0], tables[1], rtol=NEAR, atol=NEAR)
    assert np.nanstd(tables[0]) > 0
