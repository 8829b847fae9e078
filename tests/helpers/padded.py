"""Positions of texts of given lengths, padded on either side."""

from __future__ import annotations

import torch

from attnprobe.data.positions import Positions, locate


def positions(*lengths: int, padding: int = 0, side: str = "right", causal: bool = False) -> Positions:
    """A batch of texts, padded to the longest and `padding` more."""
    mask = torch.zeros(len(lengths), max(lengths) + padding, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, real(length, mask.shape[1], side)] = 1
    nothing = torch.zeros_like(mask, dtype=torch.bool)
    inputs = {"input_ids": mask, "attention_mask": mask}
    return locate(inputs, nothing, None, cls_id=None, sep_id=None, causal=causal)


def real(length: int, tokens: int, side: str) -> slice:
    """Where the text is, in a row of so many tokens."""
    return slice(0, length) if side == "right" else slice(tokens - length, tokens)
