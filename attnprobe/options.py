"""Options that commands share, as the library takes them. Knows no torch, so that help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.masks.patterns import PATTERNS, pattern_parameters

OBJECTIVES = ("auto", "task", "lm", "fidelity")
POOLINGS = ("auto", "mean", "cls", "tokens")
DEFAULT_LENGTH = 128
"""Longest input in tokens unless told otherwise; checkpoints that read less are not asked for more."""

LARGEST_SEED = 2**32 - 1
"""What every generator of random numbers takes."""

CLASSES_HELP = (
    "diagonal, cls_key, cls_query, sep_key, sep_query, previous, next, neighbour, cross_segment, other "
    "(causal models: first_key, first_query), and the unions cls, sep, special, window"
)
"""The names in `attnprobe.data.positions`, for help texts; a test compares."""

PATTERNS_HELP = "; ".join(f"{name}: {pattern.summary}" for name, pattern in PATTERNS.items())


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a checkpoint is opened and scored. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    objective: str = field(
        default="auto",
        metadata={
            "help": "What the checkpoint should keep: the task's loss, the language-model loss, or fidelity to the "
            "dense model. auto: what its trained head allows.",
            "choices": OBJECTIVES,
        },
    )
    pooling: str = field(
        default="auto",
        metadata={
            "help": "Which embedding fidelity compares when there is no head: pooled (mean, cls) or every token's. "
            "auto: as the checkpoint states, else tokens.",
            "choices": POOLINGS,
        },
    )
    max_length: int | None = field(
        default=None,
        metadata={
            "help": f"Longest input in tokens, special ones included. [default: the model's, at most {DEFAULT_LENGTH}]"
        },
    )
    per_device_batch_size: int = field(default=32, metadata={"help": "Examples in a batch."})
    seed: int = field(default=0, metadata={"help": "Seed of everything that is drawn."})
    device: str = field(default="cpu", metadata={"help": "cpu, cuda or cuda:N."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16, float16 or float64."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run Python code that comes with the checkpoint."})

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"--objective must be one of {', '.join(OBJECTIVES)}, not {self.objective!r}")
        if self.pooling not in POOLINGS:
            raise UsageError(f"--pooling must be one of {', '.join(POOLINGS)}, not {self.pooling!r}")
        if self.max_length is not None and self.max_length < 1:
            raise UsageError(f"--max-length must be at least 1, not {self.max_length}")
        if self.per_device_batch_size < 1:
            raise UsageError(f"--per-device-batch-size must be at least 1, not {self.per_device_batch_size}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"--seed must be from 0 to {LARGEST_SEED}, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What is closed at every site and head. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    drop: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": f"Remove a position class: {CLASSES_HELP}; or a region: cls_column, cls_row, sep_column, sep_row "
            "(with their cells of the diagonal). Repeatable."
        },
    )
    pattern: str | None = field(
        default=None, metadata={"help": f"Keep only the cells of a fixed pattern. {PATTERNS_HELP}."}
    )
    pattern_window: int | None = field(
        default=None,
        metadata={
            "help": "Reach of the pattern in tokens; of strided and fixed, the stride. [default: the pattern's own]"
        },
    )
    window: int = field(default=4, metadata={"help": "Reach of the class `neighbour`, in tokens."})
    backend: str = field(default="eager", metadata={"help": "eager or sdpa."})
    resamples: int = field(default=1000, metadata={"help": "Bootstrap resamples behind the 95 % interval."})

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UsageError(f"--window must be at least 2 (offset 1 is a class of its own), not {self.window}")
        if self.pattern_window is not None and self.pattern_window < 0:
            raise UsageError(f"--pattern-window must be 0 or more, not {self.pattern_window}")
        if self.pattern is not None and self.pattern not in PATTERNS:
            raise UsageError(f"--pattern must be one of {', '.join(PATTERNS)}, not {self.pattern!r}")
        try:
            _ = self.pattern_parameters
        except UsageError as error:
            raise UsageError(f"--pattern-window: {error}") from error
        if self.resamples < 10:
            raise UsageError(f"--resamples must be at least 10, not {self.resamples}")

    @property
    def pattern_parameters(self) -> dict[str, int]:
        """All parameters of the pattern: its own, and `pattern_window` as its size. None of them without a pattern."""
        if self.pattern is None:
            return {}
        size = {} if self.pattern_window is None else {PATTERNS[self.pattern].size: self.pattern_window}
        return pattern_parameters(self.pattern, size)
