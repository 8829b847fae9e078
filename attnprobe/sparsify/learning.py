"""Train gates, weights, or both, through transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from attnprobe.attention import AttentionSession
from attnprobe.distributed import share
from attnprobe.masks.gates import Gates
from attnprobe.masks.mask import Mask
from attnprobe.quiet import quiet_transformers
from attnprobe.sparsify.learner import Learner, gated
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.schedule import Schedule
from attnprobe.training.lesson import DenseOutputs, Lesson
from attnprobe.training.trainer import (
    checkpointing,
    last_checkpoint,
    trainer_of,
    training_arguments,
    wanting_gradients,
    weight_groups,
    weight_rate,
)

PAPER_LAMBDA = 1e-4
"""Price of a gate in the milder of the two runs that SparseBERT reports."""


class _Conductor(TrainerCallback):  # type: ignore[misc]
    """Moves gates along the schedule."""

    def __init__(self, learner: Learner, schedule: Schedule, fix: Callable[[], None]) -> None:
        self.learner, self.schedule, self.fix = learner, schedule, fix

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        gates, step = self.learner.gates, int(state.global_step)
        if gates is None or self.learner.fixed is not None:
            return
        if step >= self.schedule.gate_steps:
            self.fix()
            return
        gates.step, gates.temperature = step, self.schedule.temperature(step)
        if not self.learner.paper_form:
            if step < self.schedule.cooling:
                gates.take_in(self.schedule.averaging if step > self.schedule.full else 0.0)
            elif step == self.schedule.cooling:
                gates.settle_on_average()
        wanted = self.schedule.wanted(step)
        if wanted is not None:
            gates.hold(wanted)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, state, control
        gates = self.learner.gates
        if gates is not None and self.learner.fixed is not None:
            gates.logits.grad = None  # momentum would move what is decided
        elif gates is not None and self.schedule.density is not None:
            gates.project_gradient()

    def densities(self, step: int) -> dict[str, float]:
        """What the log tells of the gates after a step."""
        gates, wanted = self.learner.gates, self.schedule.wanted(step)
        told = {} if gates is None else {"density": float(gates.density())}
        return told if gates is None or wanted is None else told | {"wanted_density": wanted}


def train(
    session: AttentionSession,
    lesson: Lesson,
    options: SparsifyOptions,
    *,
    gates: Gates | None,
    mask: Mask | None,
    density: float | None,
    train_weights: bool,
    dense: DenseOutputs | None,
    folder: Path,
    batch_size: int,
    seed: int,
    resume: bool = False,
) -> tuple[Mask | None, float | None, list[dict[str, float]]]:
    """Train gates, weights under a mask, or the dense model's weights.

    Args:
        session: the attached model; its weights are changed in place with ``train_weights``.
        lesson: what is trained on.
        options: how.
        gates: to be learnt; then ``mask`` is None.
        mask: fixed, under which weights are trained.
        density: share of the training data's valid cells that the mask may keep; None: whatever ``--lambda`` leaves.
        train_weights: whether weights learn.
        dense: the dense model's outputs, where the loss needs them.
        folder: where the Trainer keeps its checkpoints.
        batch_size: rows in a batch of one process.
        seed: of order and dropout.
        resume: go on from the last checkpoint in ``folder``, if there is one.

    Returns:
        The mask; the share of valid cells kept by the gates' own decision just before it was brought to ``density``;
        the log, a row every ``logging_steps``.
    """
    model = session.model
    schedule = Schedule(options, density, settles=train_weights)
    learner = Learner(
        model,
        gates,
        objective=lesson.objective,
        dense=dense,
        train_weights=train_weights,
        distill=options.distill,
        price=(options.lambda_ or PAPER_LAMBDA) if density is None else None,
        paper_form=options.paper_form,
        hidden=options.distill_hidden if train_weights else 0.0,
    )
    learner.fixed = None if mask is None else mask.to(model.device)
    before: float | None = None

    def fix() -> None:
        nonlocal mask, before
        assert gates is not None
        gates.temperature = schedule.temperature(schedule.gate_steps - 1)  # also where training is taken up here
        before = gates.natural_density()
        mask = share(gates.decide(density), device=model.device.type)
        learner.fixed = mask.to(model.device)

    conductor = _Conductor(learner, schedule, fix)
    arguments = training_arguments(
        options, folder, model.device, batch_size=batch_size, seed=seed, all_used=options.train != "all"
    )
    with ExitStack() as stack:
        stack.enter_context(wanting_gradients(model, train_weights))
        stack.enter_context(gated(session, learner, lesson.rules))
        if learner.hidden:
            assert dense is not None
            stack.enter_context(learner.states.of(model))
            stack.enter_context(learner.dense_states.of(dense.model))
        if options.gradient_checkpointing:
            stack.enter_context(checkpointing(model))
        stack.enter_context(quiet_transformers())
        trainer = _trainer(learner, lesson, options, arguments, schedule, conductor)
        last = share(last_checkpoint(folder) if resume else None, device=model.device.type)
        trainer.train(resume_from_checkpoint=last)
    if gates is not None and learner.fixed is None:
        fix()
    learner.eval()
    return mask, before, [row for row in trainer.state.log_history if "loss" in row]


def _trainer(
    learner: Learner,
    lesson: Lesson,
    options: SparsifyOptions,
    arguments: TrainingArguments,
    schedule: Schedule,
    conductor: _Conductor,
) -> Trainer:
    groups: list[dict[str, Any]] = []
    rates: list[Callable[[int], float]] = []
    if learner.gates is not None:
        groups.append({"params": [learner.gates.logits], "lr": options.gate_learning_rate, "betas": (0.9, 0.99)})
        rates.append(schedule.gate_rate)
    if learner.train_weights:
        of_weights = weight_groups(learner.model, options)
        groups += of_weights
        rates += [partial(weight_rate, options)] * len(of_weights)
    return trainer_of(
        learner,
        lesson,
        options,
        arguments,
        groups=groups,
        rates=rates,
        dense=learner.dense,
        callbacks=[conductor],
        told=conductor.densities,
        kept=frozenset({"gates.average"}),
    )
