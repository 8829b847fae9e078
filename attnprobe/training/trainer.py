"""transformers' Trainer as every command here uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from attnprobe.distributed import is_main, wait_for_all
from attnprobe.errors import MissingDependencyError, TrainingError, UsageError
from attnprobe.training.lesson import DenseOutputs, Lesson, training_order
from attnprobe.training.options import TrainingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DIVERGED = (
    "the training diverged, its loss or what it trains is no number any more: lower --learning-rate, "
    "--gate-learning-rate or --lambda, raise the temperatures, or train without --fp16"
)

_WHOLE = "attnprobe-whole"
"""Stands in a checkpoint that every process has written to its end."""


class Marks(TrainerCallback):  # type: ignore[misc]
    """Marks checkpoints that are whole."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del control
        wait_for_all(device=args.device.type)
        if is_main():
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()


class QuietTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints hold what is trained, under any tying of weights, and whose log tells more.

    Attributes:
        told: what the log says beside the loss, after a step of that number.
        kept: names of buffers that checkpoints hold too.
    """

    told: Callable[[int], dict[str, float]]
    kept: frozenset[str] = frozenset()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pop_callback(PrinterCallback)
        self.add_callback(Marks)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise TrainingError(DIVERGED)
        told = self.told(self.state.global_step) if "loss" in logs else {}
        super().log(logs | told, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        del state_dict
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        trained: nn.Module = self.accelerator.unwrap_model(self.model)
        names = {name for name, parameter in trained.named_parameters() if parameter.requires_grad} | self.kept
        torch.save({n: t for n, t in trained.state_dict().items() if n in names}, folder / "pytorch_model.bin")


def weight_groups(model: nn.Module, options: TrainingOptions) -> list[dict[str, Any]]:
    """AdamW's groups of all weights that want gradients: matrices decay, vectors don't."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {
            "params": [parameter for parameter in wanted if (parameter.dim() > 1) == decays],
            "lr": options.learning_rate,
            "weight_decay": options.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]


def weight_rate(options: TrainingOptions, step: int) -> float:
    """Factor on the weights' learning rate: up over the warm-up, then down to 0 in a line."""
    warm = options.max_steps * options.warmup
    return min(1.0, (step + 1) / warm if warm else 1.0) * (1 - step / options.max_steps)


def trainer_of(
    learner: nn.Module,
    lesson: Lesson,
    options: TrainingOptions,
    arguments: TrainingArguments,
    *,
    groups: list[dict[str, Any]],
    rates: list[Callable[[int], float]],
    dense: DenseOutputs | None,
    callbacks: Sequence[TrainerCallback],
    told: Callable[[int], dict[str, float]],
    kept: frozenset[str] = frozenset(),
) -> QuietTrainer:
    """A Trainer that is ready to train.

    Args:
        learner: gives ``loss`` for a batch of the lesson.
        lesson: what is trained on.
        options: how.
        arguments: the Trainer's own.
        groups: AdamW's groups of parameters.
        rates: factor on each group's learning rate, by step.
        dense: the dense model's outputs, where the loss needs them: those that will be asked for are computed now.
        callbacks: the Trainer's own.
        told, kept: see :class:`QuietTrainer`.
    """
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
    size, processes = arguments.per_device_train_batch_size, arguments.world_size
    order = training_order(
        lesson.encoded.lengths,
        lesson.rows,
        batch_size=size,
        batches=options.max_steps * options.gradient_accumulation_steps * processes,
        seed=arguments.seed,
    )
    if dense is not None:
        starts = range(arguments.process_index * size, len(order), processes * size)
        own = [row for start in starts for row in order[start : start + size]]
        dense.keep(lesson, min(own, lesson.rows, key=len), size)
    trainer = QuietTrainer(
        model=learner,
        args=arguments,
        train_dataset=order,
        data_collator=lesson.collate,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)),
        callbacks=list(callbacks),
    )
    trainer.told, trainer.kept = told, kept
    return trainer


def require_finite(tensors: Iterable[Tensor]) -> None:
    """See that a training has left numbers. Raises: TrainingError."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise TrainingError(DIVERGED)


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
    options: TrainingOptions, folder: Path, device: torch.device, *, batch_size: int, seed: int, all_used: bool
) -> TrainingArguments:
    """The Trainer's arguments.

    Args:
        options: how to train.
        folder: where checkpoints are kept.
        device: of the model.
        batch_size: rows in a batch of one process.
        seed: of order and dropout.
        all_used: whether every parameter has a gradient in every step.
    """
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
        logging_steps=min(options.logging_steps, options.max_steps),
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
        ddp_find_unused_parameters=not all_used,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs of one process would run copies that are not attached
    if device.type == "cuda" and device.index is not None:  # a single process would train on cuda:0
        torch.cuda.set_device(device)
        arguments._setup_devices = device
    return arguments


@contextmanager
def wanting_gradients(model: nn.Module, wanted: bool) -> Iterator[None]:
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
def checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Recompute activations in the backward pass, under the name that the installed transformers has for it."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
    try:
        yield
    finally:
        getattr(model, f"{name}_checkpointing_disable")()


def last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written to its end."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None
