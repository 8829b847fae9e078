"""Fixed attention patterns as sets of cells (query, key), in plain Python. Shares no code with attnprobe.

Each collects its cells in the papers' own words: offsets to either side, blocks, random draws. `causal` only tells
bigbird which keys it may draw from; the caller leaves out the future.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Cells = set[tuple[int, int]]


def cells(name: str, length: int, parameters: Mapping[str, int], *, causal: bool = False) -> Cells:
    """The cells that a pattern keeps of `length` tokens."""
    if name == "bigbird":
        return bigbird(length, **parameters, causal=causal)
    patterns: dict[str, Callable[..., Cells]] = {
        "window": window,
        "star": star,
        "longformer": longformer,
        "strided": strided,
        "fixed": fixed,
        "logsparse": logsparse,
    }
    return patterns[name](length, **parameters)


def at_offset(length: int, offset: int) -> Cells:
    """Every token to the tokens that are `offset` after and before it."""
    found = set()
    for i in range(length):
        for j in (i + offset, i - offset):
            if 0 <= j < length:
                found.add((i, j))
    return found


def window(length: int, reach: int) -> Cells:
    found = set()
    for offset in range(min(reach, length) + 1):
        found |= at_offset(length, offset)
    return found


def longformer(length: int, reach: int, globals: int) -> Cells:
    found = window(length, reach)
    for first in range(min(globals, length)):
        for other in range(length):
            found |= {(first, other), (other, first)}
    return found


def star(length: int, reach: int) -> Cells:
    return longformer(length, reach, 1)


def bigbird(length: int, reach: int, globals: int, random_keys: int, seed: int, *, causal: bool) -> Cells:
    found = longformer(length, reach, globals)
    for i in range(length):
        ranked = sorted((scramble(j ^ scramble(i ^ scramble(seed))), j) for j in range(i + 1 if causal else length))
        found |= {(i, j) for _, j in ranked[:random_keys]}
    return found


def scramble(word: int) -> int:
    """One of the permutations of 32-bit words of the kind xor-shift, multiply."""
    word = (word + 2654435769) % 2**32
    word = (word ^ word // 2**16) * 569420461 % 2**32
    word = (word ^ word // 2**15) * 1935289751 % 2**32
    return word ^ word // 2**15


def strided(length: int, stride: int) -> Cells:
    found = window(length, stride)
    for offset in range(0, length, stride):
        found |= at_offset(length, offset)
    return found


def fixed(length: int, stride: int, columns: int) -> Cells:
    found = set()
    for start in range(0, length, stride):
        block = range(start, start + stride)
        found |= {(i, j) for i in block for j in block}
        found |= {(i, j) for i in range(length) for j in block[stride - columns :]}
    return {(i, j) for i, j in found if i < length and j < length}


def logsparse(length: int, reach: int) -> Cells:
    found = at_offset(length, 0)
    offset = 1
    while offset < length and offset <= reach:
        found |= at_offset(length, offset)
        offset *= 2
    return found
