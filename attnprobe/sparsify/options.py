"""Options of `attnprobe sparsify`. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.sparsify.methods import METHODS
from attnprobe.training.options import (
    LARGEST_RATE,
    DistillingOptions,
    require_above_zero,
    require_choices,
    require_from_zero,
    require_whole,
)

GRANULARITY_NAMES = ("cell", "offset", "block", "head")
"""The names in `attnprobe.masks.granularity`, which needs torch; a test compares. The same holds for the next three."""
RELAXATION_NAMES = ("straight-through", "hard-concrete", "hard", "soft")
SHARING_NAMES = ("none", "sites", "heads")
DIAGONAL_NAMES = ("free", "keep", "drop")
TRAINABLE = ("gates", "all")
ENGINES = ("local", "ray")
SPLITS = ("train", "eval")


@dataclass(frozen=True, kw_only=True)
class SparsifyOptions(DistillingOptions):
    """What is learnt, beside which controls, and how. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    target_sparsity: tuple[str, ...] = field(
        default=("0.9",),
        metadata={
            "help": "Share of valid cells to remove, over the real lengths of the training data: one or several, as "
            "0.9 or 90%."
        },
    )
    methods: tuple[str, ...] = field(
        default=("dam", "random", "magnitude", "window", "star"),
        metadata={
            "help": "Learnt masks and controls. "
            + ". ".join(f"{name}: {m.summary}" for name, m in METHODS.items())
            + ".",
            "choices": tuple(METHODS),
        },
    )
    granularity: str = field(
        default="offset",
        metadata={
            "help": "Which cells share a gate. offset: those of one distance, and apart along the rows and columns of "
            "special tokens (DAM_s); works at any length. cell: none (DAM_u). block: squares. head: whole heads.",
            "choices": GRANULARITY_NAMES,
        },
    )
    share: str = field(
        default="none",
        metadata={"help": "Whether one set of gates is for all sites, or all heads.", "choices": SHARING_NAMES},
    )
    diagonal: tuple[str, ...] = field(
        default=("free",),
        metadata={
            "help": "Cells of a token to itself: free: as the method has them; keep; drop. Several make several masks.",
            "choices": DIAGONAL_NAMES,
        },
    )
    symmetric: bool = field(default=False, metadata={"help": "offset: i - j and j - i share a gate."})
    segment_aware: bool = field(
        default=False, metadata={"help": "offset: cells between the two texts of a pair have gates of their own."}
    )
    block_size: int = field(default=16, metadata={"help": "block: side of a square, in tokens; divides --max-length."})
    train: str = field(
        default="gates",
        metadata={
            "help": "gates: the checkpoint's weights stay as they are. all: they learn too.",
            "choices": TRAINABLE,
        },
    )
    tune_controls: bool = field(
        default=False,
        metadata={
            "help": "Tune the weights under each control's mask too, with every seed, for as many steps as DAM has."
        },
    )
    gate_learning_rate: float = field(default=0.03, metadata={"help": "Learning rate of the gates."})
    relaxation: str = field(
        default="straight-through",
        metadata={
            "help": "How gates are drawn. straight-through: open or closed, with the gradient of the logit. "
            "hard: with that of the Gumbel-sigmoid. hard-concrete: Gumbel-sigmoid, stretched and cut. soft: as it is.",
            "choices": RELAXATION_NAMES,
        },
    )
    temperature: float = field(
        default=0.3,
        metadata={"help": "Temperature of the gates: the scale of the noise beside which their logits count."},
    )
    final_temperature: float = field(
        default=0.005, metadata={"help": "Temperature to which it falls in the last tenth of the gates' steps."}
    )
    ramp: float = field(
        default=0.6, metadata={"help": "Share of the gates' steps over which the density falls to the target."}
    )
    distill_hidden: float = field(
        default=0.0,
        metadata={
            "help": "With --train all: weight of the distance of the last hidden states from the dense model's, which "
            "then runs beside it in every step."
        },
    )
    settle: float = field(
        default=0.4,
        metadata={"help": "With --train all: share of the steps, the last, in which the mask is fixed."},
    )
    lambda_: float | None = field(
        default=None,
        metadata={
            "flag": "--lambda",
            "help": "In place of targets: price of the expected density (0 to 1) in the loss, whatever the model's "
            "size.",
        },
    )
    paper_form: bool = field(
        default=False,
        metadata={
            "help": "For comparison, as SparseBERT's code has it: gates added to the scores as -10000 (1 - M), "
            "--lambda (default 1e-4) on their sum, hard gates at temperature 1."
        },
    )
    count_on: str = field(
        default="train",
        metadata={
            "help": "Data over whose lengths sparsity is held at the target: the training rows, or the rows measured "
            "on (their lengths and special tokens alone).",
            "choices": SPLITS,
        },
    )
    draws: int = field(default=3, metadata={"help": "Draws of the random control."})
    max_drop: float = field(
        default=1.0,
        metadata={
            "help": "Export the sparsest model that loses at most so many points (hundredths) of the metric, by the "
            "upper end of the 95 % interval on the rows held out."
        },
    )
    kernel_block: int = field(
        default=128, metadata={"help": "Side of the blocks that block sparsity counts, in tokens."}
    )
    engine: str = field(
        default="local",
        metadata={"help": "Where the points of a sweep run: here, or on a Ray cluster.", "choices": ENGINES},
    )
    address: str | None = field(
        default=None,
        metadata={"help": "ray: address of the cluster, as `ray.init` has it. [default: one is started here]"},
    )
    num_cpus: float = field(default=1.0, metadata={"help": "ray: CPUs that a point asks for."})
    num_gpus: float = field(default=0.0, metadata={"help": "ray: GPUs that a point asks for."})
    window: int = field(default=4, metadata={"help": "Reach of the class `neighbour`, in tokens."})

    def __post_init__(self) -> None:
        super().__post_init__()
        require_from_zero(("--distill-hidden", self.distill_hidden, LARGEST_RATE))
        if self.distill_hidden and self.train != "all":
            raise UsageError("--distill-hidden needs weights that learn: give --train all, or leave it out")
        if self.distill_hidden and not self.distill:
            raise UsageError(
                "--distill-hidden goes with --distill above 0, which asks for the dense model's outputs too"
            )
        _require_choices(self)
        _require_ranges(self)
        if self.final_temperature > self.temperature:
            raise UsageError(
                f"--final-temperature must not be above --temperature, and {self.final_temperature} is above "
                f"{self.temperature}"
            )
        if self.lambda_ is not None and not 0 < self.lambda_ < math.inf:
            raise UsageError(f"--lambda must be above 0 and finite, not {self.lambda_}")
        if self.granularity != "offset" and (self.symmetric or self.segment_aware):
            raise UsageError("--symmetric and --segment-aware are for --granularity offset: leave them out")
        if self.tune_controls and self.train != "all":
            raise UsageError("--tune-controls tunes weights, so it needs --train all")
        if self.engine != "ray" and self.address is not None:
            raise UsageError("--address is of a Ray cluster: give --engine ray as well")
        _ = self.targets

    @property
    def targets(self) -> tuple[float, ...]:
        """The target sparsities, ascending. Raises: UsageError."""
        return tuple(sorted({parse_share("--target-sparsity", text) for text in self.target_sparsity}))


