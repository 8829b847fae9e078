"""Masks, gates and their accounts, token by token and cell by cell, in Python's own float64.

Written from the definitions; shares no code with attnprobe. A text is a row without padding, a cell a pair
(query, key), a gate is known by its number.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Cell = tuple[int, int]

ZONES = ("other", "cls_key", "cls_query", "sep_key", "sep_query", "cross_segment")
CAUSAL_ZONES = ("other", "first_key", "cross_segment")
CLASSES = (
    *("diagonal", "cls_key", "cls_query", "sep_key", "sep_query"),
    *("previous", "next", "neighbour", "cross_segment", "other"),
)
CAUSAL_CLASSES = (
    *("diagonal", "first_key", "first_query", "sep_key", "sep_query"),
    *("previous", "neighbour", "cross_segment", "other"),
)


@dataclass(frozen=True, kw_only=True)
class Text:
    """One row without padding: its token ids, the ids of [CLS] and [SEP] where there are such, and the attention."""

    ids: tuple[int, ...]
    cls: int | None = None
    sep: int | None = None
    causal: bool = False

    def cells(self) -> list[Cell]:
        """The valid ones."""
        n = len(self.ids)
        return [(i, j) for i in range(n) for j in range(n) if j <= i or not self.causal]

    def segment(self, i: int) -> int:
        """-1: a special token; 0: before the first [SEP]; 1: behind it."""
        if self.ids[i] in (self.cls, self.sep):
            return -1
        return 1 if self.sep in self.ids[:i] and self.sep is not None else 0

    def crosses(self, i: int, j: int) -> bool:
        """Whether the cell is between the two texts of a pair."""
        return {self.segment(i), self.segment(j)} == {0, 1}


def zone(text: Text, i: int, j: int, *, segment_aware: bool) -> str:
    """The zone of a cell: columns of special tokens before their rows, [CLS] before [SEP]."""
    if text.causal:
        found = "first_key" if j == 0 else "other"
    elif text.cls is not None and text.ids[j] == text.cls:
        found = "cls_key"
    elif text.cls is not None and text.ids[i] == text.cls:
        found = "cls_query"
    elif text.sep is not None and text.ids[j] == text.sep:
        found = "sep_key"
    elif text.sep is not None and text.ids[i] == text.sep:
        found = "sep_query"
    else:
        found = "other"
    return "cross_segment" if found == "other" and segment_aware and text.crosses(i, j) else found


def gate(
    text: Text,
    i: int,
    j: int,
    *,
    name: str,
    length: int,
    block_size: int,
    symmetric: bool,
    segment_aware: bool,
    causal: bool,
) -> int:
    """The number of a cell's gate."""
    if name == "cell":
        return i * length + j
    if name == "block":
        return i // block_size * (length // block_size) + j // block_size
    if name == "head":
        return 0
    if causal or symmetric:
        distances = list(range(length))
        distance = abs(i - j)
    else:
        distances = list(range(-length + 1, length))
        distance = i - j
    nearest = min(distances, key=lambda known: abs(known - distance))
    zones = CAUSAL_ZONES if causal else ZONES
    where = zones.index(zone(text, i, j, segment_aware=segment_aware))
    return where * len(distances) + distances.index(nearest)


