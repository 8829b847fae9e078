"""A look for each line: colour by method, mark by granularity or pattern, hollow where weights were tuned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attnprobe.report.page import Swatch
from attnprobe.report.tradeoff.labels import DASHES, SYMBOLS, color, mark
from attnprobe.report.tradeoff.means import Line


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a line is drawn: a CSS variable, Plotly's names of dash and mark, and the name its traces share."""

    series: str
    color: str
    dash: str
    mark: str
    hollow: bool

    def swatch(self, label: str) -> Swatch:
        """Its entry in a figure's key."""
        return Swatch(
            series=self.series,
            label=label,
            color=self.color,
            dash=DASHES[self.dash],
            mark=SYMBOLS[self.mark],
            hollow=self.hollow,
        )


def styles_of(lines: Iterable[Line]) -> dict[Line, Style]:
    """The style of each line; lines that would look alike differ in their dashes."""
    taken: dict[tuple[str, str, bool], int] = {}
    styles: dict[Line, Style] = {}
    for line in dict.fromkeys(lines):
        look = (color(line.method, line.train), mark(line.method, line.granularity), line.tuned)
        alike = taken.get(look, 0)
        taken[look] = alike + 1
        styles[line] = Style(
            series=f"line-{len(styles)}",
            color=look[0],
            mark=look[1],
            hollow=look[2],
            dash=list(DASHES)[alike % len(DASHES)],
        )
    return styles
