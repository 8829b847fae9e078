"""Align the heads of adjacent sites, so that head i adds to the head that is most like it.

Head indices of an ordinary checkpoint mean nothing from one site to the next, but in a residual model head i of a site
takes in head i of the site below. Likeness of two heads is the correlation of their scores within rows, over data: with
c a score less its row's mean over valid keys,

    r(a, b) = sum c_a c_b / sqrt(sum c_a^2 sum c_b^2),    over all valid cells of all texts

A constant added to a row changes no softmax, so the rows' means are left out. Each site is matched to the one below it
by the assignment with the largest sum (Kuhn 1955, `scipy.optimize.linear_sum_assignment`), from the bottom up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession, Site, evaluating
from attnprobe.attention.sites import example_inputs
from attnprobe.errors import UnsupportedModelError
from attnprobe.residual.heads import reorder_heads
from attnprobe.scoring import first_output

UNCHANGED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""How far outputs may differ after heads have moved, relative to the largest: the order of sums differs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """An order of the heads of every site.

    Attributes:
        orders: (sites, heads): which head of the checkpoint each is.
        before, after: (sites - 1,): mean correlation of the scores of head i with those of head i below it.
    """

    orders: NDArray[np.int64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]


class ScoreLikeness:
    """Collects the correlation of scores of adjacent sites' heads; see the module. Handed to ``session.carry``.

    It changes nothing: it gives every site its own scores.

    Attributes:
        products: float64 (sites - 1, heads below, heads above): sum c_a c_b.
        squares: float64 (sites, heads): sum c^2.
    """

    def __init__(self, *, sites: int, heads: int) -> None:
        self.products = torch.zeros(sites - 1, heads, heads, dtype=torch.float64)
        self.squares = torch.zeros(sites, heads, dtype=torch.float64)
        self._below: Tensor | None = None

    def __call__(self, call: AttentionCall, scores: Tensor) -> Tensor:
        """Take a site's scores in, and give them back."""
        valid = call.valid.expand(scores.shape)
        kept = scores.detach().float().masked_fill(~valid, 0.0)
        mean = kept.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp_min(1)
        centred = (kept - mean).masked_fill(~valid, 0.0).transpose(0, 1).flatten(1)
        site = call.site.index
        self.squares[site] += centred.square().sum(1).double().cpu()
        if site > 0 and self._below is not None:
            self.products[site - 1] += (self._below.to(centred.device) @ centred.T).double().cpu()
        self._below = centred if site < len(self.squares) - 1 else None
        return scores

    def correlations(self) -> NDArray[np.float64]:
        """r(a, b): (sites - 1, heads below, heads above), 0 where a head's scores never vary."""
        scale = (self.squares[:-1].unsqueeze(2) * self.squares[1:].unsqueeze(1)).sqrt()
        return torch.where(scale > 0, self.products / scale.clamp_min(1e-300), 0.0).numpy()


def collect(session: AttentionSession, batches: Iterable[dict[str, Tensor]]) -> NDArray[np.float64]:
    """Correlations of adjacent sites' heads over data, see :class:`ScoreLikeness`."""
    likeness = ScoreLikeness(sites=len(session.sites), heads=session.sites[0].heads)
    with session.carry(likeness), evaluating(session.model), torch.no_grad():
        for inputs in batches:
            first_output(session.model, inputs)
    return likeness.correlations()


def matched(likeness: NDArray[np.float64], site: Site) -> list[int]:
    """The head of a site for every head below it, so that the sum of their likeness is largest.

    Args:
        likeness: (heads below, heads above).
        site: the upper one; groups of heads that share keys stay together, in any order within.
    """
    size, groups = site.heads // site.kv_heads, site.kv_heads
    inner = {
        (below, above): linear_sum_assignment(_block(likeness, below, above, size), maximize=True)
        for below in range(groups)
        for above in range(groups)
    }
    total = np.array(
        [
            [_block(likeness, below, above, size)[inner[below, above]].sum() for above in range(groups)]
            for below in range(groups)
        ]
    )
    _, chosen = linear_sum_assignment(total, maximize=True)
    return [int(above) * size + int(head) for below, above in enumerate(chosen) for head in inner[below, int(above)][1]]


def _block(likeness: NDArray[np.float64], below: int, above: int, size: int) -> NDArray[np.float64]:
    return likeness[below * size : (below + 1) * size, above * size : (above + 1) * size]


def align(session: AttentionSession, batches: Iterable[dict[str, Tensor]]) -> Alignment:
    """Put the heads of an attached model into the order in which adjacent sites are most alike, in place.

    Args:
        session: the attached model.
        batches: inputs of the model; what likeness is measured on.

    Raises:
        UnsupportedModelError: layers are shared, or what the heads compute depends on their place (as with position
            biases by head); the model is then as it was.
    """
    if session.shared:
        raise UnsupportedModelError(
            "the layers are shared, so that the heads of all sites are in one order already: leave the alignment out"
        )
    likeness = collect(session, batches)
    heads = session.sites[0].heads
    orders = [list(range(heads))]
    for site, of_pair in zip(session.sites[1:], likeness, strict=True):
        orders.append(matched(of_pair[orders[-1]], site))
    _reorder(session, orders)
    own = np.arange(heads)
    return Alignment(
        orders=np.array(orders),
        before=likeness[:, own, own].mean(1),
        after=np.array([pair[a, b].mean() for pair, a, b in zip(likeness, orders[:-1], orders[1:], strict=True)]),
    )


def _reorder(session: AttentionSession, orders: list[list[int]]) -> None:
    model = session.model
    inputs = example_inputs(model)
    with evaluating(model), torch.no_grad():
        expected = first_output(model, inputs)
        for site, order in zip(session.sites, orders, strict=True):
            reorder_heads(model, site, order)
        found = first_output(model, inputs)
    scale = max(1.0, float(expected.abs().max()))
    if float((found - expected).abs().max()) / scale > UNCHANGED[expected.dtype]:
        for site, order in zip(session.sites, orders, strict=True):
            reorder_heads(model, site, np.argsort(order).tolist())
        raise UnsupportedModelError(
            f"the heads of {type(model).__name__} can't change places: something else in the model depends on their "
            "order, as position biases by head do; leave the alignment out"
        )
