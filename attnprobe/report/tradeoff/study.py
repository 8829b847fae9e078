"""One model on one data set: its points, and the learnt masks held against dense, controls and limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnprobe.report.tradeoff.means import Line, Mean, average, means_of
from attnprobe.report.tradeoff.points import Point

EQUAL = 0.005
"""How much sparser a control may be and still count as equally sparse: half a point, as targets are met."""

DEFAULT_LIMIT = 0.01
"""What a learnt mask may lose to be called a good one where the run set no limit."""

COMPARED = (
    f"A control is taken at the highest sparsity that is not above the learnt mask's (by more than {100 * EQUAL:g} "
    "points), over the data measured on or over the data on which targets are held. The interval of a difference is "
    "made from those of the two drops, each paired with the dense model over the same examples, added in quadrature; "
    "what the two masks have in common is not taken off, so it is rather wide."
)
"""What a comparison is, for captions."""

Verdict = Literal["ahead", "no difference", "behind", "no interval"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A learnt mask against a control: the difference of their metrics, positive where the learnt one is better."""

    learnt: Mean
    control: Mean
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return "no interval"
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "no difference"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The points of one checkpoint on one data set by one metric, from one run or several.

    Attributes:
        name: what it is of, for headings.
        points: in the order of the tables, each once.
        means: over seeds; see `means_of`.
        max_drop: the limit for an export in the metric's unit; NaN where there was none, or the runs' differ.
        reason: why this model, or none, was exported; a sentence, or nothing.
    """

    name: str
    points: Sequence[Point]
    means: Sequence[Mean]
    max_drop: float
    reason: str = ""

    @property
    def metric(self) -> str:
        """The metric's name, in words."""
        names = [point.metric_name for point in self.points if point.metric_name]
        return names[0].replace("_", " ") if names else "metric"

    @property
    def dense(self) -> Mean | None:
        """The untouched model."""
        return next((mean for mean in self.means if mean.line.kind == "dense" and not mean.line.tuned), None)

    @property
    def tuned_dense(self) -> Mean | None:
        """The model without a mask, its weights tuned for as many steps."""
        return next((mean for mean in self.means if mean.line.kind == "dense" and mean.line.tuned), None)

    @property
    def masked(self) -> list[Mean]:
        """All but the dense models, where there is a figure."""
        return [mean for mean in self.means if mean.line.kind != "dense" and math.isfinite(mean.value)]

    @property
    def learnt(self) -> list[Mean]:
        """Learnt masks."""
        return [mean for mean in self.masked if mean.line.kind == "learnt"]

    @property
    def controls(self) -> list[Mean]:
        """Masks that were not learnt."""
        return [mean for mean in self.masked if mean.line.kind != "learnt"]

    @property
    def exported(self) -> Mean | None:
        """The mean that the exported model belongs to; the sparsest where several runs exported one."""
        found = [mean for mean in self.masked if mean.exported]
        return max(found, key=lambda mean: mean.sparsity, default=None)

    @property
    def best(self) -> Mean | None:
        """The learnt mask that the finding is about, chosen on the rows held out.

        The exported one, if that was learnt. Otherwise the sparsest whose loss is within the limit, or, where none
        is, the one that loses least.
        """
        exported = self.exported
        if exported is not None and exported.line.kind == "learnt":
            return exported
        limit = self.max_drop if math.isfinite(self.max_drop) else DEFAULT_LIMIT
        judged = [(loss, mean) for mean in self.learnt if math.isfinite(loss := _loss(mean))]
        within = [mean for loss, mean in judged if loss <= limit]
        if within:
            return max(within, key=lambda mean: mean.sparsity)
        return min(judged, key=lambda pair: pair[0])[1] if judged else next(iter(self.learnt), None)


def study_of(name: str, points: Sequence[Point], *, max_drop: float, reason: str = "") -> Study:
    """The study of some points."""
    return Study(name=name, points=points, means=means_of(points), max_drop=max_drop, reason=reason)


def compare(learnt: Mean, control: Mean) -> Comparison:
    """The difference of two masks with its interval, from their drops where they have them."""
    difference = control.drop - learnt.drop
    low = difference - math.hypot(control.drop - control.drop_low, learnt.drop_high - learnt.drop)
    high = difference + math.hypot(control.drop_high - control.drop, learnt.drop - learnt.drop_low)
    if not (math.isfinite(low) and math.isfinite(high)):
        difference = learnt.value - control.value
        low = difference - math.hypot(learnt.value - learnt.low, control.high - control.value)
        high = difference + math.hypot(learnt.high - learnt.value, control.value - control.low)
    return Comparison(learnt=learnt, control=control, difference=difference, low=low, high=high)


def comparisons(study: Study, learnt: Mean) -> list[Comparison]:
    """A learnt mask against every line of controls, at equal or lower sparsity; the strongest control first."""
    nearest: dict[Line, Mean] = {}
    for control in study.controls:
        if _as_sparse(control, learnt):
            other = nearest.get(control.line)
            if other is None or (control.sparsity, control.value) > (other.sparsity, other.value):
                nearest[control.line] = control
    found = [compare(learnt, control) for control in nearest.values()]
    return sorted(found, key=lambda comparison: comparison.difference)


def _as_sparse(control: Mean, learnt: Mean) -> bool:
    """Whether a control is not sparser than a learnt mask.

    Masks that meet one target over training data of one length distribution differ over data of another.
    """
    fields = ("cell_sparsity", "counted_sparsity")
    return any(control.of(field) <= learnt.of(field) + EQUAL for field in fields)


def front(study: Study, field: str) -> list[Mean]:
    """The Pareto front by rising sparsity: means that no other equals or exceeds in both sparsity and metric."""
    known = [mean for mean in study.masked if math.isfinite(mean.of(field))]
    ranked = sorted(known, key=lambda mean: (-mean.of(field), -mean.value))
    best, found = -math.inf, []
    for candidate in ranked:
        if candidate.value > best:
            best = candidate.value
            found.append(candidate)
    return found[::-1]


def _loss(candidate: Mean) -> float:
    heldout = average(point.heldout_drop for point in candidate.points)
    return heldout if math.isfinite(heldout) else candidate.drop
