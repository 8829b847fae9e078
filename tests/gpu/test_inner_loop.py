"""Between two optimiser steps the host asks the GPU for nothing, so that it can run ahead."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from attnprobe.data.sources import DataOptions
from attnprobe.masks.gates import Gates
from attnprobe.options import ModelOptions
from attnprobe.sparsify.learner import Learner, gated
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting, opened
from attnprobe.sparsify.sweep import make_gates

BATCH, WARM, STEPS = 4, 2, 6


@contextmanager
def _no_waiting(device: str) -> Iterator[None]:
    """What makes the host wait for the GPU raises; nothing does on the host itself."""
    if device != "cuda":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it does not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(params=["offset", "cell", "block", "head"])
def setting(request: pytest.FixtureRequest, device: str, ground: Path) -> Iterator[Setting]:
    data = DataOptions(train_file=ground / "train.csv", eval_file=ground / "eval.csv")
    model = ModelOptions(device=device, max_length=16, per_device_batch_size=BATCH)
    options = SparsifyOptions(train="all", granularity=request.param, block_size=4)
    with opened(str(ground / "model"), data, model, options) as made:
        yield made


@pytest.mark.parametrize("bf16", [False, True])
def test_a_step_does_not_wait_for_the_gpu(device: str, setting: Setting, bf16: bool) -> None:
    point = Point(method="dam", granularity=setting.granularity.name, diagonal="free", target=0.5)
    gates = make_gates(setting, point)
    rows = setting.lesson.rows[: BATCH * STEPS]
    setting.dense.keep(setting.lesson, rows, BATCH)
    learner = _learner(setting, gates)
    optimizer = torch.optim.AdamW([gates.logits, *learner.model.parameters()], lr=1e-3)
    batches = [setting.lesson.collate(list(rows[at : at + BATCH])) for at in range(0, len(rows), BATCH)]
    moved = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
    losses = []
    with gated(setting.session, learner, setting.rules):
        for step, batch in enumerate(moved):
            if step == STEPS - 2:
                learner.fixed = gates.decide(0.5).to(setting.session.model.device)
            with ExitStack() as stack:
                if step not in (*range(WARM), STEPS - 2):
                    stack.enter_context(_no_waiting(device))
                gates.step = step
                gates.hold(0.9 - 0.05 * step)
                gates.take_in(0.9)
                with torch.autocast(device, torch.bfloat16, enabled=bf16):
                    loss = learner(**batch)["loss"]
                loss.backward()
                gates.project_gradient()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    assert bool(torch.stack(losses).isfinite().all())
    if device == "cuda":
        with pytest.raises(RuntimeError, match="synchronizing"), _no_waiting(device):
            losses[0].item()


def _learner(setting: Setting, gates: Gates) -> Learner:
    learner = Learner(
        setting.session.model,
        gates,
        objective=setting.bench.objective,
        dense=setting.dense,
        train_weights=True,
        distill=0.5,
        price=None,
    )
    return learner.train()