def parse_share(flag: str, text: str) -> float:
    """A share such as 0.9 or 90%, above 0 and below 1. Raises: UsageError."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(f"{float(number) / (100 if percent else 1):.6g}")  # as points are named
    except ValueError:
        raise UsageError(f"{flag} must be a share such as 0.9 or 90%, not {text!r}") from None
    if not 0 < value < 1:
        hint = f"; for {text} per cent write {text}%" if not percent and 1 < value <= 100 else ""
        raise UsageError(f"{flag} must lie between 0 and 1 (0 % and 100 %), not {text}{hint}")
    return value


def _require_choices(options: SparsifyOptions) -> None:
    require_choices(
        ("--methods", options.methods, tuple(METHODS)),
        ("--granularity", (options.granularity,), GRANULARITY_NAMES),
        ("--share", (options.share,), SHARING_NAMES),
        ("--diagonal", options.diagonal, DIAGONAL_NAMES),
        ("--train", (options.train,), TRAINABLE),
        ("--relaxation", (options.relaxation,), RELAXATION_NAMES),
        ("--engine", (options.engine,), ENGINES),
        ("--count-on", (options.count_on,), SPLITS),
    )
    if not options.target_sparsity:
        raise UsageError("--target-sparsity must name at least one share, such as 0.9")


def _require_ranges(options: SparsifyOptions) -> None:
    require_whole(
        ("--block-size", options.block_size, 1),
        ("--draws", options.draws, 1),
        ("--kernel-block", options.kernel_block, 1),
        ("--window", options.window, 2),
    )
    require_above_zero(
        ("--temperature", options.temperature, math.inf),
        ("--final-temperature", options.final_temperature, math.inf),
        ("--gate-learning-rate", options.gate_learning_rate, LARGEST_RATE),
    )
    require_from_zero(
        ("--ramp", options.ramp, 1.0),
        ("--settle", options.settle, 0.9),
        ("--max-drop", options.max_drop, 100.0),
        ("--num-cpus", options.num_cpus, math.inf),
        ("--num-gpus", options.num_gpus, math.inf),
    )
