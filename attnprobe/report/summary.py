"""What a run found, in sentences: the finding of the first line, and the notes below it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from attnprobe.report.labels import MEASURES, METHODS, PARTITION, Measure, class_name, measure_of, method_label
from attnprobe.report.numbers import capital, compact, count, estimate, join, number
from attnprobe.report.tables import Effect, Run, effects

FEW_CELLS = 100
ANCHORS = ("diagonal", "cls_key", "first_key")
"""Classes the finding always mentions: the papers' question is about these."""


def finding(importance: pd.DataFrame, *, loss_unit: str = "nats") -> str:
    """The finding in plain text: which position class matters least, which most, and [CLS] as key.

    `importance` is the table of importance.csv; only partition classes are compared, by ablation or by the first
    method of `METHODS` that was run. Says when the order of the two least classes is not settled.
    """
    return finding_of(effects(importance), loss_unit=loss_unit)


def finding_of(rows: Sequence[Effect], *, loss_unit: str) -> str:
    """`finding` of rows that were read already."""
    measure = finding_measure(rows)
    ranked = sorted(measured_classes(rows, measure), key=lambda row: row.value) if measure else []
    if measure is None or not ranked:
        return "No position class was measured in this run, so no finding can be given."
    unit = _sentence_unit(measure, loss_unit)
    least, most = ranked[0], ranked[-1]
    if len(ranked) == 1:
        name = class_name(least.position_class)
        return capital(f"{_source(measure)}only {name} was measured: {_full(least, measure, unit)}.")
    clauses = [
        f"{class_name(least.position_class)} {measure.least}: {_full(least, measure, unit)}",
        *(
            f"{class_name(row.position_class)} is number {rank} of {len(ranked)} in importance: {_brief(row, measure)}"
            for row, rank in zip(ranked, range(len(ranked), 0, -1), strict=True)
            if row.position_class in ANCHORS and row not in (least, most)
        ),
        f"and {class_name(most.position_class)} {measure.most}: {_brief(most, measure)}",
    ]
    return capital(f"{_source(measure)}{'; '.join(clauses)}.{unsettled(ranked[0], ranked[1])}")


def finding_measure(rows: Iterable[Effect]) -> Measure | None:
    """The measure that the finding quotes: ablation, or else the first method that has class figures."""
    seen = {(row.method, row.unit) for row in rows if _is_class(row) and row.measured}
    known = sorted(MEASURES, key=lambda measure: list(METHODS).index(measure.method))
    for measure in known:
        if (measure.method, measure.unit) in seen:
            return measure
    return measure_of(*min(seen)) if seen else None


def measured_classes(rows: Iterable[Effect], measure: Measure) -> list[Effect]:
    """The partition classes that have a figure by this measure."""
    return [row for row in rows if _by(row, measure) and _is_class(row) and row.measured]


def unsettled(first: Effect, second: Effect) -> str:
    """A sentence where the intervals of two classes overlap; otherwise nothing."""
    if not _overlap(first, second):
        return ""
    names = f"{class_name(first.position_class)} and {class_name(second.position_class)}"
    return f" The intervals of {names} overlap: the order of these two is not settled."


def notes(run: Run) -> list[str]:
    """The sentences below the finding."""
    measure = finding_measure(run.effects)
    if measure is None:
        return _absent(run)
    ranked = sorted(measured_classes(run.effects, measure), key=lambda row: row.value)
    found = [
        _against_control(ranked, measure),
        unsettled(ranked[-2], ranked[-1]).strip() if len(ranked) > 2 else "",
        _score(ranked[0], measure),
        _heads(run, measure),
        *_absent(run),
        _few(ranked),
    ]
    return [note for note in found if note]


