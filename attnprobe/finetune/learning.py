"""Fine-tune a model under a dropout method, through transformers' Trainer."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from attnprobe.attention import AttentionSession, attach
from attnprobe.distributed import share
from attnprobe.dropout.attendout.method import AttendOut
from attnprobe.dropout.attendout.rewards import Rewards, drawn_from
from attnprobe.dropout.attendout.rivals import Rivals
from attnprobe.dropout.base import Dropout, Step
from attnprobe.dropout.methods import METHODS
from attnprobe.finetune.ground import FinetuneGround
from attnprobe.finetune.memory import peak_memory
from attnprobe.finetune.points import Training
from attnprobe.objectives import Objective
from attnprobe.quiet import quiet_transformers
from attnprobe.training.lesson import Lesson, prepared_from
from attnprobe.training.trainer import (
    QuietTrainer,
    checkpointing,
    last_checkpoint,
    trainer_of,
    training_arguments,
    weight_groups,
    weight_rate,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Rates = list[tuple[float, list[float]]]
"""(progress, share dropped at each site), on the way."""


_RATE = "rate_{}"
"""Name in the Trainer's log of the share dropped at a site; the log outlives a training that is stopped."""


class Tuner(nn.Module):
    """What the Trainer trains with any method but AttendOut: a model, the method, and its loss.

    Attributes:
        model: the attached model.
        method: prepared for it.
        progress: share of the training that is behind.
        epoch: whole passes over the data that are behind.
    """

    accepts_loss_kwargs = False  # the Trainer divides by the number of accumulated batches
    _keys_to_ignore_on_save = None  # the Trainer asks for it where it loads a checkpoint

    def __init__(self, session: AttentionSession, method: Dropout, objective: Objective) -> None:
        super().__init__()
        self.model, self.method = session.model, method
        self.session, self.objective = session, objective
        self.progress, self.epoch = 0.0, 0

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The loss of a batch, as ``loss``; tensors are those of :meth:`Lesson.collate`."""
        step = Step(
            session=self.session,
            objective=self.objective,
            prepared=prepared_from(tensors),
            progress=self.progress,
            epoch=self.epoch,
        )
        return {"loss": self.method.loss(step)}


class _Clock(TrainerCallback):  # type: ignore[misc]
    """Tells the learner how far the training is."""

    def __init__(self, learner: Tuner | Rivals, rows: int, batch: int) -> None:
        self.learner, self.rows, self.batch = learner, rows, batch

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del control
        self.learner.progress = state.global_step / state.max_steps
        if isinstance(self.learner, Tuner):
            seen = state.global_step * self.batch * args.gradient_accumulation_steps * args.world_size
            self.learner.epoch = seen // self.rows


class _Contests(TrainerCallback):  # type: ignore[misc]
    """Clips each net's gradient by itself, and holds a contest every so many steps, and after the last."""

    def __init__(self, rivals: Rivals, max_grad_norm: float) -> None:
        self.rivals, self.max_grad_norm = rivals, max_grad_norm
        self.norm: Tensor | None = None
        self.trainer: QuietTrainer | None = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, state, control
        assert self.trainer is not None
        self.trainer.accelerator.unscale_gradients()
        limit = self.max_grad_norm or float("inf")
        norms = [nn.utils.clip_grad_norm_(net.parameters(), limit) for net in (self.rivals.masked, self.rivals.plain)]
        self.norm = norms[0]

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        del args, control
        step = int(state.global_step)
        if step % self.rivals.options.dropout_step == 0 or step == state.max_steps:
            self.rivals.contest(step, optimizer)

    def told(self, step: int) -> dict[str, float]:
        """What the log tells of the contests."""
        norm = {} if self.norm is None else {"grad_norm": float(self.norm)}
        of_contests = [verdict for verdict in self.rivals.verdicts if verdict.step <= step]
        if not of_contests:
            return norm
        return norm | {"reward": of_contests[-1].reward, "winner": float(of_contests[-1].winner == "A")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuned:
    """What a training left.

    Attributes:
        models: the model, or with AttendOut the net with masks and the one without.
        log: a row every ``logging_steps``.
        rates: what was dropped on the way.
        seconds: of training alone, wall-clock.
        peak_memory: MiB; None where it can't be told.
    """

    models: tuple[PreTrainedModel, ...]
    log: list[dict[str, float]]
    rates: Rates
    seconds: float
    peak_memory: float | None


def train(ground: FinetuneGround, training: Training, steps: int, folder: Path, *, resume: bool = False) -> Tuned:
    """Fine-tune a fresh model under a method.

    Args:
        ground: what all trainings share.
        training: which.
        steps: optimizer steps.
        folder: where the Trainer keeps its checkpoints.
        resume: go on from the last checkpoint in ``folder``, if there is one.
    """
    options = replace(ground.options, max_steps=steps)
    pair = training.dropout == "attendout"
    model = ground.fresh_model(training.seed)
    lesson = ground.lesson(with_reward=not pair)
    batch = ground.model_options.per_device_batch_size
    arguments = training_arguments(
        replace(options, max_grad_norm=0.0) if pair else options,
        folder,
        model.device,
        batch_size=batch,
        seed=training.seed,
        all_used=False,
    )
    with ExitStack() as stack:
        stack.enter_context(quiet_transformers())
        learner = stack.enter_context(_learner(ground, training, model, lesson, batch))
        if options.gradient_checkpointing:
            for net in _nets(learner):
                stack.enter_context(checkpointing(net))
        callbacks: list[TrainerCallback] = [_Clock(learner, len(lesson.rows), batch)]
        kept: frozenset[str] = frozenset()
        contests: _Contests | None = None
        if isinstance(learner, Rivals):
            contests = _Contests(learner, options.max_grad_norm)
            callbacks.append(contests)
            kept = frozenset({"_extra_state", *(f"method.{name}" for name, _ in learner.method.named_parameters())})
        groups = weight_groups(learner, options)
        trainer = trainer_of(
            learner,
            lesson,
            options,
            arguments,
            groups=groups,
            rates=[partial(weight_rate, options)] * len(groups),
            dense=None,
            callbacks=callbacks,
            told=contests.told if contests is not None else partial(_rates_now, learner, steps),
            kept=kept,
        )
        if contests is not None:
            contests.trainer = trainer
        last = share(last_checkpoint(folder) if resume else None, device=model.device.type)
        with peak_memory(model.device) as memory:
            began = time.monotonic()
            trainer.train(resume_from_checkpoint=last)
            seconds = time.monotonic() - began
        learner.eval()
        log = [row for row in trainer.state.log_history if "loss" in row]
        if isinstance(learner, Rivals):
            log = [row | {"loss": row["loss"] / 2} for row in log]  # of two nets
            rates = [(verdict.step / steps, list(verdict.rates)) for verdict in learner.verdicts]
        else:
            sites = range(learner.method.sites)
            rates = [(row["step"] / steps, [row[_RATE.format(site)] for site in sites]) for row in log]
        return Tuned(
            models=_nets(learner),
            log=log,
            rates=rates,
            seconds=seconds,
            peak_memory=memory.mebibytes,
        )


def _rates_now(learner: Tuner | Rivals, steps: int, step: int) -> dict[str, float]:
    """What the log tells of the share dropped at each site."""
    return {_RATE.format(site): rate for site, rate in enumerate(learner.method.rates(step / steps))}


def _nets(learner: Tuner | Rivals) -> tuple[PreTrainedModel, ...]:
    return (learner.masked, learner.plain) if isinstance(learner, Rivals) else (learner.model,)


@contextmanager
def _learner(
    ground: FinetuneGround, training: Training, model: PreTrainedModel, lesson: Lesson, batch: int
) -> Iterator[Tuner | Rivals]:
    """What is trained: a model under a method, or two with AttendOut; attached meanwhile."""
    twin = copy.deepcopy(model) if training.dropout == "attendout" else None
    with attach(model) as session, torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        kind = METHODS[training.dropout].load()
        method = kind(sites=len(session.sites), rate=training.rate, options=ground.dropout)
        method.prepare(session)
        if twin is None:
            yield Tuner(session, method, lesson.objective)
            return
        assert isinstance(method, AttendOut)
        objective = lesson.objective
        draw = drawn_from(
            ground.encoded, ground.rows.reward, objective, batch_size=batch, seed=training.seed, device=model.device
        )
        rewards = Rewards(draw=draw, objective=objective, measure=ground.dropout.reward)
        with attach(twin) as plain:
            yield Rivals(session, plain, method, rewards, seed=training.seed)
