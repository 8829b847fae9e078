"""Every mask by target, and learnt masks against controls, as tables and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.figures import Axis, Dot, dots
from attnprobe.report.numbers import NOT_MEASURED, compact, count, estimate, number
from attnprobe.report.page import Block, Chart, Section, Table, View
from attnprobe.report.tradeoff.means import INTERVALS, Mean
from attnprobe.report.tradeoff.sentences import in_points, percent, points
from attnprobe.report.tradeoff.study import COMPARED, EQUAL, Comparison, Study, comparisons

MANY = 3
"""Controls that are named one by one."""


def by_target(study: Study) -> list[Mean]:
    """Dense first, then by rising target, those without one first of these, and falling metric."""
    dense = [mean for mean in study.means if mean.line.kind == "dense" and math.isfinite(mean.value)]
    return dense + sorted(study.masked, key=lambda mean: (_target(mean) or 0.0, -mean.value))


def target_tables(study: Study) -> list[Table]:
    """A table for each target, dense first, then by falling metric; the exported model is marked."""
    ranked = by_target(study)
    dense = [mean for mean in ranked if mean.line.kind == "dense"]
    targets = list(dict.fromkeys(_target(mean) for mean in ranked if mean not in dense))
    tables: list[Table] = []
    for target in targets:
        what = "No target was set" if target is None else f"Target: {percent(target)} of the valid cells removed"
        caption = f"{what}.{'' if tables else f' {INTERVALS}'}"
        rows = [*dense, *(mean for mean in ranked if mean not in dense and _target(mean) == target)]
        tables.append(_target_table(study, rows, caption=caption))
    return tables or ([_target_table(study, dense, caption="Without a mask.")] if dense else [])


def comparison_blocks(study: Study, key: str) -> list[Block]:
    """Each learnt mask against each control at equal or lower sparsity: a summary, and a chart with its table."""
    found = {learnt: rows for learnt in study.learnt if (rows := comparisons(study, learnt))}
    if not found:
        return []
    chart = Chart(
        key=key,
        title="The difference to each control",
        selector="Learnt mask",
        text=f"To the right of 0 the learnt mask is better. {COMPARED}",
        views=[_comparison_view(study, learnt, rows) for learnt, rows in found.items()],
        open_table=True,
    )
    return [_summary(study, found), chart]


def comparison_section(study: Study) -> Section | None:
    """Whether learning the masks was worth it."""
    blocks = comparison_blocks(study, "comparisons")
    if not blocks:
        return None
    return Section(key="controls", title="Whether learning the mask was worth it", text=[], blocks=blocks)


def target_section(study: Study) -> Section | None:
    """Every mask by target."""
    tables = target_tables(study)
    return Section(key="targets", title="Every mask by target", text=[], blocks=tables) if tables else None


def mean_name(mean: Mean) -> str:
    """A mean's line with its target: `DAM, offset, frozen weights, target 90 %`."""
    at = f", target {number(100 * mean.target, digits=_places(mean.target))} %" if math.isfinite(mean.target) else ""
    return mean.line.name + at


def _target(mean: Mean) -> float | None:
    return None if math.isnan(mean.target) else mean.target


def _places(share: float) -> int:
    return 0 if abs(100 * share - round(100 * share)) < 1e-6 else 1


def _target_table(study: Study, means: Sequence[Mean], *, caption: str) -> Table:
    columns = [
        "Mask",
        f"{study.metric.capitalize()} [95 %]",
        "Drop, points [95 %]",
        "Cell sparsity",
        "Nominal sparsity",
        "Block sparsity",
        "Before threshold",
        "Steps",
        "Seconds",
        "Runs",
    ]
    return Table(caption=caption, columns=columns, rows=[_row(mean) for mean in means])


def _row(mean: Mean) -> list[str]:
    masked = mean.line.kind != "dense"
    exported = mean.exported
    seed = f" (seed {exported.seed:.0f})" if exported and len(mean.points) > 1 and exported.seed >= 0 else ""
    drop = in_points(mean.drop, mean.drop_low, mean.drop_high)
    return [
        mean.line.name + (f" ★ exported{seed}" if exported else ""),
        estimate(mean.value, mean.low, mean.high),
        drop if masked or mean.line.tuned else "",
        *(percent(mean.of(f"{name}_sparsity")) if masked else "" for name in ("cell", "nominal", "block")),
        percent(mean.of("before_threshold")) if mean.line.kind == "learnt" else "",
        count(mean.of("steps")) if mean.of("steps") > 0 else "",
        _seconds(mean.of("seconds")),
        str(len(mean.points)),
    ]


def _seconds(value: float) -> str:
    return number(value, digits=0 if value >= 10 else 1) if math.isfinite(value) else NOT_MEASURED


def _summary(study: Study, found: dict[Mean, list[Comparison]]) -> Table:
    rows = []
    for learnt, compared in found.items():
        figure = estimate(learnt.value, learnt.low, learnt.high)
        names = [_names(compared, verdicts) for verdicts in (("ahead",), ("no difference", "no interval"), ("behind",))]
        rows.append([mean_name(learnt) + (" ★" if learnt.exported else ""), percent(learnt.sparsity), figure, *names])
    metric = study.metric.capitalize()
    return Table(
        caption="Each learnt mask, and the controls that it is ahead of, not told from, or behind at equal or lower "
        "cell sparsity, by the interval of the difference.",
        columns=["Learnt mask", "Cell sparsity", f"{metric} [95 %]", "Ahead of", "No difference to", "Behind"],
        rows=rows,
        text_columns=frozenset({3, 4, 5}),
    )


def _names(compared: Sequence[Comparison], verdicts: Sequence[str]) -> str:
    """The controls with one of these verdicts; in a word where it is all of many."""
    named = [c for c in compared if c.verdict in verdicts]
    if len(named) == len(compared) > MANY:
        return f"all {len(named)} controls"
    return ", ".join(
        _control(c) if c.learnt.sparsity - c.control.sparsity > EQUAL else c.control.line.name for c in named
    )


def _comparison_view(study: Study, learnt: Mean, compared: Sequence[Comparison]) -> View:
    best_first = sorted(compared, key=lambda comparison: -comparison.difference)
    group = [Dot(label=_control(c), value=100 * c.difference, low=100 * c.low, high=100 * c.high) for c in best_first]
    title = f"{study.metric} of the learnt mask minus the control's, in points"
    last, first = best_first[-1], best_first[0]
    return View(
        label=f"{mean_name(learnt)} ({percent(learnt.sparsity)} removed)",
        figure=dots([group], Axis(title=title), control=""),
        alt=f"{mean_name(learnt)} against {len(compared)} controls: from {compact(100 * last.difference, signed=True)} "
        f"points ({_control(last)}) to {compact(100 * first.difference, signed=True)} points ({_control(first)}).",
        table=Table(
            caption=f"{mean_name(learnt)}: {study.metric} {estimate(learnt.value, learnt.low, learnt.high)} at "
            f"{percent(learnt.sparsity)} cell sparsity.",
            columns=[
                "Control",
                "Cell sparsity",
                f"{study.metric.capitalize()} [95 %]",
                "Difference [95 %]",
                "Learnt is",
            ],
            rows=[
                [
                    c.control.line.name,
                    percent(c.control.sparsity),
                    estimate(c.control.value, c.control.low, c.control.high),
                    points(c.difference, c.low, c.high, signed=True),
                    c.verdict,
                ]
                for c in best_first
            ],
            text_columns=frozenset({4}),
        ),
    )


def _control(comparison: Comparison) -> str:
    return f"{comparison.control.line.name} at {percent(comparison.control.sparsity)}"
