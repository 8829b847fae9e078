"""Options of importance runs. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.importance.methods import LEVELS, METHODS
from attnprobe.options import CLASSES_HELP

ABLATION_LEVELS = tuple(LEVELS)
TAYLOR_FORMS = ("row-exact", "derivative")
LEARNED_SHARINGS = ("none", "sites")


@dataclass(frozen=True, kw_only=True)
class ImportanceOptions:
    """What is probed and how. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    methods: tuple[str, ...] = field(
        default=tuple(name for name, method in METHODS.items() if method.default),
        metadata={
            "help": "Methods, by commas. " + ". ".join(f"{name}: {method.summary}" for name, method in METHODS.items()),
            "choices": tuple(METHODS),
        },
    )
    classes: tuple[str, ...] = field(
        default=(), metadata={"help": f"Position classes, by commas: {CLASSES_HELP}. [default: all]"}
    )
    window: int = field(default=4, metadata={"help": "Reach of the class `neighbour`, in tokens."})
    include_special: bool = field(
        default=True, metadata={"help": "Count cells of special tokens, or leave them out of every figure."}
    )
    max_offset: int = field(default=8, metadata={"help": "Largest |i - j| of the offset profile, in tokens."})
    ablation_levels: tuple[str, ...] = field(
        default=("class", "site", "head", "class_site", "offset"),
        metadata={
            "help": "Levels that ablation covers, by commas; class_head takes a pass for every class and head.",
            "choices": ABLATION_LEVELS,
        },
    )
    control_draws: int = field(
        default=4, metadata={"help": "Draws of matched random cells for each class (1 at the finer levels)."}
    )
    taylor_form: str = field(
        default="row-exact",
        metadata={"help": "Exact in each row, or the plain derivative at the full gate.", "choices": TAYLOR_FORMS},
    )
    n_steps: int = field(default=32, metadata={"help": "Steps of integrated gradients."})
    internal_batch_size: int = field(
        default=32, metadata={"help": "Examples x steps in one pass of integrated gradients."}
    )
    learned_sharing: str = field(
        default="none",
        metadata={
            "help": "Gates of `learned`: every site has its own, or all sites share one set, as in SparseBERT.",
            "choices": LEARNED_SHARINGS,
        },
    )
    learned_steps: int = field(default=60, metadata={"help": "Steps in which `learned` learns, of one batch each."})
    learned_price: float = field(
        default=1.0,
        metadata={
            "help": "What an open gate costs in `learned`: at 1 it pays if it is worth more than the average cell."
        },
    )
    max_cells: int = field(
        default=20_000_000,
        metadata={
            "help": "Most gate cells (examples x sites x heads x queries x keys) in memory; batches are split to fit."
        },
    )
    resamples: int = field(default=1000, metadata={"help": "Bootstrap resamples behind each 95 % interval."})

    def __post_init__(self) -> None:
        for flag, values, choices in (
            ("--methods", self.methods, tuple(METHODS)),
            ("--ablation-levels", self.ablation_levels, ABLATION_LEVELS),
            ("--taylor-form", (self.taylor_form,), TAYLOR_FORMS),
            ("--learned-sharing", (self.learned_sharing,), LEARNED_SHARINGS),
        ):
            if not values:
                raise UsageError(f"{flag} must name at least one of {', '.join(choices)}")
            for value in values:
                if value not in choices:
                    raise UsageError(f"{flag}: unknown {value!r}; choose from {', '.join(choices)}")
        if self.window < 2:
            raise UsageError(f"--window must be at least 2 (offset 1 is a class of its own), not {self.window}")
        for flag, number, least in (
            ("--max-offset", self.max_offset, 0),
            ("--control-draws", self.control_draws, 1),
            ("--n-steps", self.n_steps, 1),
            ("--internal-batch-size", self.internal_batch_size, 1),
            ("--learned-steps", self.learned_steps, 1),
            ("--max-cells", self.max_cells, 1),
            ("--resamples", self.resamples, 10),
        ):
            if number < least:
                raise UsageError(f"{flag} must be at least {least}, not {number}")
        if not (math.isfinite(self.learned_price) and self.learned_price >= 0):
            raise UsageError(f"--learned-price must be 0 or more, and finite, not {self.learned_price}")
