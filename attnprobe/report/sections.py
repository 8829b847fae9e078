"""The charts of importance: classes, heads and sites, classes by site, offsets, agreement. One function a section."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attnprobe.report.figures import Axis, Dot, dots, heat, line
from attnprobe.report.labels import (
    MEASURES,
    PARTITION,
    UNIONS,
    Measure,
    class_label,
    class_name,
    class_tick,
    measure_of,
    method_label,
)
from attnprobe.report.numbers import NOT_MEASURED, compact, count, estimate, interval, number
from attnprobe.report.page import Chart, Section, Table, View
from attnprobe.report.tables import Effect, Run, real, text

ORDER = {name: rank for rank, name in enumerate([*PARTITION, *UNIONS])}


def class_section(run: Run) -> Section | None:
    """Every class with interval and control, and the same as a table."""
    rows = [row for row in run.effects if row.level == "class"]
    views = [_class_view(run, measure, _of(rows, measure)) for measure in measures(rows)]
    if not views:
        return None
    chart = Chart(
        key="classes",
        title="Position classes",
        selector="Method",
        text="Each dot is one class of positions over all sites and heads, its line the 95 % interval over examples; "
        "the hollow dot below it is the control. A class matters more than its size explains where it lies to "
        "the right of its control.",
        views=views,
        open_table=True,
    )
    text = (
        "Classes partition the cells (query, key) of the attention matrices; unions of classes follow below. Where a "
        "model classifies from [CLS], removing that row cuts its head off from the text: a large effect is expected."
    )
    return Section(key="classes", title="Which positions matter", text=[text], blocks=[chart])


def class_tables(run: Run) -> list[Table]:
    """The classes as a table for each method, in the first of its units that was measured."""
    rows = [row for row in run.effects if row.level == "class"]
    firsts = {measure.method: measure for measure in reversed(measures(rows))}
    views = [_class_view(run, measure, _of(rows, measure)) for measure in reversed(firsts.values())]
    return [view.table for view in views if view.table is not None]


def head_section(run: Run) -> Section | None:
    """Heads by site, and whole sites."""
    heads = [row for row in run.effects if row.level == "head" and row.site is not None and row.head is not None]
    sites = [row for row in run.effects if row.level == "site" and row.site is not None]
    charts = []
    if heads:
        charts.append(
            Chart(
                key="heads",
                title="Heads by site",
                selector="Method",
                text="One cell is one head, taken alone. Rows are sites in order of depth, columns the heads "
                "of a site; heads of different sites with the same number have nothing to do with each other.",
                views=[_head_view(run, measure, _of(heads, measure)) for measure in measures(heads)],
            )
        )
    if sites:
        charts.append(
            Chart(
                key="sites",
                title="Whole sites",
                selector="Method",
                text="The same for all heads of a site at once, with 95 % intervals.",
                views=[_site_view(run, measure, _of(sites, measure)) for measure in measures(sites)],
            )
        )
    if not charts:
        return None
    return Section(key="heads", title="Which heads and sites matter", text=[], blocks=charts)


def class_site_section(run: Run) -> Section | None:
    """Classes by site."""
    rows = [row for row in run.effects if row.level == "class_site" and row.site is not None]
    views = [_class_site_view(run, measure, _of(rows, measure)) for measure in measures(rows)]
    if not views:
        return None
    chart = Chart(
        key="class-sites",
        title="Classes by site",
        selector="Method",
        text="One cell is one class at one site alone, so that the depth at which a class is needed can be read along "
        "its row. Effects at single sites do not add up to the effect over all sites.",
        views=views,
    )
    return Section(key="class-sites", title="Where in the model they matter", text=[], blocks=[chart])


def offset_section(run: Run) -> Section | None:
    """The offset profile."""
    table = run.offsets
    pairs = [(text(a), text(b)) for a, b in zip(table["method"], table["unit"], strict=True)]
    records = list(zip(pairs, table.to_dict("records"), strict=True))
    views = []
    for measure in _ordered(pairs):
        chosen = [record for pair, record in records if pair == (measure.method, measure.unit)]
        views.append(_offset_view(run, measure, sorted(chosen, key=lambda record: real(record["offset"]))))
    if not views:
        return None
    chart = Chart(
        key="offsets",
        title="Offset profile",
        selector="Method",
        text="Importance against the distance i - j of query i and key j: 0 is the diagonal, positive offsets look "
        "back to earlier keys, negative ones ahead. The band is the 95 % interval, the dashed line the control.",
        views=views,
    )
    return Section(key="offsets", title="How far attention needs to reach", text=[], blocks=[chart])


def agreement_section(run: Run) -> Section | None:
    """Rank correlation between methods: pairs by level."""
    records = run.agreement.to_dict("records")
    if not records:
        return None
    names = {"class": "classes", "site": "sites", "head": "heads", "class_site": "classes by site"}
    names |= {"class_head": "classes by head", "offset": "offsets"}
    levels = list(dict.fromkeys(text(record["level"]) for record in records))
    pairs = list(dict.fromkeys((text(record["method_a"]), text(record["method_b"])) for record in records))
    found = {(text(r["method_a"]), text(r["method_b"]), text(r["level"])): r for r in records}
    rows, tints = [], {}
    for index, (a, b) in enumerate(pairs):
        row = [f"{_pair_label(a)} and {_pair_label(b)}"]
        for column, level in enumerate(levels, start=1):
            record: Mapping[object, object] = found.get((a, b, level), {})
            value = real(record.get("value"))
            band = interval(real(record.get("ci_low")), real(record.get("ci_high")), digits=2)
            row.append(f"{number(value, digits=2)}\n{band}".strip())  # two lines, so that all levels fit the page
            if math.isfinite(value):
                tints[index, column] = round(max(-1.0, min(1.0, value)), 2)
        rows.append(row)
    table = Table(
        caption="Spearman's rank correlation with its 95 % interval; the stronger the tint, the closer to 1 or -1.",
        columns=["Methods", *(names.get(level, level.replace("_", " by ")) for level in levels)],
        rows=rows,
        tints=tints,
    )
    explanation = (
        "1 means that two methods put everything in the same order, 0 that their orders have nothing in common. Where "
        "methods disagree, trust ablation: it measures the effect that the others estimate."
    )
    return Section(key="agreement", title="Do the methods agree", text=[explanation], blocks=[table])


def measures(rows: Iterable[Effect]) -> list[Measure]:
    """The measures that rows hold, in the order of the selectors."""
    return _ordered((row.method, row.unit) for row in rows)


def _ordered(pairs: Iterable[tuple[str, str]]) -> list[Measure]:
    seen = set(pairs)
    known = [measure for measure in MEASURES if (measure.method, measure.unit) in seen]
    return known + [measure_of(*pair) for pair in sorted(seen - {(m.method, m.unit) for m in known})]


def _class_view(run: Run, measure: Measure, rows: Sequence[Effect]) -> View:
    ranked = sorted(rows, key=lambda row: (not row.measured, -row.value if row.measured else 0, _rank(row)))
    unions = [row for row in ranked if row.position_class in UNIONS]
    classes = [row for row in ranked if row.position_class not in UNIONS]
    return View(
        label=measure.label,
        figure=dots([_dots(classes), _dots(unions)], _axis(run, measure), control=measure.control),
        alt=_alt("position classes", [(class_name(row.position_class), row.value) for row in classes], measure),
        table=_class_table(run, measure, [*classes, *unions]),
    )


def _class_table(run: Run, measure: Measure, rows: Sequence[Effect]) -> Table:
    has_metric = any(math.isfinite(row.metric_ablated) for row in rows)
    metric = next((row.metric_name.replace("_", " ") for row in rows if row.metric_name), "metric")
    columns = ["Class", f"{'Change' if measure.signed else 'Figure'} [95 % interval]", "Control [95 % interval]"]
    columns += [f"{metric.capitalize()}, dense → without"] if has_metric else []
    body = []
    for row in rows:
        cells = [
            class_label(row.position_class),
            estimate(row.value, row.low, row.high, signed=measure.signed),
            estimate(row.control, row.control_low, row.control_high, signed=measure.signed),
        ]
        cells += [_change(row.metric_dense, row.metric_ablated)] if has_metric else []
        body.append([*cells, count(row.cells)])
    return Table(
        caption=f"{measure.axis.format(unit=run.loss_unit).capitalize()}, by {method_label(measure.method)}; "
        f"control: {measure.control}.{_over(rows)}",
        columns=[*columns, "Cells"],
        rows=body,
    )


def _head_view(run: Run, measure: Measure, rows: Sequence[Effect]) -> View:
    found = {(str(row.site), str(row.head)): row for row in rows}
    sites, heads = _labels(row.site for row in rows), _labels(row.head for row in rows)
    named = [(f"head {row.head} of site {row.site}", row.value) for row in rows]
    return _grid_view(run, measure, found, sites, heads, ("site", "head"), _alt("heads", named, measure))


def _class_site_view(run: Run, measure: Measure, rows: Sequence[Effect]) -> View:
    names = sorted({row.position_class for row in rows}, key=lambda name: (ORDER.get(name, len(ORDER)), name))
    found = {(class_tick(row.position_class), str(row.site)): row for row in rows}
    named = [(f"{class_name(row.position_class)} at site {row.site}", row.value) for row in rows]
    labels = [class_tick(name) for name in names]
    sites = _labels(row.site for row in rows)
    return _grid_view(run, measure, found, labels, sites, ("", "site"), _alt("classes by site", named, measure))


def _grid_view(
    run: Run,
    measure: Measure,
    found: Mapping[tuple[str, str], Effect],
    rows: Sequence[str],
    columns: Sequence[str],
    titles: tuple[str, str],
    alt: str,
) -> View:
    def shown(row: str, column: str) -> tuple[float, str]:
        effect = found.get((row, column))
        value = effect.value if effect else math.nan
        return value, compact(value, signed=measure.signed)

    cells = [[shown(row, column) for column in columns] for row in rows]
    texts = [[label for _, label in row] for row in cells]
    return View(
        label=measure.label,
        figure=heat(
            [[value for value, _ in row] for row in cells],
            texts,
            rows,
            columns,
            about=_axis(run, measure),
            row_title=titles[0],
            column_title=titles[1],
        ),
        alt=alt,
        table=Table(
            caption=f"{measure.label}, by {titles[0] or 'class'} and {titles[1]}.",
            columns=[titles[0].capitalize() or "Class", *columns],
            rows=[[row, *line] for row, line in zip(rows, texts, strict=True)],
        ),
    )


def _site_view(run: Run, measure: Measure, rows: Sequence[Effect]) -> View:
    ranked = sorted(rows, key=lambda row: row.site or 0)
    group = [_dot(f"site {row.site}", row) for row in ranked]
    return View(
        label=measure.label,
        figure=dots([group], _axis(run, measure), control=measure.control, row_height=30),
        alt=_alt("sites", [(f"site {row.site}", row.value) for row in ranked], measure),
        table=Table(
            caption=f"{measure.label}, by site.",
            columns=["Site", "Figure [95 % interval]", "Examples"],
            rows=[
                [str(row.site), estimate(row.value, row.low, row.high, signed=measure.signed), count(row.examples)]
                for row in ranked
            ],
        ),
    )


def _offset_view(run: Run, measure: Measure, records: Sequence[Mapping[object, object]]) -> View:
    points = [
        Dot(
            label=f"offset {number(real(record['offset']), digits=0)}",
            value=real(record["value"]),
            low=real(record.get("ci_low")),
            high=real(record.get("ci_high")),
            control=real(record.get("control")),
        )
        for record in records
    ]
    return View(
        label=measure.label,
        figure=line(
            [real(record["offset"]) for record in records],
            points,
            _axis(run, measure),
            x_title="← keys ahead      query minus key      keys before →",
            control=measure.control,
        ),
        alt=_alt("offsets", [(point.label, point.value) for point in points], measure),
        table=Table(
            caption=f"{measure.label}, by offset.",
            columns=["Offset", "Figure [95 % interval]", "Control", "Cells"],
            rows=[
                [
                    number(real(record["offset"]), digits=0),
                    estimate(point.value, point.low, point.high, signed=measure.signed),
                    number(point.control, signed=measure.signed),
                    count(real(record.get("cells"))),
                ]
                for record, point in zip(records, points, strict=True)
            ],
        ),
    )


def _dots(rows: Iterable[Effect]) -> list[Dot]:
    return [_dot(class_tick(row.position_class), row) for row in rows]


def _dot(label: str, row: Effect) -> Dot:
    return Dot(
        label=label,
        value=row.value,
        low=row.low,
        high=row.high,
        control=row.control,
        control_low=row.control_low,
        control_high=row.control_high,
    )


def _axis(run: Run, measure: Measure) -> Axis:
    return Axis(title=measure.axis.format(unit=run.loss_unit), signed=measure.signed, ratio=measure.ratio)


def _alt(what: str, values: Sequence[tuple[str, float]], measure: Measure) -> str:
    finite = sorted((pair for pair in values if math.isfinite(pair[1])), key=lambda pair: pair[1])
    if not finite:
        return f"{measure.label}, {what}: nothing was measured."
    (low_name, low), (high_name, high) = finite[0], finite[-1]
    return (
        f"{measure.label} of {len(finite)} {what}: from {number(low, signed=measure.signed)} ({low_name}) "
        f"to {number(high, signed=measure.signed)} ({high_name})."
    )


def _over(rows: Sequence[Effect]) -> str:
    """Over how many examples, and the loss of the dense model."""
    examples = max((row.examples for row in rows if math.isfinite(row.examples)), default=math.nan)
    dense = next((row.loss_dense for row in rows if math.isfinite(row.loss_dense)), math.nan)
    parts = [f"{count(examples)} examples"] if math.isfinite(examples) else []
    parts += [f"loss of the dense model {number(dense, digits=4)}"] if math.isfinite(dense) else []
    return f" Over {', '.join(parts)}." if parts else ""


def _change(before: float, after: float) -> str:
    if not (math.isfinite(before) and math.isfinite(after)):
        return NOT_MEASURED
    return f"{number(before, digits=3)} → {number(after, digits=3)}"


def _labels(indices: Iterable[int | None]) -> list[str]:
    return [str(index) for index in sorted({index for index in indices if index is not None})]


def _of(rows: Iterable[Effect], measure: Measure) -> list[Effect]:
    return [row for row in rows if (row.method, row.unit) == (measure.method, measure.unit)]


def _pair_label(name: str) -> str:
    method, separator, unit = name.partition(":")
    return f"{method_label(method)} ({unit})" if separator else method_label(name)


def _rank(row: Effect) -> int:
    return ORDER.get(row.position_class, len(ORDER))
