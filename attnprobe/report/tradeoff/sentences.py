"""What a sweep found, in sentences: the finding of the first line, and the notes below it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.labels import class_name
from attnprobe.report.numbers import NOT_MEASURED, decimals, estimate, interval, join, number
from attnprobe.report.tradeoff.means import Line, Mean
from attnprobe.report.tradeoff.points import Point
from attnprobe.report.tradeoff.study import Comparison, Study, comparisons

SLOTS: dict[str, tuple[str, str]] = {
    "random": ("the random mask", "random mask"),
    "magnitude": ("the magnitude mask", "magnitude mask"),
    "taylor": ("the Taylor mask", "Taylor mask"),
    "pattern": ("the best fixed pattern", "fixed pattern"),
}
"""Controls that the finding speaks of, by method or kind: what each is called, and what is missing without it."""

EXPECTED = ("random", "magnitude", "pattern")
"""Controls whose absence the finding mentions."""


def finding(study: Study) -> str:
    """The finding in plain text: which model was exported or why none, and how the best learnt mask stands.

    The best learnt mask is chosen on the rows held out (`Study.best`); it is held against dense, and against the random
    mask, the score-based masks and the best fixed pattern at the same or lower sparsity, with intervals.
    """
    if not study.masked:
        return "No masked model was measured, so no finding can be given."
    best = study.best
    parts = [_export(study)]
    if best is None:
        parts += ["No learnt mask was run.", _best_control(study)]
    else:
        parts += [_best(study, best), *_against(study, best)]
    return " ".join(part for part in parts if part)


def notes(study: Study) -> list[str]:
    """The sentences below the finding."""
    found = [
        study.reason if study.exported else "",
        _tally(study),
        _tuned_dense(study),
        _target_met(study),
        _kept(study),
    ]
    return [_sentence(note) for note in found if note]


def inline(line: Line) -> str:
    """A line's name in running text: `DAM (offset, frozen weights)`."""
    method, _, rest = line.name.partition(", ")
    return f"{method} ({rest})" if rest else method


def percent(share: float, digits: int = 1) -> str:
    """A share as per cents."""
    return f"{number(100 * share, digits=digits)} %" if math.isfinite(share) else number(share)


