"""What the trade-off's curves stand in: axes, the dense model across, the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnprobe.report.figures import GRID, INK, axis, plain
from attnprobe.report.numbers import number, rounded, rounded_all, typeset
from attnprobe.report.page import Json
from attnprobe.report.scale import Scale, choose_scale
from attnprobe.report.tradeoff.labels import Sparsity
from attnprobe.report.tradeoff.means import Mean
from attnprobe.report.tradeoff.points import Point
from attnprobe.report.tradeoff.study import DEFAULT_LIMIT, Study

CLOSE, CLOSE_LEAST = 3, 0.03
"""The close view reaches this many limits below dense, but at least so far in the metric's unit."""
NEAR = 0.1
"""The largest limit, in the metric's unit, that an axis makes room for."""
STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Distances of marks on an axis of per cents."""
ROOM = 0.055
"""The least distance of two marks, as a share of their axis."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What is drawn up: the metric, or the drop in points; on which scale; from where, if not from the least."""

    title: str
    drop: bool = False
    scale: Scale = field(default_factory=Scale)
    low: float = math.nan

    def figures(self, of: Mean | Point) -> tuple[float, float, float]:
        """The figure with its interval: (value, low, high)."""
        if self.drop:
            return 100 * of.drop, 100 * of.drop_low, 100 * of.drop_high
        return of.value, of.low, of.high

    def place(self, of: Mean | Point) -> tuple[float, float, float]:
        """Where figure and interval are drawn."""
        value, low, high = map(self.scale, self.figures(of))
        return value, low, high


def metric_frame(study: Study) -> Frame:
    """The metric, all of it."""
    return Frame(title=study.metric)


def close_frame(study: Study, drawn: Sequence[Mean]) -> Frame | None:
    """The metric near dense; None where that would show all of the means, or none."""
    if study.dense is None or not math.isfinite(study.dense.value):
        return None
    limit = study.max_drop if math.isfinite(study.max_drop) else DEFAULT_LIMIT
    low = study.dense.value - max(CLOSE * limit, CLOSE_LEAST)
    below = sum(mean.value < low for mean in drawn)
    if not 0 < below < len(drawn):
        return None
    verb = "lies" if below == 1 else "lie"
    return Frame(title=f"{study.metric}; {below} of {len(drawn)} masks {verb} below this range", low=low)


def drop_frame(study: Study, drawn: Sequence[Mean]) -> Frame | None:
    """The drop against dense, in points; None where no point has one."""
    if not any(math.isfinite(mean.drop) for mean in drawn):
        return None
    halves = [100 * (mean.drop_high - mean.drop_low) / 2 for mean in drawn]
    noise = min((half for half in halves if half > 0), default=0.0)
    scale = choose_scale((100 * mean.drop for mean in drawn), noise=noise)
    return Frame(
        title=f"drop of the {study.metric} against dense, in points{scale.note} (further down is worse)",
        drop=True,
        scale=scale,
    )


def across(drawn: Sequence[Mean], sparsity: Sparsity, title: str) -> dict[str, Json]:
    """The axis of per cents, with room at the left for what `references` writes there."""
    values = [100 * mean.of(sparsity.field) for mean in drawn]
    low, high = min(values), max(values)
    span = max(high - low, 4.0)
    left, right = low - 0.17 * span, min(high + 0.05 * span, 100 + 0.02 * span)
    first, last = max(left, 0.0), min(right, 100.0)
    step = next((step for step in STEPS if (last - first) / step <= 9), STEPS[-1])
    marks = [round(step * k, 1) for k in range(math.ceil(first / step), math.floor(last / step) + 1)]
    return axis(
        title, range=[rounded(left), rounded(right)], tickvals=marks, ticktext=[f"{mark:g} %" for mark in marks]
    )


def up(study: Study, frame: Frame, drawn: Sequence[Mean]) -> dict[str, Json]:
    """The axis of the figure: what is better is up."""
    shown = [value for mean in drawn for value in frame.figures(mean)]
    if study.dense is not None:
        shown += [0.0] if frame.drop else frame.figures(study.dense)
        if study.max_drop <= NEAR:
            shown.append(100 * study.max_drop if frame.drop else study.dense.value - study.max_drop)
    finite = [value for value in shown if math.isfinite(value)]
    low, high = frame.scale(min(finite)), frame.scale(max(finite))
    if math.isfinite(frame.low):
        low = frame.low
    pad = 0.07 * ((high - low) or abs(high) or 1.0)
    ends = [rounded(low if math.isfinite(frame.low) else low - pad), rounded(high + pad)]
    ticks = _marks(frame.scale, min(finite), max(finite)) if frame.scale.kind != "linear" else {}
    return axis("", range=ends[::-1] if frame.drop else ends, **ticks)


def _marks(scale: Scale, low: float, high: float) -> dict[str, Json]:
    """Marks of an axis in log steps, at round figures that are far enough apart to be read."""
    sizes = sorted(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5))
    room = ROOM * (scale(high) - scale(low))
    marks = [0.0]
    for mark in [*sizes, *(-size for size in sizes)]:
        if low <= mark <= high and min(abs(scale(mark) - scale(other)) for other in marks) >= room:
            marks.append(mark)
    return {"tickvals": rounded_all(map(scale, marks)), "ticktext": [typeset(f"{mark:g}") for mark in marks]}


def references(study: Study, frame: Frame) -> tuple[list[Json], list[Json]]:
    """Lines across, and their names: dense with its interval, dense but tuned, the limit of `--max-drop`."""
    if study.dense is None or not math.isfinite(study.dense.value):
        return [], []
    value, low, high = (0.0, math.nan, math.nan) if frame.drop else frame.place(study.dense)
    shapes: list[Json] = []
    if math.isfinite(low) and math.isfinite(high):
        band: dict[str, Json] = {"type": "rect", "fillcolor": GRID, "opacity": 0.6, "line": {"width": 0}}
        shapes.append(_across(low, high) | band)
    shapes.append(_line(value, width=1.5))
    notes = [_note("dense" if frame.drop else f"dense {number(study.dense.value, digits=3)}", value, above=True)]
    if study.tuned_dense is not None and math.isfinite(tuned := frame.place(study.tuned_dense)[0]):
        shapes.append(_line(tuned, width=1, dash="dash"))
    if math.isfinite(study.max_drop):
        at = frame.scale(100 * study.max_drop) if frame.drop else study.dense.value - study.max_drop
        shapes.append(_line(at, width=1.5, dash="dot"))
        notes.append(_note(f"limit: {number(100 * study.max_drop, digits=1)} points", at, above=False))
    return shapes, notes


def _across(low: float, high: float) -> dict[str, Json]:
    return {"xref": "paper", "x0": 0, "x1": 1, "y0": rounded(low), "y1": rounded(high), "layer": "below"}


def _line(at: float, *, width: float, dash: str = "solid") -> dict[str, Json]:
    return _across(at, at) | {"type": "line", "line": {"color": INK, "width": width, "dash": dash}}


def _note(text: str, at: float, *, above: bool) -> Json:
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": rounded(at),
        "yanchor": "bottom" if above else "top",
        "text": plain(text),
        "showarrow": False,
        "font": {"size": 12, "color": INK},
    }
