"""Gates over the ragged texts, as the tests of gates make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from attnprobe.masks.gates import SHARINGS, Gates
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS
from attnprobe.masks.relaxations import RELAXATIONS
from attnprobe.masks.sparsity import GateCounts, count_gates
from tests.helpers.ragged import TEXTS, positions_of
from tests.references.masks import Text

SITES, HEADS = 2, 3
OFFSET = Granularity(name="offset", length=17)
KINDS = {
    "cell": Granularity(name="cell", length=13),
    "block": Granularity(name="block", length=15, block_size=5),
    "head": Granularity(name="head", length=13),
    "offset": OFFSET,
}
EVERY_RELAXATION = pytest.mark.parametrize("relaxation", RELAXATIONS)
EVERY_SHARING = pytest.mark.parametrize("share", SHARINGS)
EVERY_DIAGONAL = pytest.mark.parametrize("diagonal", DIAGONALS)


def count(granularity: Granularity, diagonal: str, texts: Iterable[Text] = TEXTS) -> GateCounts:
    return count_gates(granularity, [positions_of(tuple(texts))], diagonal=diagonal)


def make(granularity: Granularity = OFFSET, *, diagonal: str = "free", **options: Any) -> Gates:
    return Gates(granularity, count(granularity, diagonal), sites=SITES, heads=HEADS, diagonal=diagonal, **options)


def scatter(gates: Gates, *, scale: float = 3.0, at: float = 0.0, seed: int = 0) -> Gates:
    """Draw the logits wide apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        gates.logits.copy_(at + scale * torch.randn(gates.logits.shape, generator=generator))
    return gates


def density(gates: Gates) -> float:
    return float(gates.density().detach())
