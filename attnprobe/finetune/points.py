"""The trainings of a finetune run. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnprobe.dropout.options import SCHEDULES, DropoutOptions
from attnprobe.finetune.options import FinetuneOptions


@dataclass(frozen=True, kw_only=True)
class Training:
    """One row of ``finetune.csv``.

    Attributes:
        dropout: the method.
        variant: what of its options changes what it is, in words; empty where there is nothing.
        rate: the method's.
        match: ``steps`` or ``time``: what it has in common with the other methods.
        seed: of the head's weights, of order and of everything that is dropped.
    """

    dropout: str
    variant: str = ""
    rate: float = 0.0
    match: str = "steps"
    seed: int = 0

    @property
    def name(self) -> str:
        """A name that tells the trainings of a run apart, fit for files."""
        return "-".join([self.dropout, *(["time"] if self.match == "time" else []), f"s{self.seed}"])


def plan_trainings(options: FinetuneOptions, dropout: DropoutOptions, seed: int) -> list[Training]:
    """All rows: every method with every seed, first with equal steps. ``seed``: where the options name no seeds."""
    return [
        Training(
            dropout=method, variant=variant_of(method, dropout), rate=dropout.rate_of[method], match=match, seed=number
        )
        for match in sorted(options.match)
        for method in dropout.dropout
        for number in options.seed_numbers or (seed,)
    ]


def variant_of(method: str, options: DropoutOptions) -> str:
    """What of the options changes what a method is."""
    if method == "scheduled":
        return options.schedule if options.schedule in SCHEDULES else Path(options.schedule).name
    if method != "attendout":
        return ""
    parts = [options.gnet_training]
    parts += [options.reward_scope] if options.gnet_training == "reinforce" else []
    parts += [options.reward] if options.reward != "loss" else []
    return ", ".join(parts)
