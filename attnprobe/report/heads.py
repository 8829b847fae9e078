"""What heads do: average attention maps, entropy of their rows, divergence from the site below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from attnprobe.report.figures import Axis, Dot, swarm
from attnprobe.report.labels import UNIONS, class_name
from attnprobe.report.maps import BUDGET, COLUMNS, ROWS, encode_maps
from attnprobe.report.numbers import compact, estimate, number, typeset
from attnprobe.report.page import Chart, Maps, Section, Table, Tile, View
from attnprobe.report.sections import measures
from attnprobe.report.tables import Effect, Run, real, text, whole

Record = Mapping[object, object]
Place = tuple[int, int]
SPECIAL = {"included": "special tokens included", "excluded": "special tokens excluded"}


def map_section(run: Run) -> Section | None:
    """Average attention of every head by token position."""
    if run.maps is None or run.counts is None or not run.counts.any():
        return None
    budget = round(BUDGET * min(1, ROWS * COLUMNS / (run.maps.shape[0] * run.maps.shape[1])))
    images = encode_maps(run.maps, run.counts, budget=budget)
    facts = _facts_by_head(run)
    tiles = [
        Tile(
            row=row,
            column=column,
            label=f"site {site}, head {head}",
            image=images.uris[row][column],
            facts=[found.get((site, head), "") for found in facts.values()],
        )
        for row, site in enumerate(images.sites)
        for column, head in enumerate(images.heads)
    ]
    grid = Maps(
        key="maps",
        text="One pixel is one cell: queries run down, keys to the right. Rows are sites, columns heads. All maps "
        f"share one scale; colour grows with the square root of attention, up to {number(images.peak, digits=2)}. "
        "Open a map to enlarge it; arrow keys go to its neighbours.",
        rows=[str(site) for site in images.sites],
        columns=[str(head) for head in images.heads],
        facts=list(facts),
        tiles=tiles,
        size=images.positions,
        peak=number(images.peak, digits=2),
    )
    return Section(key="maps", title="What heads look at", text=images.notes, blocks=[grid])


def entropy_section(run: Run) -> Section | None:
    """Entropy by site and head, and divergence between adjacent sites."""
    records = [record for record in run.heads.to_dict("records") if text(record["site"]) and text(record["head"])]
    groups = {
        label: chosen
        for name, label in SPECIAL.items()
        if (chosen := [record for record in records if text(record["special"]) == name])
    }
    if not groups:
        return None
    charts = [
        Chart(
            key="entropy",
            title="Entropy of attention rows",
            selector="Rows",
            text="Each dot is one head: the median entropy of its rows in nats, with a line from the lower to the "
            "upper quartile; heads are sorted within their site and the bar marks the site's median. Low entropy means "
            "that a token attends to few others.",
            views=[_entropy_view(label, chosen) for label, chosen in groups.items()],
        )
    ]
    views = [
        _divergence_view(f"{title}, {label}", key, chosen)
        for key, title in (("jsd_previous", "same head number"), ("jsd_matched", "best-matching head"))
        for label, chosen in groups.items()
        if any(math.isfinite(real(record.get(key))) for record in chosen)
    ]
    if views:
        charts.append(
            Chart(
                key="divergence",
                title="Divergence from the site below",
                selector="Compare with",
                text="Each dot is one head: the Jensen-Shannon divergence (nats; 0.69 is the most there can be) of its "
                "rows from a head of the site below. The number of a head means nothing across sites, so the "
                "comparison after matching is the fairer one.",
                views=views,
            )
        )
    return Section(key="entropy", title="How focused heads are, and how much sites differ", text=[], blocks=charts)


def _entropy_view(label: str, records: Sequence[Record]) -> View:
    table = Table(
        caption=f"Entropy in nats, {label}.",
        columns=["Site", "Head", "Median", "Quartiles", "Mean [95 % interval]"],
        rows=[
            [
                str(whole(record["site"])),
                str(whole(record["head"])),
                number(real(record.get("entropy_median"))),
                f"{number(real(record.get('entropy_q25')))} to {number(real(record.get('entropy_q75')))}",
                estimate(*_reals(record, "entropy_mean", "entropy_ci_low", "entropy_ci_high")),
            ]
            for record in records
        ],
    )
    keys = ("entropy_median", "entropy_q25", "entropy_q75")
    return _swarm_view(label, records, "entropy of a row (nats)", keys, table, whisker="quartiles of its rows")


def _divergence_view(label: str, key: str, records: Sequence[Record]) -> View:
    keys = (key, f"{key}_ci_low", f"{key}_ci_high")
    shown = [record for record in records if math.isfinite(real(record.get(key)))]
    table = Table(
        caption=f"Divergence in nats, {label}.",
        columns=["Site", "Head", "Head of the site below", "Divergence"],
        rows=[
            [
                str(whole(record["site"])),
                str(whole(record["head"])),
                str(whole(record.get("matched_head") if key == "jsd_matched" else record["head"])),
                estimate(*_reals(record, *keys)),
            ]
            for record in shown
        ],
    )
    return _swarm_view(label, shown, "Jensen-Shannon divergence (nats)", keys, table, whisker="95 % interval")


def _swarm_view(
    label: str, records: Sequence[Record], title: str, keys: tuple[str, str, str], table: Table, *, whisker: str
) -> View:
    """One dot a head by site; `keys` are the columns of its value and of both ends of its line."""
    groups: dict[int, list[Dot]] = {}
    for record in records:
        site, head = int(real(record["site"])), int(real(record["head"]))
        value, low, high = _reals(record, *keys)
        groups.setdefault(site, []).append(Dot(label=f"site {site}, head {head}", value=value, low=low, high=high))
    sites = sorted(groups)
    medians = [f"{number(median(dot.value for dot in groups[site]))} at site {site}" for site in (sites[0], sites[-1])]
    return View(
        label=label.capitalize(),
        figure=swarm(
            [groups[site] for site in sites],
            [str(site) for site in sites],
            Axis(title=title),
            x_title="site",
            whisker=whisker,
        ),
        alt=f"{title}, {label}: the median head has {medians[0]} and {medians[1]}.",
        table=table,
    )


def _reals(record: Record, *keys: str) -> list[float]:
    return [real(record.get(key)) for key in keys]


def _facts_by_head(run: Run) -> dict[str, dict[Place, str]]:
    """What the enlarged map says of its head, by name and (site, head): entropy, divergence, effects, classes."""
    facts: dict[str, dict[Place, str]] = {"Entropy, median row": {}, "Nearest head of the site below": {}}
    entropy, nearest = facts.values()
    for record in run.heads.to_dict("records"):
        site, head = whole(record["site"]), whole(record["head"])
        if text(record["special"]) == "included" and site is not None and head is not None:
            entropy[site, head] = f"{compact(real(record.get('entropy_median')))} nats"
            if math.isfinite(jsd := real(record.get("jsd_matched"))):
                nearest[site, head] = f"head {whole(record.get('matched_head'))} (divergence {compact(jsd)} nats)"
    heads = _of_heads(run, "head")
    for measure in measures(row for _, row in heads):
        facts[measure.label] = {
            place: typeset(estimate(row.value, row.low, row.high, signed=measure.signed))
            for place, row in heads
            if (row.method, row.unit) == (measure.method, measure.unit)
        }
    facts["Most of its attention goes to"] = {
        place: ", ".join(f"{class_name(row.position_class)} ({row.value:.0%})" for row in rows[:3])
        for place, rows in _class_rows(run).items()
    }
    return {name: found for name, found in facts.items() if found}


def _class_rows(run: Run) -> dict[Place, list[Effect]]:
    """The partition classes of every head, by falling share of its attention."""
    found: dict[Place, list[Effect]] = {}
    for place, row in sorted(_of_heads(run, "class_head"), key=lambda pair: -pair[1].value):
        if (row.method, row.unit) == ("mass", "share") and row.position_class not in UNIONS:
            found.setdefault(place, []).append(row)
    return found


def _of_heads(run: Run, level: str) -> list[tuple[Place, Effect]]:
    """The measured rows of single heads, each with its (site, head)."""
    return [
        ((row.site, row.head), row)
        for row in run.effects
        if row.level == level and row.measured and row.site is not None and row.head is not None
    ]
