"""Options of `attnprobe retrofit`. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.sparsify.options import parse_share
from attnprobe.training.options import (
    LARGEST_RATE,
    DistillingOptions,
    require_above_zero,
    require_choices,
    require_from_zero,
    require_whole,
)

VARIANT_NAMES = ("sum", "mean")
"""The names in `attnprobe.residual.stream`, which needs torch; a test compares. The same holds for the next."""
GATES_BY_NAMES = ("site", "head")
ALIGNMENTS = ("scores", "none")
ENDS = ("canonical", "learned")
CONTROLS = ("continued", "immediate", "unaligned")
DEEPEST_SUM = 24
"""Sites up to which the running sum is the default: deeper, its scores grow too sharp, and the mean takes its place."""


@dataclass(frozen=True, kw_only=True)
class RetrofitOptions(DistillingOptions):
    """What is trained how, beside which controls. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    variants: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Residual attention: sum: scores are summed over sites. mean: softmax sees their running mean. "
            f"[default: sum up to {DEEPEST_SUM} sites, else mean]",
            "choices": VARIANT_NAMES,
        },
    )
    ends: tuple[str, ...] = field(
        default=("canonical",),
        metadata={
            "help": "End state: canonical: gates are driven to 1, which is RealFormer. learned: gates stay as learnt.",
            "choices": ENDS,
        },
    )
    align: str = field(
        default="scores",
        metadata={
            "help": "Order of the heads before training: scores: heads of adjacent sites are matched by the "
            "correlation of their scores. none: as they are.",
            "choices": ALIGNMENTS,
        },
    )
    gate: str = field(
        default="head",
        metadata={"help": "Whether each site or each head has a gate of its own.", "choices": GATES_BY_NAMES},
    )
    controls: tuple[str, ...] = field(
        default=CONTROLS,
        metadata={
            "help": "continued: as many steps without residual attention. immediate: gates of 1 from the first step. "
            "unaligned: heads as they are.",
            "choices": CONTROLS,
        },
    )
    max_steps: int = field(default=250, metadata={"help": "Optimizer steps."})
    learning_rate: float = field(
        default=3e-5, metadata={"help": "Highest learning rate of the weights; warmed up, then falling to 0."}
    )
    distill: float = field(
        default=0.0,
        metadata={
            "help": "Share of the loss that is the divergence from the dense model; the rest is the objective's loss."
        },
    )
    gate_learning_rate: float = field(default=0.01, metadata={"help": "Learning rate of the gates."})
    ramp: float = field(
        default=0.5,
        metadata={"help": "Share of the steps over which gates are driven to 1, the upper sites' first."},
    )
    sparsify: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Afterwards learn masks at these sparsities, as 0.9 or 90%, for the retrofitted models and the "
            "continued ones, weights frozen: what each can do without."
        },
    )
    sparsify_steps: int = field(default=300, metadata={"help": "Optimizer steps of each of these masks."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradient_checkpointing:
            raise UsageError(
                "--gradient-checkpointing can't be had with residual attention: a layer that is recomputed alone does "
                "not have the scores of the layers below it; leave it out"
            )
        for text in self.sparsify:
            parse_share("--sparsify", text)
        if self.variants:
            require_choices(("--variants", self.variants, VARIANT_NAMES))
        if self.controls:
            require_choices(("--controls", self.controls, CONTROLS))
        require_choices(
            ("--ends", self.ends, ENDS),
            ("--align", (self.align,), ALIGNMENTS),
            ("--gate", (self.gate,), GATES_BY_NAMES),
        )
        require_whole(("--sparsify-steps", self.sparsify_steps, 1))
        require_above_zero(("--gate-learning-rate", self.gate_learning_rate, LARGEST_RATE))
        require_from_zero(("--ramp", self.ramp, 1.0))
