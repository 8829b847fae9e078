"""One attention call, cell by cell, in Python's own float64. Written from the formula; shares no code with attnprobe.

s_ij = softcap * tanh(scale * q_i . k_j / softcap) + b_ij
p_ij = exp(s_ij) / sum of exp(s_il) over the kept keys l     (a cell that is not kept: 0)
p_ij = p_ij * g_ij, and / sum of p_il * g_il if renormalised (a row that sums to 0: 0)
o_i  = sum of p_ij v_j
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    keep: Tensor,
    gate: Tensor | None = None,
    renormalise: bool = True,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of every query head, each with the key and value head of its group.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        scaling: factor on the dot products.
        keep: bool (batch, heads, queries, keys): validity and boolean gates together.
        gate: float (batch, heads, queries, keys), or None for all ones.
        renormalise: whether gated rows are divided by their sum.
        bias: (batch, heads, queries, keys), added to the scores.
        softcap: bound of the scores.

    Returns:
        float64 outputs (batch, heads, queries, value_dim) and probabilities (batch, heads, queries, keys).
    """
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    q, k, v = query.tolist(), key.tolist(), value.tolist()
    kept = keep.tolist()
    gates = None if gate is None else gate.tolist()
    biases = None if bias is None else bias.tolist()
    outputs = torch.zeros(batch, heads, queries, value.shape[-1], dtype=torch.float64)
    probabilities = torch.zeros(batch, heads, queries, keys, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            group = h * kv_heads // heads
            for i in range(queries):
                weights = [0.0] * keys
                for j in range(keys):
                    if not kept[b][h][i][j]:
                        continue
                    score = scaling * sum(x * y for x, y in zip(q[b][h][i], k[b][group][j], strict=True))
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    if biases is not None:
                        score += biases[b][h][i][j]
                    weights[j] = math.exp(score)
                row = _normalised(weights)
                if gates is not None:
                    row = [p * g for p, g in zip(row, gates[b][h][i], strict=True)]
                    row = _normalised(row) if renormalise else row
                for j, p in enumerate(row):
                    probabilities[b, h, i, j] = p
                    for d, x in enumerate(v[b][group][j]):
                        outputs[b, h, i, d] += p * x
    return outputs, probabilities


def _normalised(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [w / total for w in weights] if total > 0 else [0.0] * len(weights)
