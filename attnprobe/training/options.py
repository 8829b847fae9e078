"""Options of every command that trains. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.options import LARGEST_SEED, ModelOptions

LARGEST_RATE = 1000.0
"""Of learning rates and weight decay: far beyond any use, and far from where float32 ends."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How something is trained, and measured over seeds. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    seeds: tuple[str, ...] = field(default=(), metadata={"help": "Seeds, each of which trains anew. [default: --seed]"})
    max_steps: int = field(default=600, metadata={"help": "Optimizer steps."})
    learning_rate: float = field(
        default=5e-5, metadata={"help": "Highest learning rate of the weights; warmed up, then falling to 0."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Of the weights; gates have none."})
    warmup: float = field(default=0.05, metadata={"help": "Share of the steps in which the weights' rate rises."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Largest norm of the gradient of all that is trained."})
    held_out: float = field(
        default=0.1,
        metadata={"help": "Share of the training rows (at most 1000) held out; all choices are made on them."},
    )
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Batches in an optimizer step."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Trade time for memory, in training."})
    bf16: bool = field(default=False, metadata={"help": "Train under bfloat16 autocast."})
    fp16: bool = field(default=False, metadata={"help": "Train under float16 autocast (GPUs)."})
    save_steps: int = field(
        default=0, metadata={"help": "Save the training every so many steps, for --resume; 0: only whole points."}
    )
    logging_steps: int = field(default=25, metadata={"help": "Steps between two rows of training.csv."})
    report_to: tuple[str, ...] = field(
        default=(), metadata={"help": "Integrations of transformers' Trainer to log to, such as tensorboard."}
    )
    resamples: int = field(default=1000, metadata={"help": "Bootstrap resamples behind each 95 % interval."})

    def __post_init__(self) -> None:
        require_whole(
            ("--max-steps", self.max_steps, 1),
            ("--gradient-accumulation-steps", self.gradient_accumulation_steps, 1),
            ("--save-steps", self.save_steps, 0),
            ("--logging-steps", self.logging_steps, 1),
            ("--resamples", self.resamples, 10),
        )
        require_above_zero(
            ("--learning-rate", self.learning_rate, LARGEST_RATE),
            ("--held-out", self.held_out, 0.9),
        )
        require_from_zero(
            ("--warmup", self.warmup, 1.0),
            ("--weight-decay", self.weight_decay, LARGEST_RATE),
            ("--max-grad-norm", self.max_grad_norm, math.inf),
        )
        if self.bf16 and self.fp16:
            raise UsageError("--bf16 and --fp16 exclude each other: choose one")
        _ = self.seed_numbers

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds; empty when none is given. Raises: UsageError."""
        for text in self.seeds:
            if not text.isdecimal() or int(text) > LARGEST_SEED:
                raise UsageError(f"--seeds must be whole numbers from 0 to {LARGEST_SEED}, by commas, not {text!r:.60}")
        numbers = tuple(int(text) for text in self.seeds)
        if len(set(numbers)) < len(numbers):
            raise UsageError(f"--seeds must differ, and {','.join(self.seeds)} do not: give each once")
        return numbers


@dataclass(frozen=True, kw_only=True)
class DistillingOptions(TrainingOptions):
    """The same, where there is a dense model to be held against.

    Raises:
        UsageError: an option that cannot be meant.
    """

    distill: float = field(
        default=0.7,
        metadata={
            "help": "Share of the loss that is the divergence from the dense model; the rest is the objective's loss."
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_from_zero(("--distill", self.distill, 1.0))


def require_choices(*rules: tuple[str, Sequence[str], Sequence[str]]) -> None:
    """See that each flag's values are among its choices, each once. Raises: UsageError."""
    for flag, values, choices in rules:
        if not values:
            raise UsageError(f"{flag} must name at least one of {', '.join(choices)}")
        for number, value in enumerate(values):
            if value not in choices:
                raise UsageError(f"{flag}: unknown {value!r}; choose from {', '.join(choices)}")
            if value in values[:number]:
                raise UsageError(f"{flag} names {value!r} twice: give each once")


def require_whole(*rules: tuple[str, int, int]) -> None:
    """See that each flag's number is not below its least. Raises: UsageError."""
    for flag, number, least in rules:
        if number < least:
            raise UsageError(f"{flag} must be at least {least}, not {number}")


def require_above_zero(*rules: tuple[str, float, float]) -> None:
    """See that each flag's number is above 0, finite, and not above its largest. Raises: UsageError."""
    for flag, value, high in rules:
        if not 0 < value <= high or math.isinf(value):
            bound = "above 0 and finite" if math.isinf(high) else f"above 0 and at most {high:g}"
            raise UsageError(f"{flag} must be {bound}, not {value}")


def require_from_zero(*rules: tuple[str, float, float]) -> None:
    """See that each flag's number is not below 0, finite, and not above its largest. Raises: UsageError."""
    for flag, value, high in rules:
        if not 0 <= value <= high or math.isinf(value):
            bound = "at least 0 and finite" if math.isinf(high) else f"from 0 to {high:g}"
            raise UsageError(f"{flag} must be {bound}, not {value}")


def require_trainable(model: ModelOptions, options: TrainingOptions, *, weights: bool, on_gpu: bool = False) -> None:
    """See that what is asked for can be trained on the device and in the type asked for.

    Args:
        model: how the checkpoint is opened.
        options: how it is trained.
        weights: whether weights learn.
        on_gpu: whether it will be on a GPU though ``--device`` does not say so.

    Raises:
        UsageError: it can't.
    """
    if options.fp16 and not (on_gpu or model.device.startswith("cuda")):
        raise UsageError(f"--fp16 trains on GPUs alone, not on --device {model.device}: give --device cuda, or --bf16")
    if weights and model.dtype == "float16":
        raise UsageError(
            "weights that learn need a type that small steps can change, which --dtype float16 rounds away: leave "
            "--dtype out, and give --bf16 or --fp16 for speed"
        )
