"""What an export applies, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnprobe.masks.mask import Mask
from attnprobe.masks.sparsity import account
from attnprobe.masks.tokens import TokenRules
from attnprobe.residual.stream import Residual

_DIAGONALS = {
    "free": "",
    "keep": ", every token's cell to itself kept",
    "drop": ", every token's cell to itself closed",
}


def _gates(description: Mapping[str, Any]) -> str:
    granularity = description["granularity"]
    name, length, size = granularity["name"], granularity["length"], granularity["block_size"]
    return {
        "cell": f"a gate for each pair of positions, for texts of up to {length} tokens",
        "offset": f"a gate for each distance up to {length - 1} tokens and class of token",
        "block": f"a gate for each square of {size} by {size} positions, for texts of up to {length} tokens",
        "head": "a gate for each head",
    }[name]


def _pattern(description: Mapping[str, Any]) -> str:
    parameters = ", ".join(f"{name} {value}" for name, value in description["parameters"].items())
    return f"the fixed pattern {description['name']}" + (f" ({parameters})" if parameters else "")


def _joint(description: Mapping[str, Any]) -> str:
    return " and ".join(map(_in_words, description["masks"]))


_KINDS: dict[str, Callable[[Mapping[str, Any]], str]] = {"gates": _gates, "pattern": _pattern, "joint": _joint}


def _in_words(description: Mapping[str, Any]) -> str:
    return _KINDS[description["kind"]](description) + _DIAGONALS[description["diagonal"]]


def in_words(mask: Mask) -> str:
    """A mask as a noun phrase."""
    return _in_words(mask.describe())


def residual_in_words(residual: Residual) -> str:
    """Residual attention as a noun phrase."""
    if residual.canonical:
        return {"sum": "RealFormer's running sum of scores", "mean": "RealFormer's running mean of scores"}[
            residual.variant
        ]
    low, high = float(residual.gates.min()), float(residual.gates.max())
    kind = {"sum": "a gated sum of scores", "mean": "a gated mean of scores"}[residual.variant]
    return f"{kind}, gates from {low:.2f} to {high:.2f}"


def kept_share(mask: Mask, rules: TokenRules, *, sites: int, heads: int, length: int) -> float:
    """Share of the cells of one text of so many tokens that is kept, over sites and heads: 0 to 1."""
    full = account(mask, (), rules, sites=sites, heads=heads, length=length)
    return 1 - full.nominal
