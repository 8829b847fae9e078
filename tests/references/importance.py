"""Importance of attention, one example and one cell at a time, in float64. Shares no code with attnprobe.

A BERT classifier is run row by row from its weights alone; a cell is a pair (query, key); a set of cells may be taken
away at some sites and heads, with what is left of each row renormalised, or weighted without renormalising.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Cell = tuple[int, int]
Place = tuple[int, int, int, int]
"""(site, head, query, key)."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One pass: logits (labels,), and by site and head the probabilities, values and outputs, as nested lists."""

    logits: Tensor
    p: list[list[Tensor]]
    v: list[list[Tensor]]
    o: list[list[list[Tensor]]]


class ReferenceBert:
    """A post-norm BERT classifier in float64, from its state dict."""

    def __init__(self, weights: Mapping[str, Tensor], *, heads: int) -> None:
        self.weights = {name: tensor.detach().double() for name, tensor in weights.items()}
        self.heads = heads
        self.sites = 1 + max(int(name.split(".")[3]) for name in weights if name.startswith("bert.encoder.layer."))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def run(
        self,
        ids: Sequence[int],
        types: Sequence[int],
        *,
        removed: Iterable[Place] = (),
        factors: Tensor | None = None,
        renormalise: bool = True,
        graph: bool = False,
    ) -> Trace:
        """One pass over one example without padding.

        Args:
            ids: token ids.
            types: token types.
            removed: cells whose probability is 0.
            factors: of the probabilities, (sites, heads, queries, keys).
            renormalise: whether the rows are divided by their sum afterwards; an empty row stays 0.
            graph: whether the logits can be differentiated by the outputs.
        """
        n = len(ids)
        weight = torch.ones(self.sites, self.heads, n, n, dtype=torch.float64) if factors is None else factors
        for place in removed:
            weight[place] = 0.0
        table = "bert.embeddings."
        x = torch.stack(
            [
                self.weights[f"{table}word_embeddings.weight"][ids[i]]
                + self.weights[f"{table}position_embeddings.weight"][i]
                + self.weights[f"{table}token_type_embeddings.weight"][types[i]]
                for i in range(n)
            ]
        )
        x = self._norm(f"{table}LayerNorm", x)
        all_p, all_v, all_o = [], [], []
        for site in range(self.sites):
            layer = f"bert.encoder.layer.{site}."
            q, k, v = (self._linear(f"{layer}attention.self.{part}", x) for part in ("query", "key", "value"))
            width = q.shape[1] // self.heads
            heads_p, heads_v, heads_o = [], [], []
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                rows_p, rows_o = [], []
                for i in range(n):
                    scores = k[:, part] @ q[i, part] / math.sqrt(width)
                    p = torch.exp(scores - scores.max().detach())
                    row = p / p.sum() * weight[site, head, i]
                    if renormalise and float(row.detach().sum()) > 0:
                        row = row / row.sum()
                    rows_p.append(row)
                    rows_o.append(row @ v[:, part] + torch.zeros(width, dtype=torch.float64, requires_grad=graph))
                heads_p.append(torch.stack(rows_p))
                heads_v.append(v[:, part])
                heads_o.append(rows_o)
            all_p.append(heads_p)
            all_v.append(heads_v)
            all_o.append(heads_o)
            attended = torch.cat([torch.stack(rows) for rows in heads_o], dim=1)
            x = self._norm(
                f"{layer}attention.output.LayerNorm", self._linear(f"{layer}attention.output.dense", attended) + x
            )
            inner = self._linear(f"{layer}intermediate.dense", x)
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
            x = self._norm(f"{layer}output.LayerNorm", self._linear(f"{layer}output.dense", inner) + x)
        logits = self._linear("classifier", torch.tanh(self._linear("bert.pooler.dense", x[0])))
        return Trace(logits=logits, p=all_p, v=all_v, o=all_o)


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    """-log of the label's probability, in nats."""
    return torch.log(torch.exp(logits - logits.max().detach()).sum()) + logits.max().detach() - logits[label]


def kl(dense: Tensor, other: Tensor) -> float:
    """KL(dense || other) of two rows of logits, in nats."""
    total = 0.0
    dense_p, other_p = (np.exp(side.detach().numpy()) / np.exp(side.detach().numpy()).sum() for side in (dense, other))
    for a, b in zip(dense_p, other_p, strict=True):
        total += float(a) * math.log(a / b)
    return total