def points(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """A difference of the metric in points, hundredths, with its interval."""
    figure, _, bounds = in_points(value, low, high, signed=signed).partition(" ")
    return f"{figure} points {bounds}".strip()


def in_points(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """The same without the word, for columns: to a tenth of a point, finer where the interval is."""
    if not math.isfinite(value):
        return NOT_MEASURED
    digits = max(1, decimals(math.nan, 100 * low, 100 * high) if high - low < 0.002 else 1)
    ends = interval(100 * low, 100 * high, signed=signed, digits=digits)
    return f"{number(100 * value, signed=signed, digits=digits)} {ends}".strip()


def slots(found: Sequence[Comparison]) -> dict[str, Comparison]:
    """The strongest control of each slot; those with weights tuned as the learnt mask's were, where there are any."""
    chosen = {}
    for slot in SLOTS:
        of_slot = [c for c in found if slot in (c.control.line.method, c.control.line.kind)]
        same = [c for c in of_slot if c.control.line.tuned == c.learnt.line.tuned]
        if of_slot:
            chosen[slot] = min(same or of_slot, key=lambda comparison: comparison.difference)
    return chosen


def _export(study: Study) -> str:
    of = study.exported
    if of is None or of.exported is None:
        if study.reason.lower().startswith("no "):
            return _sentence(study.reason[:1].upper() + study.reason[1:])
        if study.reason:
            return f"No model was exported: {_sentence(study.reason)}"
        if not math.isfinite(study.max_drop):
            return "No model was exported."
        limit = number(100 * study.max_drop, digits=1)
        return (
            f"No model was exported: no masked model loses at most {limit} points of {study.metric} on the rows held "
            "out, by its confidence bound."
        )
    several = sum(point.exported for point in study.points)
    which = "The exported model" if several == 1 else f"The sparsest of {several} exported models"
    what = "" if of.line.kind == "learnt" else "a mask that was not learnt, "
    point = of.exported
    return (
        f"{which} removes {percent(point.cell_sparsity)} of the attention cells with {what}{inline(of.line)}: "
        f"{study.metric} {estimate(point.value, point.low, point.high)}, {_against_dense(point)}."
    )


def _best(study: Study, best: Mean) -> str:
    if best is study.exported:
        if len(best.points) == 1:
            return ""
        figure = estimate(best.value, best.low, best.high)
        return f"Over its {best.repeats} the mean is {figure}, {_against_dense(best, 'dense')}."
    figure = estimate(best.value, best.low, best.high)
    over = f", the mean of {best.repeats}" if best.repeats else ""
    return (
        f"The best learnt mask, {inline(best.line)}, removes {percent(best.sparsity)} of the cells: {study.metric} "
        f"{figure}{over}, {_against_dense(best)}."
    )


def _best_control(study: Study) -> str:
    best = max(study.controls, key=lambda control: control.value)
    figure = estimate(best.value, best.low, best.high)
    return (
        f"The best control, {inline(best.line)}, removes {percent(best.sparsity)} of the cells: {study.metric} "
        f"{figure}, {_against_dense(best)}."
    )


def _against_dense(of: Point | Mean, name: str = "") -> str:
    """`0.8 points [-0.2, 1.8] below dense (0.966), no measurable difference`."""
    dense = of.dense if isinstance(of, Point) else of.of("dense")
    name = name or (f"dense ({number(dense, digits=3)})" if math.isfinite(dense) else "dense")
    if not math.isfinite(of.drop):
        return "not compared with dense"
    if of.drop >= 0:
        said = f"{points(of.drop, of.drop_low, of.drop_high)} below {name}"
    else:
        said = f"{points(-of.drop, -of.drop_high, -of.drop_low)} above {name}"
    if not (math.isfinite(of.drop_low) and math.isfinite(of.drop_high)):
        return f"{said}, without an interval"
    return said if of.drop_low > 0 or of.drop_high < 0 else f"{said}, no measurable difference"


def _against(study: Study, best: Mean) -> list[str]:
    """How the best learnt mask stands against its controls, and which are missing."""
    chosen = slots(comparisons(study, best))
    if not chosen:
        run = "No control was run" if not study.controls else "No control is as dense or denser"
        return [f"{run}, so nothing shows whether learning the mask was worth it."]
    absent = [SLOTS[slot][1] for slot in EXPECTED if slot not in chosen]
    missing = f"No {join(absent, 'or')} was run at equal or lower sparsity." if absent else ""
    clauses = [_clause(slot, comparison) for slot, comparison in chosen.items()]
    return [f"At equal or lower sparsity, {join(clauses)}.", _conclusion(chosen), missing]


def _clause(slot: str, comparison: Comparison) -> str:
    control = comparison.control
    name = SLOTS[slot][0]
    if slot == "pattern":
        name += f", {inline(control.line)} at {percent(control.sparsity)},"
    elif control.line.tuned != comparison.learnt.line.tuned:
        name += " with tuned weights" if control.line.tuned else " with frozen weights"
    value = number(control.value, digits=3)
    difference, low, high = comparison.difference, comparison.low, comparison.high
    if comparison.verdict == "no difference":
        return f"{name} has {value} (learnt minus control {points(difference, low, high, signed=True)})"
    if difference >= 0:
        return f"{name} has {value} ({points(difference, low, high)} behind)"
    return f"{name} has {value} ({points(-difference, -high, -low)} ahead)"


def _conclusion(chosen: dict[str, Comparison]) -> str:
    groups: dict[str, list[str]] = {}
    for slot, comparison in chosen.items():
        groups.setdefault(comparison.verdict, []).append(SLOTS[slot][0])
    if set(groups) == {"ahead"}:
        return f"The learnt mask is ahead of {'all of these' if len(chosen) > 1 else 'it'}."
    if set(groups) == {"no interval"}:
        return "No interval was measured, so no difference is settled."
    said = [
        f"is ahead of {join(groups['ahead'])}" if "ahead" in groups else "",
        f"is behind {join(groups['behind'])}" if "behind" in groups else "",
        f"does not measurably differ from {join(groups['no difference'])}" if "no difference" in groups else "",
        f"has no interval against {join(groups['no interval'])}" if "no interval" in groups else "",
    ]
    return f"The learnt mask {join([part for part in said if part])}."


def _tally(study: Study) -> str:
    """In how many comparisons learnt masks are ahead."""
    verdicts = [found.verdict for learnt in study.learnt for found in comparisons(study, learnt)]
    if len(verdicts) < 2:
        return ""
    words = {
        "ahead": "ahead",
        "no difference": "not measurably different",
        "behind": "behind",
        "no interval": "not settled for want of an interval",
    }
    counted = [f"{text} in {verdicts.count(name)}" for name, text in words.items() if name in verdicts]
    return f"Of {len(verdicts)} comparisons of a learnt mask with a control, the learnt mask is {join(counted)}."


def _tuned_dense(study: Study) -> str:
    tuned = study.tuned_dense
    if tuned is None or not math.isfinite(tuned.value):
        return ""
    figure = estimate(tuned.value, tuned.low, tuned.high)
    return f"Without a mask but tuned for as many steps, the model has {study.metric} {figure}."


def _target_met(study: Study) -> str:
    gaps = [
        abs(point.before_threshold - point.target)
        for learnt in study.learnt
        for point in learnt.points
        if math.isfinite(point.before_threshold - point.target)
    ]
    if not gaps:
        return ""
    return (
        f"Before the final threshold, learnt masks were {number(100 * max(gaps), digits=2)} points or less from their "
        f"target sparsity over the training data ({len(gaps)} {'mask' if len(gaps) == 1 else 'masks'})."
    )


def _kept(study: Study) -> str:
    """Which classes the best learnt mask keeps most and least of."""
    kept = study.best.kept if study.best else {}
    if len(kept) < 2:
        return ""
    ranked = sorted(kept, key=lambda name: kept[name])
    least, most = ranked[0], ranked[-1]
    return (
        f"The best learnt mask keeps most of {class_name(most)} ({percent(kept[most], 0)} of its cells) and least of "
        f"{class_name(least)} ({percent(kept[least], 0)})."
    )


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
