"""Fixed patterns: known answers, and the same cells on either side of padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.data.positions import Positions, locate
from attnprobe.errors import UsageError
from attnprobe.masks.patterns import PATTERNS, pattern_mask
from tests.helpers.tolerance import assert_identical


def _positions(length: int, *, padding: int = 0, side: str = "right") -> Positions:
    mask = torch.zeros(1, length + padding, dtype=torch.long)
    columns = slice(0, length) if side == "right" else slice(padding, None)
    mask[:, columns] = 1
    nothing = torch.zeros_like(mask, dtype=torch.bool)
    return locate({"input_ids": mask, "attention_mask": mask}, nothing, None, cls_id=None, sep_id=None)


def _table(text: str) -> Tensor:
    return torch.tensor([[cell == "1" for cell in line.split()] for line in text.split("\n") if line.strip()])


WINDOW = _table(
    """
    1 1 0 0 0
    1 1 1 0 0
    0 1 1 1 0
    0 0 1 1 1
    0 0 0 1 1
    """
)
STAR = _table(
    """
    1 1 1 1 1
    1 1 1 0 0
    1 1 1 1 0
    1 0 1 1 1
    1 0 0 1 1
    """
)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("name", "expected"), [("window", WINDOW), ("star", STAR)])
def test_of_five_tokens(name: str, expected: Tensor, side: str) -> None:
    """The star's centre is the first token of the text, wherever its padding is."""
    kept = pattern_mask(name, _positions(5, padding=2, side=side), reach=1)
    real = slice(0, 5) if side == "right" else slice(2, 7)
    assert_identical(kept[0, real, real], expected)


def test_a_reach_of_nothing_is_the_diagonal_and_one_of_everything_keeps_all() -> None:
    at = _positions(7)
    assert_identical(pattern_mask("window", at, reach=0)[0], torch.eye(7, dtype=torch.bool))
    for name in PATTERNS:
        assert pattern_mask(name, at, reach=6).all()
        assert not pattern_mask(name, at, reach=5).all() or name == "star"


def test_the_star_of_128_tokens_leaves_out_96_13_percent() -> None:
    """3 n - 2 cells of the window, and n - 2 more in the first row and in the first column."""
    kept = pattern_mask("star", _positions(128), reach=1)
    assert kept.sum() == 3 * 128 - 2 + 2 * (128 - 2)
    assert f"{100 * (1 - kept.float().mean().item()):.2f}" == "96.13"


def test_what_can_not_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^unknown pattern 'ring'; choose from window, star$"):
        pattern_mask("ring", _positions(3), reach=1)
    with pytest.raises(UsageError, match=r"^the reach of a pattern must be 0 or more tokens, not -1$"):
        pattern_mask("window", _positions(3), reach=-1)
