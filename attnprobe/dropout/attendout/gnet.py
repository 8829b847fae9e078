"""The G-Net: a small self-attention network of its own whose attention scores say what to keep of the model's."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class GNet(nn.Module):
    """Gives every site's logits of keeping a cell, from the token ids alone.

    As many layers as the model has sites, one head, one group of parameters for all layers, no feed-forward layer and
    no output layer (Wu et al. 2021, arXiv:2104.04692v3, 3.2). With h the states (tokens, rank) below a layer::

        s = (h Wq)(h Wk)^T / sqrt(rank)          P(keep) = sigmoid(s + b)
        h <- norm(h + softmax(s) (h Wv))

    The paper is silent about positions, initialisation and b: here positions are sinusoids, s begins near 0, and b, a
    number for each site, begins at logit(1 - rate), so that layers that share all else can differ in their rate.

    Args:
        sites: number of sites.
        width: of the embeddings that it reads.
        rank: its own width.
        rate: share of the cells that it drops at first.
        vocabulary: number of tokens of embeddings of its own; None: it is given those of the model.
    """

    def __init__(self, *, sites: int, width: int, rank: int, rate: float, vocabulary: int | None = None) -> None:
        super().__init__()
        self.sites, self.rank = sites, rank
        self.embeddings = None if vocabulary is None else nn.Embedding(vocabulary, width)
        self.enter = nn.Linear(width, rank, bias=False)
        self.query, self.key, self.value = (nn.Linear(rank, rank) for _ in range(3))
        self.norm = nn.LayerNorm(rank)
        self.bias = nn.Parameter(torch.full((sites,), math.log((1 - rate) / rate)))
        nn.init.normal_(self.query.weight, std=0.1 / math.sqrt(rank))
        nn.init.zeros_(self.query.bias)

    def forward(self, embedded: Tensor, valid: Tensor, positions: Tensor) -> Tensor:
        """The logits.

        Args:
            embedded: (batch, tokens, width), what the tokens are to the model.
            valid: bool (batch, tokens, tokens), the cells that exist.
            positions: (batch, tokens), number of each token in its row.

        Returns:
            (batch, sites, queries, keys), float32.
        """
        states = self.norm(self.enter(embedded.float()) + sinusoids(positions, self.rank))
        closed = torch.finfo(torch.float32).min
        logits = []
        for site in range(self.sites):
            scores = self.query(states) @ self.key(states).transpose(1, 2) / math.sqrt(self.rank)
            logits.append(scores + self.bias[site])
            weights = functional.softmax(scores.masked_fill(~valid, closed), dim=-1)
            states = self.norm(states + weights @ self.value(states))
        return torch.stack(logits, dim=1)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sine and cosine of positions at geometrically falling frequencies (Vaswani et al. 2017): (..., width)."""
    half = (width + 1) // 2
    frequencies = torch.exp(-math.log(10000.0) / half * torch.arange(half, device=positions.device))
    angles = positions.unsqueeze(-1).float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]


def valid_cells(attention_mask: Tensor, *, causal: bool) -> Tensor:
    """Cells between tokens that are no padding, keys not behind queries where causal: bool (batch, tokens, tokens)."""
    real = attention_mask.bool()
    valid = real.unsqueeze(2) & real.unsqueeze(1)
    return valid.tril() if causal else valid
