"""Plotly figures of the house style: dots with intervals, heat maps, lines with a band. Colours are CSS variables."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnprobe.report.numbers import compact, estimate, number, rounded, rounded_all, typeset
from attnprobe.report.page import Figure, Json
from attnprobe.report.scale import Scale, choose_scale

INK, MUTED, ACCENT, CONTROL, BAND = (f"var(--{name})" for name in ("ink", "muted", "accent", "control", "band"))
GRID, ZERO = "var(--grid)", "var(--zero)"
HEAT_DECADES = 2
DIVERGING = [f"var(--div-{step})" for step in range(5)]
RISING = DIVERGING[2::-1]
WHISKERS = 400
"""Points of a swarm beyond which their lines would only be clutter."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A labelled figure with its interval and control; NaN where there is none."""

    label: str
    value: float
    low: float
    high: float
    control: float = math.nan
    control_low: float = math.nan
    control_high: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What a value axis shows. `signed` values have a marked zero, a `ratio` a marked 1."""

    title: str
    signed: bool = True
    ratio: bool = False


def plain(text: str) -> str:
    """Text for a chart: Plotly reads a small HTML, so what comes from data is escaped. Hyphens become minus signs."""
    return html.escape(typeset(text), quote=False)


def layout(**more: Json) -> dict[str, Json]:
    """A layout in the house style; what is given has the last word."""
    base: dict[str, Json] = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 13},
        "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": GRID, "font": {"color": INK}},
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
    }
    return {**base, **more}


def axis(title: str = "", **more: Json) -> dict[str, Json]:
    """An axis in the house style: no frame, faint grid, fixed range, room for its labels."""
    base: dict[str, Json] = {
        "title": {"text": plain(title), "font": {"color": MUTED, "size": 12}, "standoff": 10},
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        "showline": False,
        "gridcolor": GRID,
        "tickfont": {"size": 12, "color": MUTED},
        "ticks": "",
    }
    return {**base, **more}


def value_axis(scale: Scale, drawn: Sequence[float], *, title: str = "") -> dict[str, Json]:
    """A value axis from 0, with its reference line and, on a logarithmic scale, ticks that name the true values."""
    finite = [value for value in drawn if math.isfinite(value)]
    more: dict[str, Json] = {} if scale.kind == "log" else {"rangemode": "tozero"}
    if finite and scale.kind != "linear":
        more |= _ticks(scale, min(finite), max(finite))
    return axis(title, zeroline=True, zerolinecolor=ZERO, zerolinewidth=1, **more)


def dots(groups: Sequence[Sequence[Dot]], about: Axis, *, control: str, row_height: int = 34) -> Figure:
    """Horizontal dots with 95 % intervals, a hollow control just below each; groups are set apart.

    The value itself stands at the right end of each row; a row without one says `n/a`.
    """
    everything = [dot for group in groups for dot in group]
    scale = _scale(everything, about)
    rows: list[tuple[float, Dot]] = []
    position = 0.0
    for group in groups:
        for dot in group:
            rows.append((position, dot))
            position += 1
        position += 0.5 if group else 0
    traces = [
        _dot_trace([(y, replace(dot)) for y, dot in rows], scale, name="measured", color=ACCENT, filled=True),
        _dot_trace(
            [(y + 0.26, Dot(label=d.label, value=d.control, low=d.control_low, high=d.control_high)) for y, d in rows],
            scale,
            name=control,
            color=CONTROL,
            filled=False,
        ),
    ]
    has_control = any(math.isfinite(dot.control) for dot in everything)
    longest = max((len(compact(dot.value, signed=about.signed)) for dot in everything), default=0)
    drawn = [value for dot in everything for value in (dot.value, dot.low, dot.high, dot.control)]
    return Figure(
        data=traces[: 1 + has_control],
        layout=layout(
            xaxis=value_axis(scale, drawn, title=about.title + scale.note),
            yaxis=axis(
                tickvals=[y for y, _ in rows],
                ticktext=[plain(dot.label) for _, dot in rows],
                tickfont={"size": 13, "color": INK},
                range=[position - 0.2, -0.7],
                showgrid=False,
            ),
            annotations=[_row_value(y, dot, about) for y, dot in rows],
            margin={"l": 8, "r": 16 + 7 * longest, "t": 8, "b": 8},
        ),
        height=round(position * row_height) + 64,
        key=[("dot", "measured, with its 95 % interval"), ("ring", control)][: 1 + has_control],
    )


def heat(
    values: Sequence[Sequence[float]],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    about: Axis,
    row_title: str = "",
    column_title: str = "",
    row_height: int = 26,
    top: float | None = None,
) -> Figure:
    """A heat map with its values in the cells where they fit. Signed values diverge from 0, others rise from 0.

    `top` is the value of the strongest colour on a linear scale; without it, scale and colours follow the values.
    """
    flat = [value for row in values for value in row if math.isfinite(value)]
    scale = choose_scale(flat, decades=HEAT_DECADES) if top is None else Scale()
    peak = top or max((abs(scale(value)) for value in flat), default=1.0) or 1.0
    colors = DIVERGING if about.signed else RISING
    bounds = (-max(map(abs, flat), default=1.0) if about.signed else 0.0, max(map(abs, flat), default=1.0))
    bar: dict[str, Json] = {
        "thickness": 8,
        "outlinewidth": 0,
        "len": 1,
        "tickfont": {"size": 11, "color": MUTED},
        "xpad": 6,
    }
    if scale.kind != "linear":
        bar |= _ticks(scale, *bounds)
    trace: dict[str, Json] = {
        "type": "heatmap",
        "x": [plain(label) for label in columns],
        "y": [plain(label) for label in rows],
        "z": [rounded_all(map(scale, row)) for row in values],
        "text": [[typeset(text) for text in row] for row in texts],
        "texttemplate": "%{text}",
        "textfont": {"size": 11, "color": INK},
        "hovertemplate": f"{plain(row_title)} %{{y}}, {plain(column_title)} %{{x}}: <b>%{{text}}</b><extra></extra>",
        "zmin": -peak if about.signed else 0,
        "zmax": peak,
        "colorscale": [[step / (len(colors) - 1), color] for step, color in enumerate(colors)],
        "xgap": 2,
        "ygap": 2,
        "colorbar": bar,
    }
    return Figure(
        data=[trace],
        layout=layout(
            xaxis=axis(column_title, type="category", showgrid=False, side="top"),
            yaxis=axis(row_title, type="category", showgrid=False, autorange="reversed"),
        ),
        height=len(rows) * row_height + 70,
        heading=about.title + scale.note,
    )


def line(
    x: Sequence[float],
    values: Sequence[Dot],
    about: Axis,
    *,
    x_title: str,
    control: str,
) -> Figure:
    """A line with its 95 % band, and its control as a dashed line; both named by a key above."""
    scale = _scale(values, about)
    lows, highs = ([scale(_or(a, dot.value)) for a, dot in zip(ends, values, strict=True)] for ends in _ends(values))
    band: dict[str, Json] = {
        "type": "scatter",
        "mode": "lines",
        "x": [*rounded_all(x), *rounded_all(reversed(x))],
        "y": [*rounded_all(highs), *rounded_all(reversed(lows))],
        "fill": "toself",
        "fillcolor": BAND,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    measured: dict[str, Json] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "measured",
        "x": rounded_all(x),
        "y": rounded_all(scale(dot.value) for dot in values),
        "line": {"color": ACCENT, "width": 2},
        "marker": {"size": 5},
        "text": [plain(f"{d.label}: {estimate(d.value, d.low, d.high, signed=about.signed)}") for d in values],
        "hovertemplate": "%{text}<extra></extra>",
    }
    controls: dict[str, Json] = {
        "type": "scatter",
        "mode": "lines",
        "name": plain(control),
        "x": rounded_all(x),
        "y": rounded_all(scale(dot.control) for dot in values),
        "line": {"color": CONTROL, "width": 1.5, "dash": "dash"},
        "text": [plain(f"{dot.label}: {number(dot.control, signed=about.signed)}") for dot in values],
        "hovertemplate": "%{text}, " + plain(control) + "<extra></extra>",
    }
    has_control = any(math.isfinite(dot.control) for dot in values)
    drawn = [value for dot in values for value in (dot.value, dot.low, dot.high, dot.control)]
    return Figure(
        data=[band, measured, controls][: 2 + has_control],
        layout=layout(
            xaxis=axis(x_title, showgrid=False, zeroline=True, zerolinecolor=GRID),
            yaxis=value_axis(scale, drawn),
        ),
        height=340,
        heading=about.title + scale.note,
        key=[("line", "measured"), ("band", "95 % interval"), ("dashes", control)][: 2 + has_control],
    )


def swarm(
    points: Sequence[Sequence[Dot]], columns: Sequence[str], about: Axis, *, x_title: str, whisker: str
) -> Figure:
    """Points by column, sorted within each, with a thin line from `low` to `high` and a bar at the column's median."""
    x: list[float] = []
    flat: list[Dot] = []
    bars: list[Json] = []
    for column, group in enumerate(points):
        ranked = sorted((dot for dot in group if math.isfinite(dot.value)), key=lambda dot: dot.value)
        step = 0.76 / max(len(ranked) - 1, 1)
        offset = 0.38 if len(ranked) > 1 else 0
        x += [column - offset + step * rank for rank in range(len(ranked))]
        flat += ranked
        if ranked:
            bars.append(_median_bar(column, ranked))
    lows, highs = _ends(flat)
    trace: dict[str, Json] = {
        "type": "scatter",
        "mode": "markers",
        "x": rounded_all(x),
        "y": rounded_all(dot.value for dot in flat),
        "marker": {"color": ACCENT, "size": 6},
        "text": [plain(dot.label) for dot in flat],
        "hovertemplate": "%{text}: %{y}<extra></extra>",
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [rounded(_or(high - dot.value, 0)) for high, dot in zip(highs, flat, strict=True)],
            "arrayminus": [rounded(_or(dot.value - low, 0)) for low, dot in zip(lows, flat, strict=True)],
            "color": "var(--whisker)",
            "thickness": 1,
            "width": 0,
        },
    }
    if len(flat) > WHISKERS:
        del trace["error_y"]
    return Figure(
        data=[trace],
        layout=layout(
            xaxis=axis(
                x_title,
                tickvals=list(range(len(columns))),
                ticktext=[plain(label) for label in columns],
                range=[-0.6, len(columns) - 0.4],
                showgrid=False,
            ),
            yaxis=value_axis(Scale(), []),
            shapes=bars,
        ),
        height=340,
        heading=about.title,
        key=[("dot", "one head"), ("bar", "median head of the site"), ("whisker", whisker)][: 2 + ("error_y" in trace)],
    )


