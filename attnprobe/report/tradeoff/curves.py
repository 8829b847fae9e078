"""The trade-off as curves: metric, or drop, against each kind of sparsity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.figures import INK, layout, plain
from attnprobe.report.numbers import estimate, number, rounded, rounded_all
from attnprobe.report.page import Chart, Figure, Json, View
from attnprobe.report.tradeoff.frames import Frame, across, close_frame, drop_frame, metric_frame, references, up
from attnprobe.report.tradeoff.labels import SPARSITIES, Sparsity
from attnprobe.report.tradeoff.means import INTERVALS, Line, Mean
from attnprobe.report.tradeoff.sentences import percent, points
from attnprobe.report.tradeoff.study import Study, front
from attnprobe.report.tradeoff.styles import Style, styles_of

HEIGHT = 460


def curves_chart(study: Study, key: str) -> Chart | None:
    """One view for each kind of sparsity and of figure; None where there is nothing to draw."""
    styles = styles_of(mean.line for mean in study.masked)
    views = [view for sparsity in SPARSITIES for view in _views(study, sparsity, styles)]
    if not views:
        return None
    return Chart(
        key=key,
        title=f"{study.metric.capitalize()} against sparsity",
        selector="Show",
        text="Each line is a method; each large mark is its mean over the seeds at one target, with a line for the "
        "95 % interval, each small dot one seed. Hollow marks: the weights were tuned too. Higher and further right is "
        f"better. Press a name to hide or show its line. {INTERVALS}",
        views=views,
    )


def _views(study: Study, sparsity: Sparsity, styles: dict[Line, Style]) -> list[View]:
    drawn = [mean for mean in study.masked if math.isfinite(mean.of(sparsity.field))]
    if not drawn:
        return []
    metric = f"{study.metric} against {sparsity.label}"
    frames: dict[str, Frame | None] = {metric: metric_frame(study)}
    if sparsity is SPARSITIES[0]:
        frames[f"{metric}, close to dense"] = close_frame(study, drawn)
    frames[f"drop against {sparsity.label}"] = drop_frame(study, drawn)
    return [
        View(
            label=label[:1].upper() + label[1:],
            figure=_figure(study, sparsity, frame, drawn, styles),
            alt=_alt(study, sparsity, drawn),
        )
        for label, frame in frames.items()
        if frame is not None
    ]


def _figure(study: Study, sparsity: Sparsity, frame: Frame, drawn: Sequence[Mean], styles: dict[Line, Style]) -> Figure:
    pareto = front(study, sparsity.field)
    chosen = [mean for mean in drawn if mean.exported]
    lines = list(dict.fromkeys(mean.line for mean in drawn))
    traces = [_front_trace(pareto, sparsity, frame)] if len(pareto) > 1 else []
    for line in reversed(lines):  # learnt lines, which come first, are drawn last
        of_line = sorted((m for m in drawn if m.line == line), key=lambda mean: mean.of(sparsity.field))
        traces += [_line_trace(of_line, sparsity, frame, styles[line]), *_seeds(of_line, sparsity, frame, styles[line])]
    traces += [_chosen_trace(chosen, sparsity, frame)] if chosen else []
    shapes, notes = references(study, frame)
    return Figure(
        data=traces,
        layout=layout(
            xaxis=across(drawn, sparsity, sparsity.axis.format(size=_block(study))),
            yaxis=up(study, frame, drawn),
            shapes=shapes,
            annotations=[*notes, *(_chosen_note(mean, sparsity, frame) for mean in chosen)],
            margin={"l": 8, "r": 16, "t": 16, "b": 8},
        ),
        height=HEIGHT,
        heading=frame.title,
        key=_key(study, frame, pareto, chosen),
        swatches=[styles[line].swatch(line.name) for line in lines],
    )


def _line_trace(of_line: Sequence[Mean], sparsity: Sparsity, frame: Frame, style: Style) -> dict[str, Json]:
    places = [frame.place(mean) for mean in of_line]
    learnt = of_line[0].line.kind == "learnt"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "legendgroup": style.series,
        "x": [_x(mean.of(sparsity.field)) for mean in of_line],
        "y": rounded_all(value for value, _, _ in places),
        "text": [_hover(mean, sparsity) for mean in of_line],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": style.color, "width": 2.5 if learnt else 1.5, "dash": style.dash},
        "marker": {
            "symbol": style.mark,
            "size": 10 if learnt else 8,
            "color": "var(--page)" if style.hollow else style.color,
            "line": {"color": style.color, "width": 1.5},
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_whisker(high - value) for value, _, high in places],
            "arrayminus": [_whisker(value - low) for value, low, _ in places],
            "color": style.color,
            "thickness": 1.5 if learnt else 1,
            "width": 0,
        },
    }


def _seeds(of_line: Sequence[Mean], sparsity: Sparsity, frame: Frame, style: Style) -> list[dict[str, Json]]:
    """The single points behind means; nothing where each mean is of one."""
    single = [point for mean in of_line if len(mean.points) > 1 for point in mean.points]
    if not single:
        return []
    trace: dict[str, Json] = {
        "type": "scatter",
        "mode": "markers",
        "legendgroup": style.series,
        "x": [_x(getattr(point, sparsity.field)) for point in single],
        "y": rounded_all(frame.place(point)[0] for point in single),
        "text": [plain(f"{_which(point.seed, point.draw)}: {number(point.value)}") for point in single],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 4, "color": style.color, "opacity": 0.6},
    }
    return [trace]


def _front_trace(pareto: Sequence[Mean], sparsity: Sparsity, frame: Frame) -> dict[str, Json]:
    """The front as steps: up to a mean's sparsity, its metric can be had."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [_x(mean.of(sparsity.field)) for mean in pareto],
        "y": rounded_all(frame.place(mean)[0] for mean in pareto),
        "line": {"color": "var(--pareto)", "width": 9, "shape": "vh"},
        "hoverinfo": "skip",
    }


