"""RealFormer (He et al. 2021) as slow float64 numpy, head by head and row by row, built from the paper's formulas.

Two whole models, each *built* with residual attention and given the weights of transformers' model: BERT (post-norm,
bidirectional) and GPT-2 (pre-norm, causal, one token at a time with a cache of keys and values). Gates are an extension
of ours: 1 everywhere is RealFormer, 0 everywhere the plain Transformer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]


def weights_of(model: Any) -> Weights:
    """A torch model's weights as float64."""
    return {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}


def residual_row(
    row: Array, below: Array | None, gate: float, count: float, variant: str
) -> tuple[Array, Array, float]:
    """One row of one head: (what softmax sees, what is handed on, its count).

    Args:
        row: (keys,), q k^T / sqrt(d) of this site.
        below: (keys,), what the site below handed on; None at the first.
        gate: of this site and head.
        count: of the site below.
        variant: ``sum`` or ``mean``.
    """
    if below is None:
        return row, row, 1.0
    total = row + gate * below
    count = 1.0 + gate * count
    return (total / count if variant == "mean" else total), total, count


def bert(w: Weights, ids: Array, mask: Array, *, heads: int, gates: Array, variant: str, eps: float = 1e-12) -> Array:
    """The last hidden state of BERT as a RealFormer: (batch, tokens, width).

    Args:
        w: weights of a ``BertModel``.
        ids: int (batch, tokens).
        mask: (batch, tokens), 1 for tokens.
        heads: of each layer.
        gates: (layers - 1, heads).
        variant: ``sum`` or ``mean``.
        eps: of layer normalisation.
    """
    return np.stack([_bert_text(w, i, m, heads, gates, variant, eps) for i, m in zip(ids, mask, strict=True)])


def _bert_text(w: Weights, ids: Array, mask: Array, heads: int, gates: Array, variant: str, eps: float) -> Array:
    e = "embeddings"
    positions = np.arange(len(ids))
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][positions]
    x = x + w[f"{e}.token_type_embeddings.weight"][0]
    x = _norm(x, w, f"{e}.LayerNorm", eps)
    keys = np.flatnonzero(mask)
    handed: dict[tuple[int, int], tuple[Array, float]] = {}
    for layer in range(len(gates) + 1):
        p = f"encoder.layer.{layer}"
        q, k, v = (_linear(x, w, f"{p}.attention.self.{name}") for name in ("query", "key", "value"))
        size = x.shape[1] // heads
        mixed = np.zeros_like(x)
        for head in range(heads):
            at = slice(head * size, (head + 1) * size)
            for token in range(len(ids)):
                row = k[:, at] @ q[token, at] / math.sqrt(size)
                below, count = handed.get((head, token), (None, 1.0))
                gate = 0.0 if layer == 0 else float(gates[layer - 1, head])
                seen, total, count = residual_row(row, below, gate, count, variant)
                handed[head, token] = (total, count)
                mixed[token, at] = _softmax(seen[keys]) @ v[keys][:, at]
        x = _norm(x + _linear(mixed, w, f"{p}.attention.output.dense"), w, f"{p}.attention.output.LayerNorm", eps)
        inner = _gelu(_linear(x, w, f"{p}.intermediate.dense"))
        x = _norm(x + _linear(inner, w, f"{p}.output.dense"), w, f"{p}.output.LayerNorm", eps)
    return x


def gpt2(w: Weights, ids: Array, *, heads: int, gates: Array, variant: str, eps: float = 1e-5) -> Array:
    """The logits of GPT-2 as a RealFormer, one text, token by token with a cache: (tokens, vocabulary).

    A step carries one row through the layers; keys and values of earlier tokens are cached, their scores are not.
    """
    layers = len(gates) + 1
    cache: list[tuple[list[Array], list[Array]]] = [([], []) for _ in range(layers)]
    logits = []
    for position, token in enumerate(ids):
        x = w["transformer.wte.weight"][token] + w["transformer.wpe.weight"][position]
        handed: dict[int, tuple[Array, float]] = {}
        for layer in range(layers):
            p = f"transformer.h.{layer}"
            normed = _norm(x[None], w, f"{p}.ln_1", eps)[0]
            q, k, v = np.split(normed @ w[f"{p}.attn.c_attn.weight"] + w[f"{p}.attn.c_attn.bias"], 3)
            cache[layer][0].append(k)
            cache[layer][1].append(v)
            all_k, all_v = (np.stack(part) for part in cache[layer])
            size = len(x) // heads
            mixed = np.zeros_like(x)
            for head in range(heads):
                at = slice(head * size, (head + 1) * size)
                row = all_k[:, at] @ q[at] / math.sqrt(size)
                below, count = handed.get(head, (None, 1.0))
                gate = 0.0 if layer == 0 else float(gates[layer - 1, head])
                seen, total, count = residual_row(row, below, gate, count, variant)
                handed[head] = (total, count)
                mixed[at] = _softmax(seen) @ all_v[:, at]
            x = x + mixed @ w[f"{p}.attn.c_proj.weight"] + w[f"{p}.attn.c_proj.bias"]
            normed = _norm(x[None], w, f"{p}.ln_2", eps)[0]
            inner = _gelu_tanh(normed @ w[f"{p}.mlp.c_fc.weight"] + w[f"{p}.mlp.c_fc.bias"])
            x = x + inner @ w[f"{p}.mlp.c_proj.weight"] + w[f"{p}.mlp.c_proj.bias"]
        logits.append(_norm(x[None], w, "transformer.ln_f", eps)[0] @ w["transformer.wte.weight"].T)
    return np.stack(logits)


def _softmax(row: Array) -> Array:
    powers = np.exp(row - row.max())
    probabilities: Array = powers / powers.sum()
    return probabilities


def _linear(x: Array, w: Weights, name: str) -> Array:
    result: Array = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    return result


def _norm(x: Array, w: Weights, name: str, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    result: Array = scaled * w[f"{name}.weight"] + w[f"{name}.bias"]
    return result


def _gelu(x: Array) -> Array:
    result: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result
