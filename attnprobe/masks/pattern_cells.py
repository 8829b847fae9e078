"""The formulas of fixed attention patterns, told by token position: the same on either side of padding, at any length.

Indices i (query) and j (key) count a row's own tokens from 0, so that padding moves nothing. A pattern says which cells
it would keep, and of cells of padding it says anything; padding and causality are the seam's, which combines them with
it, and the diagonal is the caller's. Imports no torch, see :mod:`attnprobe.masks.patterns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from attnprobe.data.positions import Positions


def window(at: Positions, *, reach: int) -> Tensor:
    """Keep \\|i - j\\| <= reach: bool (batch, queries, keys)."""
    return at.offset.abs() <= reach


def first_tokens(at: Positions, *, globals: int) -> Tensor:
    """Keep i < globals or j < globals, rows and columns of the first tokens: bool (batch, queries, keys)."""
    first = at.index < globals
    return first.unsqueeze(1) | first.unsqueeze(2)


def star(at: Positions, *, reach: int) -> Tensor:
    """Keep \\|i - j\\| <= reach, i = 0 or j = 0: bool (batch, queries, keys).

    Star-Transformer, Guo et al. 2019, arXiv 1902.09113, with reach 1. Its centre is an extra node there; here it is the
    first token, as in SparseBERT, and there is no ring from the last token to the first.
    """
    return window(at, reach=reach) | first_tokens(at, globals=1)


def longformer(at: Positions, *, reach: int, globals: int) -> Tensor:
    """Keep \\|i - j\\| <= reach, i < globals or j < globals: bool (batch, queries, keys).

    Longformer, Beltagy et al. 2020, arXiv 2004.05150, whose window of w tokens is a reach of w / 2. Which tokens are
    global depends on the task there; here they are the first ones.
    """
    return window(at, reach=reach) | first_tokens(at, globals=globals)


def bigbird(at: Positions, *, reach: int, globals: int, random_keys: int, seed: int) -> Tensor:
    """Keep what :func:`longformer` keeps, and ``random_keys`` keys of every query: bool (batch, queries, keys).

    BigBird, Zaheer et al. 2020, arXiv 2007.14062, cell by cell where its code works on blocks, and with the same random
    keys at every site and head. See :func:`random_cells` for how they are drawn.
    """
    return longformer(at, reach=reach, globals=globals) | random_cells(at, keys=random_keys, seed=seed)


def random_cells(at: Positions, *, keys: int, seed: int) -> Tensor:
    """Keep some keys of every query at random: bool (batch, queries, keys).

    Every cell has a random number r(seed, i, j), distinct within a row of the matrix. A query keeps the keys of the
    lowest numbers among the tokens of its text (causal: among those not later than itself), all of them if there are no
    more. So the cells

    - depend on seed, i, j and the number of tokens, and on nothing else: not on padding, nor on the rest of the batch;
    - are drawn from all keys, as in the paper, so that some fall on cells that a pattern keeps anyway;
    - of fewer keys are among those of more keys;
    - of a longer text, where they lie within a shorter one, are among the shorter one's; under causal attention they
      are the same, so that a text can grow by tokens.
    """
    drawable = at.token.unsqueeze(1).expand_as(at.offset)
    if at.causal:
        drawable = drawable & (at.offset >= 0)
    if keys == 0:
        return drawable & False
    query = _scrambled(at.index ^ _scrambled(seed))
    number = _scrambled(at.index.unsqueeze(1) ^ query.unsqueeze(2)).masked_fill(~drawable, _WORD + 1)
    bound = number.topk(min(keys, number.shape[2]), largest=False).values[..., -1:]
    return drawable & (number <= bound)


_WORD = (1 << 32) - 1
_Word = TypeVar("_Word", "int", "Tensor")


def _scrambled(word: _Word) -> _Word:
    """A permutation of the whole numbers below 2^32 that looks random: rounds of xor-shift and multiplication.

    The factors are odd and below 2^31, so that products stay within int64.
    """
    word = (word + 0x9E3779B9) & _WORD
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 15)


def strided(at: Positions, *, stride: int) -> Tensor:
    """Keep \\|i - j\\| <= stride, or i - j a multiple of stride: bool (batch, queries, keys).

    Sparse Transformer, Child et al. 2019, arXiv 1904.10509, its two heads' patterns in one and, without causality,
    mirrored. Of n tokens it keeps about 2 stride / n + 1 / stride, at least 2 (2 / n)^(1/2): few for long texts only.
    """
    return window(at, reach=stride) | (at.offset % stride == 0)


def fixed(at: Positions, *, stride: int, columns: int) -> Tensor:
    """Keep i // stride = j // stride, or j % stride >= stride - columns: bool (batch, queries, keys).

    Sparse Transformer, Child et al. 2019, arXiv 1904.10509: blocks along the diagonal, and the last ``columns`` tokens
    of every block as summaries that all may read. Of n tokens it keeps about stride / n + columns / stride.
    """
    block = at.index // stride
    summary = at.index % stride >= stride - columns
    return (block.unsqueeze(2) == block.unsqueeze(1)) | summary.unsqueeze(1)


def logsparse(at: Positions, *, reach: int) -> Tensor:
    """Keep \\|i - j\\| in 0, 1, 2, 4, 8, ..., none above reach: bool (batch, queries, keys).

    LogSparse Transformer, Li et al. 2019, arXiv 1907.00235, without causality mirrored. The paper has no largest
    offset; it is here to meet a density.
    """
    distance = at.offset.abs()
    return (distance & (distance - 1) == 0) & (distance <= reach)