def _row_value(y: float, dot: Dot, about: Axis) -> Json:
    """The value of a row, written at its right end."""
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "left",
        "xshift": 8,
        "y": y,
        "text": typeset(compact(dot.value, signed=about.signed)),
        "showarrow": False,
        "font": {"size": 12, "color": INK if math.isfinite(dot.value) else MUTED},
    }


def _ticks(scale: Scale, low: float, high: float) -> dict[str, Json]:
    """Ticks of a logarithmic scale; those next to 0 stay without a label, for want of room."""
    ticks = scale.ticks(low, high)
    labels = ["" if abs(tick) == scale.threshold else typeset(f"{tick:,g}") for tick in ticks]
    return {"tickvals": rounded_all(map(scale, ticks)), "ticktext": labels, "tickangle": 0}


def _median_bar(column: int, ranked: Sequence[Dot]) -> Json:
    middle = (ranked[(len(ranked) - 1) // 2].value + ranked[len(ranked) // 2].value) / 2
    return {
        "type": "line",
        "x0": column - 0.44,
        "x1": column + 0.44,
        "y0": rounded(middle),
        "y1": rounded(middle),
        "line": {"color": INK, "width": 2},
        "layer": "below",
    }


def _dot_trace(
    rows: Sequence[tuple[float, Dot]], scale: Scale, *, name: str, color: str, filled: bool
) -> dict[str, Json]:
    shown = [(y, dot) for y, dot in rows if math.isfinite(dot.value)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": rounded_all(scale(dot.value) for _, dot in shown),
        "y": rounded_all(y for y, _ in shown),
        "text": [plain(f"{dot.label}: {estimate(dot.value, dot.low, dot.high)}") for _, dot in shown],
        "hovertemplate": "%{text}<extra>" + plain(name) + "</extra>",
        "marker": {
            "color": color if filled else "var(--page)",
            "size": 9 if filled else 7,
            "line": {"color": color, "width": 0 if filled else 1.5},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [rounded(_or(scale(dot.high) - scale(dot.value), 0)) for _, dot in shown],
            "arrayminus": [rounded(_or(scale(dot.value) - scale(dot.low), 0)) for _, dot in shown],
            "color": color,
            "thickness": 2 if filled else 1,
            "width": 0,
        },
    }


def _ends(values: Sequence[Dot]) -> tuple[list[float], list[float]]:
    return [dot.low for dot in values], [dot.high for dot in values]


def _or(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def _scale(values: Sequence[Dot], about: Axis) -> Scale:
    drawn = [v for dot in values for v in (dot.value, dot.control)]
    noise = min((dot.high - dot.low for dot in values if dot.high > dot.low), default=0.0) / 2
    return choose_scale(drawn, ratio=about.ratio and not any(v <= 0 for v in drawn), noise=noise)
