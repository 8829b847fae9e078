"""Train gates, weights, or both, through transformers' Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from attnprobe.attention import AttentionSession
from attnprobe.distributed import is_main, share, wait_for_all
from attnprobe.errors import MissingDependencyError, TrainingError, UsageError
from attnprobe.masks.gates import Gates
from attnprobe.masks.mask import Mask
from attnprobe.quiet import quiet_transformers
from attnprobe.sparsify.learner import Learner, gated
from attnprobe.sparsify.lesson import DenseOutputs, Lesson, training_order
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAPER_LAMBDA = 1e-4
"""Price of a gate in the milder of the two runs that SparseBERT reports."""

DIVERGED = (
    "the training diverged, its loss or what it trains is no number any more: lower --learning-rate, "
    "--gate-learning-rate or --lambda, raise the temperatures, or train without --fp16"
)

_WHOLE = "attnprobe-whole"
"""Stands in a checkpoint that every process has written to its end."""


class _Conductor(TrainerCallback):  # type: ignore[misc]
    """Moves gates along the schedule, and marks checkpoints that are whole."""

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

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del control
        wait_for_all(device=args.device.type)
        if is_main():
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()

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
    arguments = training_arguments(options, folder, model.device, batch_size=batch_size, seed=seed)
    with ExitStack() as stack:
        stack.enter_context(_wanting_gradients(model, train_weights))
        stack.enter_context(gated(session, learner, lesson.rules))
        if options.gradient_checkpointing:
            stack.enter_context(_checkpointing(model))
        stack.enter_context(quiet_transformers())
        trainer = _trainer(learner, lesson, options, arguments, schedule, conductor)
        last = share(_last_checkpoint(folder) if resume else None, device=model.device.type)
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
        wanted = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
        for decays in (True, False):
            chosen = [parameter for parameter in wanted if (parameter.dim() > 1) == decays]
            decay = options.weight_decay if decays else 0.0
            groups.append({"params": chosen, "lr": options.learning_rate, "weight_decay": decay})
            rates.append(schedule.weight_rate)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    processes, batch_size = arguments.world_size, arguments.per_device_train_batch_size
    order = training_order(
        lesson.encoded.lengths,
        lesson.rows,
        batch_size=batch_size,
        batches=options.max_steps * options.gradient_accumulation_steps * processes,
        seed=arguments.seed,
    )
    if learner.dense is not None:
        starts = range(arguments.process_index * batch_size, len(order), processes * batch_size)
        own = [row for start in starts for row in order[start : start + batch_size]]
        learner.dense.keep(lesson, min(own, lesson.rows, key=len), batch_size)
    trainer = _QuietTrainer(
        model=learner,
        args=arguments,
        train_dataset=order,
        data_collator=lesson.collate,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)),
        callbacks=[conductor],
    )
    trainer.densities = conductor.densities
    trainer.pop_callback(PrinterCallback)
    return trainer


class _QuietTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints hold what is trained, under any tying of weights, and whose log tells of gates."""

    densities: Callable[[int], dict[str, float]]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise TrainingError(DIVERGED)
        told = self.densities(self.state.global_step) if "loss" in logs else {}
        super().log(logs | told, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        del state_dict
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        learner: Learner = self.accelerator.unwrap_model(self.model)
        names = {name for name, parameter in learner.named_parameters() if parameter.requires_grad}
        names |= {"gates.average"}
        torch.save({n: t for n, t in learner.state_dict().items() if n in names}, folder / "pytorch_model.bin")


def require_integrations(names: Sequence[str]) -> None:
    """See that the Trainer can log to these. Raises: UsageError for an unknown one, MissingDependencyError."""
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    if tuple(names) in (("all",), ("none",)):
        return
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise UsageError(f"--report-to: unknown {name!r:.60}; choose from {known}, all, none")
        if name not in get_available_reporting_integrations():
            raise MissingDependencyError(
                f"--report-to {name}: its package is not installed; install it, or choose others"
            )


def training_arguments(
    options: SparsifyOptions, folder: Path, device: torch.device, *, batch_size: int, seed: int
) -> TrainingArguments:
    """The Trainer's arguments for a point of a sweep."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=options.max_steps,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        max_grad_norm=options.max_grad_norm,
        bf16=options.bf16,
        fp16=options.fp16,
        seed=seed,
        use_cpu=device.type == "cpu",
        logging_steps=options.logging_steps,
        logging_nan_inf_filter=False,  # it would look at the loss of every step, and wait for the device
        report_to=list(options.report_to) or "none",
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        save_total_limit=2,  # the older one is whole while the newer is written
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
        accelerator_config={"non_blocking": True},
        ddp_find_unused_parameters=options.train == "all",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs of one process would run copies that are not attached
    if device.type == "cuda" and device.index is not None:  # a single process would train on cuda:0
        torch.cuda.set_device(device)
        arguments._setup_devices = device
    return arguments


@contextmanager
def _wanting_gradients(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Ask for the weights' gradients, or for none; afterwards as before."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.requires_grad_(wanted)
    try:
        yield
    finally:
        for parameter, wants in before:
            parameter.requires_grad_(wants)
            parameter.grad = None


@contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # renamed
    getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
    try:
        yield
    finally:
        getattr(model, f"{name}_checkpointing_disable")()


def _last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written to its end."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None
