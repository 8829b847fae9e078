"""What methods, variants and sparsities are called, and how a line is drawn: literal tables.

What a method is (learnt, scored, random, a fixed pattern) is told by the command's table, `attnprobe.sparsify.methods`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnprobe.sparsify.methods import METHODS

DENSE = "dense"
NAMES: dict[str, str] = {
    DENSE: "dense",
    "dam": "DAM",
    "random": "random mask",
    "magnitude": "magnitude mask",
    "taylor": "Taylor mask",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "logsparse": "LogSparse",
}
"""Names of methods where the key is not name enough."""

TRAINED: dict[str, str] = {
    "none": "",
    "gates": "frozen weights",
    "weights": "weights tuned",
    "all": "weights too",
}
DIAGONALS: dict[str, str] = {"keep": "diagonal kept", "drop": "diagonal removed"}
SHARED: dict[str, str] = {"sites": "shared by sites", "heads": "shared by heads"}


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """One of the three ways to count what a mask removes; `field` is that of a point, `axis` may hold `{size}`."""

    field: str
    label: str
    axis: str


SPARSITIES: tuple[Sparsity, ...] = (
    Sparsity(
        field="cell_sparsity",
        label="cell sparsity",
        axis="cell sparsity: valid cells removed, over the real lengths of the data",
    ),
    Sparsity(
        field="nominal_sparsity",
        label="nominal sparsity",
        axis="nominal sparsity: cells of the whole n × n grid removed",
    ),
    Sparsity(
        field="block_sparsity",
        label="block sparsity",
        axis="block sparsity: kernel blocks{size} that can be skipped",
    ),
)

_COLORS: dict[str, str] = {"random": "--random", "magnitude": "--magnitude", "taylor": "--taylor"}
SYMBOLS: dict[str, str] = {
    "circle": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z",
    "square": "M-3.6-3.6H3.6V3.6H-3.6Z",
    "diamond": "M0-5L5 0L0 5L-5 0Z",
    "triangle-up": "M0-5L4.6 3.4H-4.6Z",
    "triangle-down": "M0 5L-4.6-3.4H4.6Z",
    "star": "M0-5.5L1.4-1.7L5.3-1.7L2.2.7L3.3 4.6L0 2.3L-3.3 4.6L-2.2.7L-5.3-1.7L-1.4-1.7Z",
    "pentagon": "M0-5L4.8-1.5L2.9 4H-2.9L-4.8-1.5Z",
    "hexagon": "M-2.5-4.4H2.5L5 0L2.5 4.4H-2.5L-5 0Z",
    "cross": "M-1.6-4.8H1.6V-1.6H4.8V1.6H1.6V4.8H-1.6V1.6H-4.8V-1.6H-1.6Z",
    "x": "M-3.4-5L0-1.6L3.4-5L5-3.4L1.6 0L5 3.4L3.4 5L0 1.6L-3.4 5L-5 3.4L-1.6 0L-5-3.4Z",
    "bowtie": "M-5-4L5 4V-4L-5 4Z",
}
"""Plotly's names of marks, each with the SVG path that stands for it in a key."""

_OF_GRANULARITY = {"cell": "circle", "offset": "square", "block": "diamond", "head": "triangle-up"}
_OF_PATTERN = {
    "window": "triangle-down",
    "star": "star",
    "longformer": "pentagon",
    "bigbird": "hexagon",
    "strided": "cross",
    "fixed": "x",
    "logsparse": "bowtie",
}
DASHES: dict[str, str] = {"solid": "", "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}
"""Plotly's names of dashes, each with the SVG dash array that stands for it in a key."""


def kind(method: str) -> str:
    """`dense`, `learnt`, `scored`, `random`, `pattern`; a method that the table does not know is `scored`."""
    if method == DENSE:
        return DENSE
    return METHODS[method].kind if method in METHODS else "scored"


def method_name(method: str) -> str:
    """How a method is called in running text."""
    return NAMES.get(method, method)


def line_name(method: str, granularity: str, sharing: str, diagonal: str, train: str) -> str:
    """How a line of the trade-off is called: `DAM, offset, frozen weights`; what goes without saying is left out."""
    parts = [
        method_name(method),
        granularity if kind(method) not in (DENSE, "pattern") else "",
        SHARED.get(sharing, "") if kind(method) != "pattern" else "",
        DIAGONALS.get(diagonal, "") if method != DENSE else "",
        TRAINED.get(train, train),
    ]
    return ", ".join(part for part in parts if part)


def color(method: str, train: str) -> str:
    """The CSS variable of a line's colour."""
    found = kind(method)
    if found == "learnt":
        return "var(--tuned)" if train == "all" else "var(--learnt)"
    return f"var({_COLORS.get(method, '--pattern')})"


def mark(method: str, granularity: str) -> str:
    """Plotly's name of a line's mark."""
    return _OF_PATTERN.get(method) or _OF_GRANULARITY.get(granularity, "circle")
