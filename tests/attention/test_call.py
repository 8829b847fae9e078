"""Masks of any form become validity and bias."""

from __future__ import annotations

import torch

from attnprobe.attention.call import split_mask
from tests.helpers.tolerance import assert_identical

QUERY = torch.zeros(2, 3, 5, 7)
OPEN = torch.tensor([True, False, True])


def test_no_mask_leaves_every_cell_valid() -> None:
    valid, bias = split_mask(None, QUERY, keys=11)
    assert_identical(valid, torch.ones(1, 1, 5, 11, dtype=torch.bool))
    assert bias is None


def test_booleans_pass_and_integers_say_which_to_keep() -> None:
    for mask in (OPEN, OPEN.long(), OPEN.to(torch.uint8)):
        valid, bias = split_mask(mask, QUERY, keys=3)
        assert_identical(valid, OPEN)
        assert bias is None


def test_an_additive_mask_is_split_into_what_it_closes_and_what_it_adds() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for closed in (torch.finfo(dtype).min, -torch.inf):
            valid, bias = split_mask(torch.tensor([-3.5, closed, 0.25], dtype=dtype), QUERY, keys=3)
            assert_identical(valid, OPEN)
            assert bias is not None
            assert_identical(bias, torch.tensor([-3.5, 0.0, 0.25], dtype=dtype))