def _against_control(ranked: Sequence[Effect], measure: Measure) -> str:
    groups: dict[str, list[str]] = {"more": [], "less": [], "as much": []}
    for row in ranked:
        if not math.isfinite(row.control):
            continue
        low, high = (row.control, row.control) if math.isnan(row.control_low) else (row.control_low, row.control_high)
        if row.low > high:
            groups["more"].append(class_name(row.position_class))
        elif row.high < low:
            groups["less"].append(class_name(row.position_class))
        else:
            groups["as much"].append(class_name(row.position_class))
    if not any(groups.values()):
        return ""
    link = "goes to" if measure.method == "mass" else "depends on"
    parts = [f"{word} {link} {join(names)}" for word, names in groups.items() if names]
    return capital(f"against {measure.control}, {'; '.join(parts)}.")


def _score(least: Effect, measure: Measure) -> str:
    if measure.method != "ablation" or not math.isfinite(least.metric_dense):
        return ""
    name, metric = class_name(least.position_class), least.metric_name.replace("_", " ") or "metric"
    return capital(
        f"the model's {metric} over {count(least.examples)} examples is {number(least.metric_dense, digits=3)}; "
        f"without {name} it is {number(least.metric_ablated, digits=3)}."
    )


def _heads(run: Run, measure: Measure) -> str:
    heads = [row for row in run.effects if row.level == "head" and _by(row, measure) and row.measured]
    if measure.method != "ablation" or measure.unit != "loss" or not heads:
        return ""
    top = max(heads, key=lambda row: row.value)
    figure = estimate(top.value, top.low, top.high, signed=True, unit=in_sentence(run.loss_unit))
    needed = f"head {top.head} of site {top.site} is needed most ({figure})."
    if run.part("objective").get("kind") == "fidelity":  # which any change raises
        return f"Of {len(heads)} heads removed alone, {needed}"
    harmless = sum(1 for row in heads if row.low <= 0)
    return (
        f"Of {len(heads)} heads, {harmless} can each be removed alone without a measurable rise of the loss; {needed}"
    )


def _absent(run: Run) -> list[str]:
    rows = [row for row in run.effects if _is_class(row)]
    occurring = {row.position_class for row in rows if row.measured}
    absent = [name for name in PARTITION if name in {row.position_class for row in rows} - occurring]
    verb = "occurs" if len(absent) == 1 else "occur"
    names = join([class_name(name) for name in absent])
    return [capital(f"{names} never {verb} in these inputs (n/a).")] if absent else []


def _few(ranked: Sequence[Effect]) -> str:
    few = [f"{class_name(row.position_class)} ({count(row.cells)})" for row in ranked if row.cells < FEW_CELLS]
    return f"Few cells stand behind {join(few)}: read with care." if few else ""


def _full(row: Effect, measure: Measure, unit: str) -> str:
    figure = estimate(row.value, row.low, row.high, signed=measure.signed, unit=unit)
    control = _control(row, measure, f"{_control_label(row, measure)}: ")
    return measure.sentence.format(estimate=figure) + control


def _brief(row: Effect, measure: Measure) -> str:
    figure = estimate(row.value, row.low, row.high, signed=measure.signed)
    return figure + _control(row, measure, f"{measure.brief_control}: ")


def _control(row: Effect, measure: Measure, label: str) -> str:
    if not math.isfinite(row.control) or measure.ratio:
        return ""
    return f" ({label}{compact(row.control, signed=measure.signed)})"


def _control_label(row: Effect, measure: Measure) -> str:
    return measure.row_control if row.position_class.endswith("_query") else measure.control


def _sentence_unit(measure: Measure, loss_unit: str) -> str:
    return in_sentence(loss_unit) if measure.unit == "loss" else ""


def in_sentence(unit: str) -> str:
    """A unit as it follows a figure: in brackets where it holds figures itself (`1 - cosine`)."""
    return f"({unit})" if any(letter.isdigit() for letter in unit) else unit


def _source(measure: Measure) -> str:
    if measure.method == "ablation":
        return ""
    return f"by {method_label(measure.method)} (ablation was not run), "


def _is_class(row: Effect) -> bool:
    return row.level == "class" and row.position_class in PARTITION


def _by(row: Effect, measure: Measure) -> bool:
    return (row.method, row.unit) == (measure.method, measure.unit)


def _overlap(first: Effect, second: Effect) -> bool:
    return first.low <= second.high and second.low <= first.high
