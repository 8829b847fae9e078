"""Train a model whose attention becomes residual, through transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from attnprobe.distributed import share
from attnprobe.objectives import Objective
from attnprobe.quiet import quiet_transformers
from attnprobe.residual.gates import ResidualGates
from attnprobe.residual.stream import carried
from attnprobe.retrofit.options import RetrofitOptions
from attnprobe.retrofit.points import Training
from attnprobe.scoring import first_output
from attnprobe.training.ground import Ground
from attnprobe.training.lesson import DenseOutputs, mixed_loss, needs_dense, prepared_from
from attnprobe.training.trainer import (
    last_checkpoint,
    trainer_of,
    training_arguments,
    wanting_gradients,
    weight_groups,
    weight_rate,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Retrofitter(nn.Module):
    """What the Trainer trains: a model, the gates of its score stream, and its loss.

    Attributes:
        model: the attached model.
        gates: of its score stream; None for the control without one.
    """

    accepts_loss_kwargs = False  # the Trainer divides by the number of accumulated batches
    _keys_to_ignore_on_save = None  # the Trainer asks for it where it loads a checkpoint

    def __init__(
        self,
        model: PreTrainedModel,
        gates: ResidualGates | None,
        *,
        objective: Objective,
        dense: DenseOutputs | None,
        distill: float,
    ) -> None:
        super().__init__()
        self.model, self.gates = model, gates
        self.objective, self.dense, self.distill = objective, dense, distill

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The mean loss of a batch, as ``loss``; tensors are those of a lesson's batches."""
        prepared = prepared_from(tensors)
        if self.dense is not None:
            prepared = prepared.with_dense(self.dense.of(prepared))
        output = self.objective.output(first_output(self.model, prepared.inputs), prepared)
        return {"loss": mixed_loss(self.objective, output, prepared, self.distill)}


class _Ramp(TrainerCallback):  # type: ignore[misc]
    """Drives the gates to 1 over the first ``steps`` steps."""

    def __init__(self, gates: ResidualGates, steps: int) -> None:
        self.gates, self.steps = gates, steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        self.gates.force(min(1.0, int(state.global_step) / self.steps) if self.steps else 1.0)


def train(
    ground: Ground, training: Training, options: RetrofitOptions, folder: Path, *, resume: bool = False
) -> tuple[ResidualGates | None, list[dict[str, float]]]:
    """Train the weights of a model, and with a retrofit its gates; the weights are changed in place.

    Args:
        ground: what the model stands on; its weights are those to begin with.
        training: which.
        options: how.
        folder: where the Trainer keeps its checkpoints.
        resume: go on from the last checkpoint in ``folder``, if there is one.

    Returns:
        The gates as they ended, None without residual attention; the log, a row every ``logging_steps``.
    """
    model, objective = ground.session.model, ground.bench.objective
    gates: ResidualGates | None = None
    if training.residual:
        gates = ResidualGates(sites=ground.sites, heads=ground.heads, by=options.gate).to(model.device)
    learner = Retrofitter(
        model,
        gates,
        objective=objective,
        dense=ground.dense if needs_dense(objective, options) else None,
        distill=options.distill,
    )
    batch_size = ground.model_options.per_device_batch_size
    arguments = training_arguments(
        options, folder, model.device, batch_size=batch_size, seed=training.seed, all_used=False
    )
    with ExitStack() as stack:
        stack.enter_context(wanting_gradients(model, True))
        if gates is not None:
            stack.enter_context(carried(ground.session, training.variant, gates.effective))
        stack.enter_context(quiet_transformers())
        trainer = _trainer(learner, ground, training, options, arguments)
        last = share(last_checkpoint(folder) if resume else None, device=model.device.type)
        trainer.train(resume_from_checkpoint=last)
    if gates is not None and training.end == "canonical":
        gates.force(1.0)
    learner.eval()
    return gates, [row for row in trainer.state.log_history if "loss" in row]


def _trainer(
    learner: Retrofitter,
    ground: Ground,
    training: Training,
    options: RetrofitOptions,
    arguments: TrainingArguments,
) -> Trainer:
    gates = learner.gates
    groups = weight_groups(learner.model, options)
    rates: list[Callable[[int], float]] = [partial(weight_rate, options)] * len(groups)
    callbacks: list[TrainerCallback] = []
    if gates is not None:
        groups.append({"params": [gates.gates], "lr": options.gate_learning_rate, "weight_decay": 0.0})
        rates.append(partial(weight_rate, options))
        if training.kind == "immediate":
            gates.force(1.0)
        elif training.end == "canonical":
            callbacks.append(_Ramp(gates, round(options.max_steps * options.ramp)))
    return trainer_of(
        learner,
        ground.lesson,
        options,
        arguments,
        groups=groups,
        rates=rates,
        dense=learner.dense,
        callbacks=callbacks,
        told=lambda _: {} if gates is None else {"gate": float(gates.effective().mean())},
        kept=frozenset({"gates.forced"}),
    )
