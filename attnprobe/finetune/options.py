"""Options of `attnprobe finetune`. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprobe.errors import UsageError
from attnprobe.training.options import TrainingOptions, require_choices

MATCHES = ("steps", "time")


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(TrainingOptions):
    """How a checkpoint is fine-tuned with every method. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    train_rows: int | None = field(
        default=None, metadata={"help": "Fine-tune on so many of the rows, drawn at random. [default: all]"}
    )
    match: tuple[str, ...] = field(
        default=("steps",),
        metadata={
            "help": "What methods are given alike: steps: --max-steps. time: as many steps as fit into the time that "
            "the dearest method takes for --max-steps. Both: both.",
            "choices": MATCHES,
        },
    )
    max_steps: int = field(default=300, metadata={"help": "Optimizer steps."})
    warmup: float = field(default=0.1, metadata={"help": "Share of the steps in which the weights' rate rises."})

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choices(("--match", self.match, MATCHES))
        if self.train_rows is not None and self.train_rows < 2:
            raise UsageError(f"--train-rows must be at least 2, not {self.train_rows}")
        if "steps" not in self.match:
            raise UsageError("--match time needs the equal steps too, which tell what a method costs: give steps,time")
