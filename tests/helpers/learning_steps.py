"""Steps of a training without its Trainer: what runs between two optimiser steps, watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from attnprobe.data.sources import DataOptions
from attnprobe.options import ModelOptions
from attnprobe.sparsify.learner import Learner, gated
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting, opened
from attnprobe.sparsify.sweep import make_gates

BATCH, WARM, STEPS = 4, 2, 6


@contextmanager
def opened_to_learn(ground: Path, granularity: str, device: str = "cpu") -> Iterator[Setting]:
    """What :func:`~tests.helpers.sweeps.lay_ground` left, opened for steps that train gates and weights."""
    data = DataOptions(train_file=ground / "train.csv", eval_file=ground / "eval.csv")
    model = ModelOptions(device=device, max_length=16, per_device_batch_size=BATCH)
    options = SparsifyOptions(train="all", granularity=granularity, block_size=4)
    with opened(str(ground / "model"), data, model, options) as setting:
        yield setting


def learn(setting: Setting, watching: Callable[[], AbstractContextManager[object]], *, bf16: bool = False) -> Tensor:
    """Some steps, the last two under the mask that is decided then; ``watching`` is around each that is not the first
    of its kind. Gives the losses, (steps,).
    """
    device = setting.session.model.device
    point = Point(method="dam", granularity=setting.granularity.name, diagonal="free", target=0.5)
    gates = make_gates(setting, point).to(device)
    rows = setting.lesson.rows[: BATCH * STEPS]
    setting.dense.keep(setting.lesson, rows, BATCH)
    learner = Learner(
        setting.session.model,
        gates,
        objective=setting.bench.objective,
        dense=setting.dense,
        train_weights=True,
        distill=0.5,
        price=None,
    )
    learner.train()
    optimizer = torch.optim.AdamW([gates.logits, *learner.model.parameters()], lr=1e-3)
    losses = []
    with gated(setting.session, learner, setting.rules):
        for step in range(STEPS):
            batch = setting.lesson.collate(list(rows[BATCH * step : BATCH * (step + 1)]))
            moved = {name: tensor.to(device) for name, tensor in batch.items()}
            if step == STEPS - 2:
                learner.fixed = gates.decide(0.5).to(device)
            with nullcontext() if step in (*range(WARM), STEPS - 2) else watching():
                gates.step = step
                gates.hold(0.9 - 0.05 * step)
                gates.take_in(0.9)
                with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
                    loss = learner(**moved)["loss"]
                loss.backward()
                gates.project_gradient()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().cpu())
    return torch.stack(losses)
