"""Masks drawn by cell, their probability, and their storage in bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def draw(logits: Tensor) -> Tensor:
    """Keep each cell with probability sigmoid(logit), by torch's own generator, in float32: bool, as the logits."""
    return torch.rand(logits.shape, device=logits.device) < torch.sigmoid(logits.detach().float())


def drawn_through(logits: Tensor) -> Tensor:
    """A draw as 0 and 1, with the gradient of sigmoid(logit) (straight-through; Bengio et al. 2013): as the logits."""
    probability = torch.sigmoid(logits.float())
    return draw(logits).float() + probability - probability.detach()


def log_probability(logits: Tensor, kept: Tensor, valid: Tensor) -> Tensor:
    """Mean over a row's valid cells, at all sites, of log P(d), d = 1 where kept.

    Args:
        logits: (batch, sites, queries, keys) of keeping.
        kept: bool, alike.
        valid: bool (batch, queries, keys).

    Returns:
        (batch,), in nats a cell.
    """
    each = functional.logsigmoid(torch.where(kept, logits, -logits))
    cells = valid.unsqueeze(1).expand_as(each)
    return (each * cells).sum((1, 2, 3)) / cells.sum((1, 2, 3)).clamp_min(1)


def packed(bits: Tensor) -> Tensor:
    """Booleans of any shape, eight to a byte: uint8 (ceil(count / 8),)."""
    flat = functional.pad(bits.flatten().to(torch.uint8), (0, -bits.numel() % 8)).view(-1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def unpacked(bytes_: Tensor, shape: torch.Size) -> Tensor:
    """Back from :func:`packed`: bool."""
    bits = (bytes_.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=bytes_.device)) & 1
    return bits.flatten()[: shape.numel()].view(shape).bool()