def everywhere(cells: Iterable[Cell], *, sites: Iterable[int], heads: Iterable[int]) -> list[Place]:
    """Cells at every named site and head."""
    cells, heads = list(cells), list(heads)
    return [(site, head, i, j) for site in sites for head in heads for i, j in cells]


PARTITION = (
    *("diagonal", "cls_key", "cls_query", "sep_key", "sep_query"),
    *("previous", "next", "neighbour", "cross_segment", "other"),
)
UNIONS = {
    "cls": ("cls_key", "cls_query"),
    "sep": ("sep_key", "sep_query"),
    "special": ("cls_key", "cls_query", "sep_key", "sep_query"),
    "window": ("diagonal", "previous", "next", "neighbour"),
}


def classes(
    ids: Sequence[int],
    segments: Sequence[int],
    *,
    cls: int,
    sep: int,
    window: int,
    include_special: bool = True,
) -> dict[str, list[Cell]]:
    """The cells of every class and union of one example."""
    found: dict[str, list[Cell]] = {name: [] for name in PARTITION}
    for i in range(len(ids)):
        for j in range(len(ids)):
            if not include_special and (ids[i] in (cls, sep) or ids[j] in (cls, sep)):
                continue
            if i == j:
                name = "diagonal"
            elif ids[j] == cls:
                name = "cls_key"
            elif ids[i] == cls:
                name = "cls_query"
            elif ids[j] == sep:
                name = "sep_key"
            elif ids[i] == sep:
                name = "sep_query"
            elif i - j == 1:
                name = "previous"
            elif i - j == -1:
                name = "next"
            elif -window <= i - j <= window:
                name = "neighbour"
            elif segments[i] != segments[j]:
                name = "cross_segment"
            else:
                name = "other"
            found[name].append((i, j))
    for union, members in UNIONS.items():
        found[union] = sorted(cell for name in members for cell in found[name])
    return found


def offset_cells(cells: Iterable[Cell], offset: int) -> list[Cell]:
    """Those of the cells at i - j = offset."""
    return [(i, j) for i, j in cells if i - j == offset]


def share(p: Tensor, cells: Iterable[Cell], measured: Iterable[Cell]) -> float:
    """Of the probability on the measured cells, the share on some."""
    table: list[list[float]] = p.tolist()
    return sum(table[i][j] for i, j in cells) / sum(table[i][j] for i, j in measured)


def uniform_share(cells: Iterable[Cell], measured: Sequence[Cell]) -> float:
    """The same with every row spread evenly over its measured cells."""
    in_row: dict[int, int] = {}
    for i, _ in measured:
        in_row[i] = in_row.get(i, 0) + 1
    return sum(1 / in_row[i] for i, _ in cells) / sum(1 / in_row[i] for i, _ in measured)


def gradients(trace: Trace, loss: Tensor) -> list[list[list[Tensor]]]:
    """dL/do of every row's output, by site, head, query."""
    flat = [o for site in trace.o for head in site for o in head]
    found = iter(torch.autograd.grad(loss, flat, retain_graph=True))
    return [[[next(found) for _ in head] for head in site] for site in trace.o]


def first_order(
    trace: Trace, g: list[list[list[Tensor]]], cells: Iterable[Cell], *, site: int, head: int, exact: bool
) -> float:
    """First-order effect of removing cells at one site and head, row by row.

    exact: g . (o after - o before), the row computed anew from what is left of it. Otherwise the slope at the full
    gate, each cell's - p_ij (g . v_j - g . o).
    """
    p, v = trace.p[site][head].tolist(), trace.v[site][head]
    rows: dict[int, list[int]] = {}
    for i, j in cells:
        rows.setdefault(i, []).append(j)
    total = 0.0
    for i, gone in rows.items():
        slope, o = g[site][head][i], trace.o[site][head][i]
        if exact:
            left = [j for j in range(len(v)) if j not in gone]
            mass = sum(p[i][j] for j in left)
            after = torch.zeros_like(o)
            for j in left:
                after = after + p[i][j] / mass * v[j]
            total += float(slope @ (after - o))
        else:
            for j in gone:
                total -= p[i][j] * float(slope @ v[j] - slope @ o)
    return total


def entropy(row: Sequence[float]) -> float:
    """-sum p log p, in nats."""
    return -sum(p * math.log(p) for p in row if p > 0)
