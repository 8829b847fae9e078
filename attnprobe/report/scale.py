"""Axis scales: linear, logarithmic for ratios, symmetric-logarithmic for effects of very different size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

SPREAD = 30.0
"""Largest over smallest magnitude from which small effects can no longer be read on a linear axis."""
DECADES = 3
"""Decades of the largest magnitude that a symmetric-logarithmic axis spreads out; below, it is linear."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Where a value is drawn. `symlog`: sign(x) log10(1 + |x| / threshold), so 0 stays 0."""

    kind: Literal["linear", "log", "symlog"] = "linear"
    threshold: float = 1.0

    def __call__(self, value: float) -> float:
        """The drawn position of a value; NaN stays NaN."""
        if math.isnan(value) or self.kind == "linear":
            return value
        if self.kind == "log":
            return math.log10(max(value, self.threshold))
        return math.copysign(math.log10(1 + abs(value) / self.threshold), value)

    def ticks(self, low: float, high: float) -> list[float]:
        """Values to mark between two values, at most about nine; empty where the chart's own ticks are right."""
        if self.kind == "linear":
            return []
        if self.kind == "log":
            steps = [m * 10.0**k for k in range(-8, 9) for m in (1, 2, 5)]
            inside = [step for step in steps if low <= step <= high]
            return inside if len(inside) <= 7 else [step for step in inside if round(math.log10(step), 6) % 1 == 0]
        first = round(math.log10(self.threshold))
        powers = [10.0**k for k in range(first, math.ceil(math.log10(max(abs(low), abs(high), self.threshold))) + 1)]
        positive = [power for power in powers if power <= high * 1.001]
        negative = [-power for power in reversed(powers) if power <= -low * 1.001]
        return [*negative, 0.0, *positive]

    @property
    def note(self) -> str:
        """What to add to an axis title."""
        return "" if self.kind == "linear" else ", log steps"


def choose_scale(
    values: Iterable[float], *, ratio: bool = False, noise: float = 0.0, decades: float = DECADES
) -> Scale:
    """Linear unless the magnitudes differ by more than `SPREAD`.

    Nothing is spread out that is smaller than `noise` (the smallest uncertainty of the values), or more than
    `decades` decades below the largest.
    """
    sizes = sorted(abs(value) for value in values if math.isfinite(value) and value != 0)
    if not sizes or sizes[-1] / sizes[0] <= (3 if ratio else SPREAD):
        return Scale()
    floor = max(sizes[0], noise, sizes[-1] / 10 ** (decades + 0.5))
    if ratio:
        return Scale(kind="log", threshold=floor)
    return Scale(kind="symlog", threshold=10.0 ** math.floor(math.log10(floor)))
