"""Means over seeds: points that differ in seed or draw alone are one figure, with an interval for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from attnprobe.report.tradeoff.labels import DENSE, kind, line_name
from attnprobe.report.tradeoff.points import Point

CONFIDENCE = 0.95
INTERVALS = (
    "Intervals are 95 %. Of one seed: the bootstrap over examples. Of several: the half widths of the mean bootstrap "
    "interval and of Student's interval for the mean over the seeds, added in quadrature."
)
"""What intervals of means are, for captions."""


@dataclass(frozen=True, kw_only=True, order=True)
class Line:
    """What a line of the trade-off has in common: all but target, seed and draw."""

    method: str
    granularity: str
    sharing: str
    diagonal: str
    train: str

    @property
    def name(self) -> str:
        """How it is called."""
        return line_name(self.method, self.granularity, self.sharing, self.diagonal, self.train)

    @property
    def kind(self) -> str:
        """`dense`, `learnt`, `scored`, `random` or `pattern`."""
        return kind(self.method)

    @property
    def tuned(self) -> bool:
        """Whether the checkpoint's weights changed."""
        return self.train in ("weights", "all")


@dataclass(frozen=True, kw_only=True, eq=False)
class Mean:
    """A line at one target: the mean over its points, which differ in seed or draw alone.

    `target` is NaN where there is none; figures and their intervals are those of `Point`.
    """

    line: Line
    target: float
    points: Sequence[Point]
    value: float
    low: float
    high: float
    drop: float
    drop_low: float
    drop_high: float

    def of(self, name: str) -> float:
        """The mean of a figure of the points; NaN where none has it."""
        return average(getattr(point, name) for point in self.points)

    @property
    def sparsity(self) -> float:
        """The mean cell sparsity, 0 to 1."""
        return self.of("cell_sparsity")

    @property
    def repeats(self) -> str:
        """How many points it is the mean of, in words; nothing for one."""
        seeds = len({point.seed for point in self.points})
        if len(self.points) == 1:
            return ""
        return f"{len(self.points)} {'seeds' if seeds == len(self.points) else 'draws'}"

    @property
    def exported(self) -> Point | None:
        """The point whose model was exported, if it is one of these."""
        return next((point for point in self.points if point.exported), None)

    @property
    def kept(self) -> dict[str, float]:
        """The mean share kept of each position class that the data has."""
        names = dict.fromkeys(name for point in self.points for name in point.kept)
        return {name: average(point.kept.get(name, math.nan) for point in self.points) for name in names}


def means_of(points: Iterable[Point]) -> list[Mean]:
    """Every line at every target: dense first, then learnt ones, then controls; by rising target."""
    groups: dict[tuple[Line, float | None], list[Point]] = {}
    for point in points:
        target = None if math.isnan(point.target) else round(point.target, 6)
        groups.setdefault((line_of(point), target), []).append(point)
    found = [_mean(line, math.nan if target is None else target, group) for (line, target), group in groups.items()]
    return sorted(found, key=lambda one: (_rank(one.line), one.line, one.target if one.target > 0 else -1))


def line_of(point: Point) -> Line:
    """The line of a point."""
    return Line(
        method=point.method,
        granularity=point.granularity,
        sharing=point.sharing,
        diagonal=point.diagonal,
        train=point.train,
    )


def over_seeds(values: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> tuple[float, float, float]:
    """The mean over seeds with its interval: (value, low, high); see `INTERVALS`.

    The examples are the same for every seed, so that their share of the uncertainty does not shrink with more seeds:
    the half widths of their bootstrap intervals are averaged. Student's interval, t sd / sqrt(seeds), is for the
    seeds'. Without a bootstrap interval there is none for the mean.
    """
    value = average(values)
    down = average(v - low for v, low in zip(values, lows, strict=True))
    up = average(high - v for v, high in zip(values, highs, strict=True))
    finite = [v for v in values if math.isfinite(v)]
    spread = 0.0
    if len(finite) > 1:
        quantile = float(stdtrit(len(finite) - 1, (1 + CONFIDENCE) / 2))
        spread = quantile * float(np.std(finite, ddof=1)) / math.sqrt(len(finite))
    return value, value - math.hypot(down, spread), value + math.hypot(up, spread)


def average(values: Iterable[float]) -> float:
    """The mean of the numbers among some values; NaN where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _mean(line: Line, target: float, points: Sequence[Point]) -> Mean:
    def over(name: Callable[[Point], tuple[float, float, float]]) -> tuple[float, float, float]:
        values, lows, highs = zip(*map(name, points), strict=True)
        return over_seeds(values, lows, highs)

    value, low, high = over(lambda point: (point.value, point.low, point.high))
    drop, drop_low, drop_high = over(lambda point: (point.drop, point.drop_low, point.drop_high))
    return Mean(
        line=line,
        target=target,
        points=points,
        value=value,
        low=low,
        high=min(high, max(value, 1.0)) if math.isfinite(high) else high,  # no metric exceeds 1
        drop=drop,
        drop_low=drop_low,
        drop_high=drop_high,
    )


def _rank(line: Line) -> int:
    return (DENSE, "learnt", "random", "scored", "pattern").index(line.kind)
