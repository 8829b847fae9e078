"""Masks of every kind, and which cells each is to keep, told cell by cell from its plain values."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS, GateMask, JointMask, Mask, PatternMask
from tests.references import masks as reference
from tests.references import patterns
from tests.references.masks import Text

SITES, HEADS = 2, 3
OFFSET = Granularity(name="offset", length=17, segment_aware=True)


def random_gates(granularity: Granularity, *, seed: int = 0, share: float = 0.4) -> Tensor:
    """bool (sites, heads, gates)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(SITES, HEADS, granularity.gates, generator=generator) < share


def gate_mask(granularity: Granularity = OFFSET, *, seed: int = 0, diagonal: str = "free") -> GateMask:
    return GateMask(granularity=granularity, gates=random_gates(granularity, seed=seed), diagonal=diagonal)


@cache
def pattern_cells(name: str, length: int, parameters: tuple[tuple[str, int], ...], causal: bool) -> patterns.Cells:
    return patterns.cells(name, length, dict(parameters), causal=causal)


def kept(mask: Mask, text: Text, site: int, head: int, i: int, j: int) -> bool:
    """What a mask is to do with a cell, from its plain values."""
    if isinstance(mask, JointMask):
        return all(kept(each, text, site, head, i, j) for each in mask.masks)
    if i == j and mask.diagonal != "free":
        return mask.diagonal == "keep"
    if isinstance(mask, PatternMask):
        return (i, j) in pattern_cells(mask.name, len(text.ids), tuple(mask.parameters.items()), text.causal)
    assert isinstance(mask, GateMask)
    gate = reference.gate(text, i, j, **mask.granularity.as_dict())
    return bool(mask.gates[site, head, gate])


MASKS: dict[str, Mask] = {
    **{f"offset, {diagonal}": gate_mask(diagonal=diagonal) for diagonal in DIAGONALS},
    "cell": gate_mask(Granularity(name="cell", length=13), diagonal="drop"),
    "block": gate_mask(Granularity(name="block", length=14, block_size=7), diagonal="keep"),
    "head": gate_mask(Granularity(name="head", length=13)),
    **{
        f"{name}, {diagonal}": PatternMask(name=name, parameters={}, diagonal=diagonal)
        for name, diagonal in (("star", "free"), ("bigbird", "drop"), ("strided", "keep"))
    },
    "window of 3": PatternMask(name="window", parameters={"reach": 3}),
    "joint": JointMask(masks=(gate_mask(seed=1), PatternMask(name="star", parameters={}, diagonal="drop"))),
    "joint, each its own diagonal": JointMask(masks=(gate_mask(diagonal="keep"), gate_mask(seed=2, diagonal="keep"))),
    "joint of a joint one": JointMask(
        masks=(PatternMask(name="strided", parameters={}), JointMask(masks=(gate_mask(seed=3), gate_mask(seed=4))))
    ),
}
