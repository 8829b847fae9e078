"""Between two optimiser steps the host asks the GPU for nothing, so that it can run ahead."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from attnprobe.masks.granularity import GRANULARITIES
from tests.helpers.learning_steps import learn, opened_to_learn


@contextmanager
def _no_waiting() -> Iterator[None]:
    """What makes the host wait for the GPU raises; nothing does on the host itself."""
    if not torch.cuda.is_available():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it does not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_step_does_not_wait_for_the_gpu(device: str, ground: Path, granularity: str, bf16: bool) -> None:
    with opened_to_learn(ground, granularity, device) as setting:
        losses = learn(setting, _no_waiting, bf16=bf16)
    assert bool(losses.isfinite().all())
    assert float(losses.std()) > 0


def test_waiting_is_seen(device: str) -> None:
    if device != "cuda":
        pytest.skip("the host waits for no GPU here")
    number = torch.ones((), device=device)
    with pytest.raises(RuntimeError, match="synchronizing"), _no_waiting():
        number.item()
