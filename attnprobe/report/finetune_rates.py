"""What was dropped at each site over the training, on the page of `attnprobe finetune`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from attnprobe.report.figures import ACCENT, axis, layout
from attnprobe.report.groups import Seeds
from attnprobe.report.numbers import rounded_all
from attnprobe.report.page import Chart, Figure, Json, Section, Swatch, Table, View
from attnprobe.report.tables import real, text
from attnprobe.report.tradeoff.means import average
from attnprobe.report.tradeoff.sentences import percent

FAINTEST = 0.25
"""Opacity of the first site's line; the last site's is 1."""
Sites = Mapping[int, Sequence[tuple[float, float]]]
"""Site -> (progress, rate), both 0 to 1, by rising progress."""


def rates_section(rates: pd.DataFrame, groups: Sequence[tuple[str, Seeds]]) -> Section | None:
    """A view for each method that drops anything, those whose rates change first; None where none does.

    Args:
        rates: ``rates.csv``.
        groups: each with the label of its view.
    """
    drawn = []
    for label, group in groups:
        names = {text(row.get("training")) for row in group.rows}
        sites = _by_site(rates[rates["training"].isin(names)])
        if any(rate > 0 for line in sites.values() for _, rate in line):
            drawn.append((label, sites))
    if not drawn:
        return None
    drawn.sort(key=lambda view: not _changes(view[1]))
    chart = Chart(
        key="rates",
        title="Share dropped at each site, over the training",
        selector="Method",
        text="One line a site, the mean over the seeds; the stronger the line, the deeper the site. Press a site to "
        "hide or show its line.",
        views=[
            View(label=label, figure=_figure(sites), alt=_alt(label, sites), table=_table(label, sites))
            for label, sites in drawn
        ],
    )
    return Section(key="rates", title="What was dropped, and when", text=[], blocks=[chart])


def _by_site(rates: pd.DataFrame) -> Sites:
    """The mean over seeds; what was not measured is left out."""
    found: dict[int, dict[float, list[float]]] = {}
    for row in rates.to_dict("records"):
        site, progress, rate = (real(row[name]) for name in ("site", "progress", "rate"))
        if math.isfinite(site + progress + rate):
            found.setdefault(int(site), {}).setdefault(round(progress, 4), []).append(rate)
    return {site: [(at, average(of)) for at, of in sorted(found[site].items())] for site in sorted(found)}


def _changes(sites: Sites) -> bool:
    """Whether a site's rate is not the same throughout."""
    return any(max(rate for _, rate in line) - min(rate for _, rate in line) > 1e-6 for line in sites.values())


def _figure(sites: Sites) -> Figure:
    traces: list[dict[str, Json]] = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(line) == 1 else "lines",
            "legendgroup": f"site-{site}",
            "x": rounded_all(100 * progress for progress, _ in line),
            "y": rounded_all(100 * rate for _, rate in line),
            "line": {"color": ACCENT, "width": 2},
            "opacity": _opacity(place, len(sites)),
            "hovertemplate": f"site {site + 1}, at %{{x}} %: %{{y}} %<extra></extra>",
        }
        for place, (site, line) in enumerate(sites.items())
    ]
    return Figure(
        data=traces,
        layout=layout(
            xaxis=axis("training done, %", showgrid=False, range=[0, 100.5]),
            yaxis=axis("", rangemode="tozero", nticks=6),
            margin={"l": 8, "r": 16, "t": 8, "b": 8},
        ),
        height=320,
        heading="share dropped, %",
        swatches=[_swatch(place, site, len(sites)) for place, site in enumerate(sites)],
    )


def _swatch(place: int, site: int, count: int) -> Swatch:
    shade = f"color-mix(in srgb, {ACCENT} {100 * _opacity(place, count):.0f}%, transparent)"
    return Swatch(series=f"site-{site}", label=f"site {site + 1}", color=shade, dash="", mark="", hollow=False)


def _opacity(place: int, count: int) -> float:
    return round(1 - (1 - FAINTEST) * (count - 1 - place) / max(count - 1, 1), 2)


def _alt(label: str, sites: Sites) -> str:
    ends = [f"site {site + 1} from {percent(line[0][1])} to {percent(line[-1][1])}" for site, line in sites.items()]
    return f"{label}, share dropped over the training: {'; '.join(ends)}."


def _table(label: str, sites: Sites) -> Table:
    rows = [
        [str(site + 1), *map(percent, (line[0][1], line[-1][1], average(rate for _, rate in line)))]
        for site, line in sites.items()
    ]
    return Table(caption=f"Share dropped, {label}.", columns=["Site", "At first", "At last", "Mean"], rows=rows)