def _chosen_trace(chosen: Sequence[Mean], sparsity: Sparsity, frame: Frame) -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_x(mean.of(sparsity.field)) for mean in chosen],
        "y": rounded_all(frame.place(mean)[0] for mean in chosen),
        "marker": {"symbol": "circle-open", "size": 20, "color": INK, "line": {"width": 2, "color": INK}},
        "hoverinfo": "skip",
    }


def _chosen_note(mean: Mean, sparsity: Sparsity, frame: Frame) -> Json:
    return {
        "x": _x(mean.of(sparsity.field)),
        "y": rounded(frame.place(mean)[0]),
        "text": "exported",
        "font": {"size": 12, "color": INK},
        "bgcolor": "var(--page)",
        "ax": -34,
        "ay": 40,
        "arrowcolor": INK,
        "arrowwidth": 1,
        "arrowhead": 0,
        "standoff": 11,
    }


def _key(study: Study, frame: Frame, pareto: Sequence[Mean], chosen: Sequence[Mean]) -> list[tuple[str, str]]:
    dense = study.dense is not None
    entries = {
        ("front", "Pareto front"): len(pareto) > 1,
        ("bar", "dense" if frame.drop else "dense, with its interval"): dense,
        ("dashes ink", "dense, weights tuned"): dense and study.tuned_dense is not None,
        ("limit", "limit of --max-drop (met by the bound on the rows held out)"): dense and study.max_drop >= 0,
        ("choice", "exported"): bool(chosen),
    }
    return [entry for entry, shown in entries.items() if shown]


def _hover(mean: Mean, sparsity: Sparsity) -> str:
    value = estimate(mean.value, mean.low, mean.high)
    parts = [
        mean.line.name,
        f"{sparsity.label} {percent(mean.of(sparsity.field))}",
        f"{value} (mean of {mean.repeats})" if mean.repeats else value,
        f"drop {points(mean.drop, mean.drop_low, mean.drop_high)}",
    ]
    return "<br>".join(map(plain, parts))


def _alt(study: Study, sparsity: Sparsity, drawn: Sequence[Mean]) -> str:
    ranked = sorted(drawn, key=lambda mean: mean.value)
    ends = [f"{number(m.value, digits=3)} ({m.line.name} at {percent(m.of(sparsity.field))})" for m in ranked]
    dense = f", dense {number(study.dense.value, digits=3)}" if study.dense is not None else ""
    what = f"{study.metric.capitalize()} of {len(drawn)} masks against {sparsity.label}"
    return f"{what}: from {ends[0]} to {ends[-1]}{dense}."


def _block(study: Study) -> str:
    size = next((point.block_size for point in study.points if math.isfinite(point.block_size)), math.nan)
    return f" of {size:.0f} × {size:.0f} tokens" if math.isfinite(size) else ""


def _which(seed: float, draw: float) -> str:
    parts = [f"seed {seed:.0f}" if math.isfinite(seed) else "", f"draw {draw:.0f}" if math.isfinite(draw) else ""]
    return ", ".join(part for part in parts if part) or "one of several"


def _whisker(length: float) -> float | None:
    return rounded(length) if math.isfinite(length) else 0.0


def _x(share: float) -> float | None:
    """A share in per cents, to the hundredth."""
    return round(100 * share, 2) if math.isfinite(share) else None
