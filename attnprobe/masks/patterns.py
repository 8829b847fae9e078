"""Fixed attention patterns, told by token position: the same on either side of padding, at any length."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attnprobe.data.positions import Positions
from attnprobe.errors import UsageError


def window(at: Positions, reach: int) -> Tensor:
    """Keep cells with \\|i - j\\| <= reach."""
    return at.offset.abs() <= reach


def star(at: Positions, reach: int) -> Tensor:
    """Keep a window, and the first token's row and column (Star-Transformer, Guo et al. 2019, with reach 1)."""
    first = at.index == 0
    return window(at, reach) | first.unsqueeze(1) | first.unsqueeze(2)


PATTERNS: dict[str, Callable[[Positions, int], Tensor]] = {"window": window, "star": star}
"""Cells kept by each pattern, bool (batch, queries, keys), from the positions and a reach in tokens."""


def pattern_mask(name: str, at: Positions, *, reach: int) -> Tensor:
    """The cells that a named pattern keeps: bool (batch, queries, keys).

    Raises:
        UsageError: an unknown pattern or a negative reach.
    """
    if name not in PATTERNS:
        raise UsageError(f"unknown pattern {name!r}; choose from {', '.join(PATTERNS)}")
    if reach < 0:
        raise UsageError(f"the reach of a pattern must be 0 or more tokens, not {reach}")
    return PATTERNS[name](at, reach)