def position_class(text: Text, i: int, j: int, *, window: int) -> str:
    """The position class of a cell."""
    cls = 0 if text.causal else text.cls
    key, query = (j, i) if text.causal else (text.ids[j], text.ids[i])
    names = ("first_key", "first_query") if text.causal else ("cls_key", "cls_query")
    if i == j:
        return "diagonal"
    if cls is not None and cls in (key, query):
        return names[0] if key == cls else names[1]
    if text.sep is not None and text.sep in (text.ids[i], text.ids[j]):
        return "sep_key" if text.ids[j] == text.sep else "sep_query"
    if abs(i - j) == 1:
        return "previous" if i > j else "next"
    if abs(i - j) <= window:
        return "neighbour"
    return "cross_segment" if text.crosses(i, j) else "other"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Cells by gate, cells that the diagonal keeps, valid cells."""

    cells: Counter[int]
    fixed: int
    valid: int


def count(texts: Iterable[Text], number: Callable[[Text, int, int], int], *, diagonal: str) -> Counts:
    """Count the cells of every gate."""
    cells: Counter[int] = Counter()
    fixed = valid = 0
    for text in texts:
        for i, j in text.cells():
            valid += 1
            if i == j and diagonal != "free":
                fixed += diagonal == "keep"
            else:
                cells[number(text, i, j)] += 1
    return Counts(cells=cells, fixed=fixed, valid=valid)


Keep = Callable[[Text, int, int, int, int], bool]
"""Whether a mask keeps a cell: (text, site, head, query, key)."""


def kept_by_class(
    texts: Iterable[Text], keep: Keep, *, sites: int, heads: int, window: int
) -> tuple[Counter[tuple[int, int, str]], Counter[str]]:
    """Cells kept by (site, head, class), and valid cells of one head by class."""
    kept: Counter[tuple[int, int, str]] = Counter()
    valid: Counter[str] = Counter()
    for text in texts:
        for i, j in text.cells():
            name = position_class(text, i, j, window=window)
            valid[name] += 1
            for site, head in itertools.product(range(sites), range(heads)):
                kept[site, head, name] += keep(text, site, head, i, j)
    return kept, valid


def grid_sparsities(text: Text, keep: Keep, *, sites: int, heads: int, size: int) -> tuple[float, float]:
    """Share of a full row's cells that are removed, and of its blocks in which nothing is kept."""
    cells, kept = 0, 0
    blocks: set[tuple[int, int, int, int]] = set()
    kept_blocks: set[tuple[int, int, int, int]] = set()
    for site, head in itertools.product(range(sites), range(heads)):
        for i, j in text.cells():
            cells += 1
            block = (site, head, i // size, j // size)
            blocks.add(block)
            if keep(text, site, head, i, j):
                kept += 1
                kept_blocks.add(block)
    return 1 - kept / cells, 1 - len(kept_blocks) / len(blocks)


def fill(scores: Sequence[float], costs: Sequence[int], budget: int) -> list[bool]:
    """Open gates from the highest score down, the first of equals first, each that still fits."""
    kept = [False] * len(scores)
    for at in sorted(range(len(scores)), key=lambda at: (-scores[at], at)):
        if costs[at] <= budget:
            budget -= costs[at]
            kept[at] = True
    return kept


def best_worth(scores: Sequence[float], costs: Sequence[int], budget: int) -> float:
    """The most that any choice of gates within the budget is worth, of all choices; a gate: score times cost."""
    best = 0.0
    for choice in itertools.product((False, True), repeat=len(scores)):
        chosen = [at for at, taken in enumerate(choice) if taken]
        if sum(costs[at] for at in chosen) <= budget:
            best = max(best, math.fsum(scores[at] * costs[at] for at in chosen))
    return best


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for any x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def drawn(relaxation: str, alpha: float, noise: float, tau: float) -> float:
    """A gate as drawn."""
    gate = sigmoid((alpha + noise) / tau)
    if relaxation == "soft":
        return gate
    if relaxation in ("hard", "straight-through"):
        return 1.0 if alpha + noise > 0 else 0.0
    return min(1.0, max(0.0, gate * 1.2 - 0.1))


def open_probability(relaxation: str, alpha: float, tau: float) -> float:
    """Probability that a gate is drawn above 0 (hard-concrete), above a half (soft), as 1 (the others).

    A hard-concrete gate is above 0 where its Gumbel-sigmoid is above 1/12, which is sigmoid(log(1/11)).
    """
    edge = tau * math.log(1 / 11) if relaxation == "hard-concrete" else 0.0
    return sigmoid(alpha - edge)


def expected_density(
    logits: Sequence[Sequence[float]],
    cells: Sequence[int],
    *,
    fixed: int,
    valid: int,
    relaxation: str,
    temperature: float,
    smoothness: float,
) -> float:
    """Expected share of valid cells that are kept, over rows of logits (one a site and head)."""
    kept = [
        math.fsum(
            open_probability(relaxation, alpha / temperature, smoothness) * cost
            for alpha, cost in zip(row, cells, strict=True)
        )
        for row in logits
    ]
    return (math.fsum(kept) / len(kept) + fixed) / valid
