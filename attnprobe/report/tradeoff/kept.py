"""What each class of positions keeps: every mask by target, and the best learnt mask by site."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attnprobe.report.figures import Axis, heat
from attnprobe.report.labels import PARTITION, class_tick
from attnprobe.report.numbers import NOT_MEASURED, number
from attnprobe.report.page import Chart, Section, Table, View
from attnprobe.report.tradeoff.means import Mean, average
from attnprobe.report.tradeoff.points import Sweep
from attnprobe.report.tradeoff.rows import mean_name
from attnprobe.report.tradeoff.sentences import percent
from attnprobe.report.tradeoff.study import Study

SHARE = Axis(title="share of the class's cells that the mask keeps (%)", signed=False)
MOST_SITES = 24
"""Learnt masks that are shown by site."""


def kept_chart(study: Study, key: str) -> Chart | None:
    """Classes by mask, a view for each target; None where no mask says what it keeps."""
    shown = [mean for mean in study.masked if mean.kept]
    targets = dict.fromkeys(None if math.isnan(mean.target) else mean.target for mean in shown)
    if not targets:
        return None
    views = []
    for target in sorted(targets, key=lambda one: one or 0.0):
        of_target = [m for m in shown if m.target == target or (target is None and math.isnan(m.target))]
        views.append(_view(study, of_target, "No target" if target is None else f"Target {percent(target)}"))
    return Chart(
        key=key,
        title="Classes by mask",
        selector="Target",
        text="One cell is the share of a class's cells that a mask keeps, over sites, heads and the data. A random "
        "mask keeps as much of every class; where a learnt mask keeps more, it has found the class to be of use.",
        views=views,
    )


def site_chart(sweep: Sweep, study: Study) -> Chart | None:
    """Classes by site, a view for each learnt mask; None without kept.csv."""
    learnt = sorted(study.learnt, key=lambda mean: mean is not study.best)[:MOST_SITES]
    kept = sweep.kept[sweep.kept["point"].isin({point.point for mean in learnt for point in mean.points})]
    # heads of a site have as many cells, so a mean over heads is one over cells
    by_site = kept.groupby(["position_class", "point", "site"], as_index=False)["kept"].mean()
    columns = [by_site[name].tolist() for name in ("position_class", "point", "site", "kept")]
    shares = {(str(a), str(b), int(site)): float(share) for a, b, site, share in zip(*columns, strict=True)}
    views = [view for mean in learnt if (view := _site_view(mean, shares)) is not None]
    if not views:
        return None
    return Chart(
        key="kept-sites",
        title="Classes by site",
        selector="Learnt mask",
        text="The same for each site of a learnt mask, over its heads and seeds: at which depth a class is of use.",
        views=views,
    )


def kept_section(sweep: Sweep, study: Study) -> Section | None:
    """What each class keeps."""
    charts = [chart for chart in (kept_chart(study, "kept"), site_chart(sweep, study)) if chart is not None]
    return (
        Section(key="kept-classes", title="What each class of positions keeps", text=[], blocks=charts)
        if charts
        else None
    )


def _view(study: Study, means: Sequence[Mean], label: str) -> View:
    names = _in_order(name for mean in means for name in mean.kept)
    values = [[100 * mean.kept.get(name, math.nan) for name in names] for mean in means]
    rows = [mean.line.name for mean in means]
    columns = [class_tick(name) for name in names]
    best = next((mean for mean in means if mean is study.best), means[0])
    kept = sorted(best.kept, key=lambda name: -best.kept[name])
    return View(
        label=label,
        figure=heat(values, _texts(values), rows, columns, about=SHARE, top=100.0),
        alt=f"Share kept of {len(names)} classes by {len(means)} masks; {best.line.name} keeps most of "
        f"{class_tick(kept[0])} ({percent(best.kept[kept[0]], 0)}) and least of {class_tick(kept[-1])} "
        f"({percent(best.kept[kept[-1]], 0)}).",
        table=Table(
            caption=f"Per cents of each class's cells kept, {label[:1].lower()}{label[1:]}.",
            columns=["Mask", "Cell sparsity", *columns],
            rows=[
                [mean.line.name, percent(mean.sparsity), *line]
                for mean, line in zip(means, _texts(values, digits=1), strict=True)
            ],
        ),
    )


def _site_view(mean: Mean, shares: Mapping[tuple[str, str, int], float]) -> View | None:
    """`shares` are those of a class, point and site."""
    points = [point.point for point in mean.points]
    mine = [key for key in shares if key[1] in points]
    if not mine:
        return None
    classes = _in_order(name for name, _, _ in mine)
    sites = sorted({site for _, _, site in mine})
    values = [
        [100 * average(shares.get((name, point, site), math.nan) for point in points) for site in sites]
        for name in classes
    ]
    rows, columns = [class_tick(name) for name in classes], [str(site) for site in sites]
    return View(
        label=mean_name(mean),
        figure=heat(values, _texts(values), rows, columns, about=SHARE, column_title="site", top=100.0),
        alt=f"Share of {len(classes)} classes that {mean_name(mean)} keeps at each of {len(sites)} sites.",
        table=Table(
            caption=f"Per cents of each class's cells kept by {mean_name(mean)}, by site.",
            columns=["Class", *columns],
            rows=[[row, *line] for row, line in zip(rows, _texts(values, digits=1), strict=True)],
        ),
    )


def _texts(values: Sequence[Sequence[float]], digits: int = 0) -> list[list[str]]:
    return [[number(value, digits=digits) if math.isfinite(value) else NOT_MEASURED for value in row] for row in values]


def _in_order(names: Iterable[str]) -> list[str]:
    seen = set(names)
    return [name for name in PARTITION if name in seen] + sorted(seen - set(PARTITION))
