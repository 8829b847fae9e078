"""Cells of fixed patterns: drawn by hand, by a slow reference, known sparsities, and what is drawn at random."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from attnprobe.masks.pattern_cells import random_cells
from attnprobe.masks.patterns import PATTERNS, pattern_mask
from tests.helpers.padded import positions, real
from tests.helpers.tolerance import assert_identical
from tests.references import patterns as reference


def kept(name: str, length: int, **parameters: int) -> Tensor:
    """bool (queries, keys) of one text."""
    return pattern_mask(name, positions(length), parameters)[0]


def drawn(text: str) -> Tensor:
    return torch.tensor([[cell == "1" for cell in line.split()] for line in text.split("\n") if line.strip()])


def expected(name: str, length: int, parameters: Mapping[str, int], *, causal: bool) -> Tensor:
    """bool (queries, keys) of the reference, without the future."""
    cells = torch.zeros(length, length, dtype=torch.bool)
    for i, j in reference.cells(name, length, parameters, causal=causal):
        cells[i, j] = j <= i or not causal
    return cells


def sparsity(cells: Tensor) -> float:
    """Percent of the cells that are left out."""
    return 100 * (1 - cells.double().mean().item())


DRAWN: dict[str, tuple[str, dict[str, int], str]] = {
    "window": ("window", {"reach": 1}, "1 1 0 0 0\n1 1 1 0 0\n0 1 1 1 0\n0 0 1 1 1\n0 0 0 1 1"),
    "star": ("star", {"reach": 1}, "1 1 1 1 1\n1 1 1 0 0\n1 1 1 1 0\n1 0 1 1 1\n1 0 0 1 1"),
    "longformer": ("longformer", {"reach": 0, "globals": 2}, "1 1 1 1 1\n1 1 1 1 1\n1 1 1 0 0\n1 1 0 1 0\n1 1 0 0 1"),
    "strided": (
        "strided",
        {"stride": 2},
        "1 1 1 0 1 0 1\n1 1 1 1 0 1 0\n1 1 1 1 1 0 1\n0 1 1 1 1 1 0\n1 0 1 1 1 1 1\n0 1 0 1 1 1 1\n1 0 1 0 1 1 1",
    ),
    "fixed": ("fixed", {"stride": 3, "columns": 1}, "1 1 1 0 0\n1 1 1 0 0\n1 1 1 0 0\n0 0 1 1 1\n0 0 1 1 1"),
    "fixed, two columns": (
        "fixed",
        {"stride": 3, "columns": 2},
        "1 1 1 0 1\n1 1 1 0 1\n1 1 1 0 1\n0 1 1 1 1\n0 1 1 1 1",
    ),
    "logsparse": (
        "logsparse",
        {},
        "1 1 1 0 1 0 0\n1 1 1 1 0 1 0\n1 1 1 1 1 0 1\n0 1 1 1 1 1 0\n1 0 1 1 1 1 1\n0 1 0 1 1 1 1\n0 0 1 0 1 1 1",
    ),
    "logsparse, near": ("logsparse", {"reach": 1}, "1 1 0 0 0\n1 1 1 0 0\n0 1 1 1 0\n0 0 1 1 1\n0 0 0 1 1"),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("name", "parameters", "text"), DRAWN.values(), ids=DRAWN)
def test_of_a_few_tokens(name: str, parameters: dict[str, int], text: str, side: str) -> None:
    """The first token is that of the text, wherever its padding is."""
    cells = drawn(text)
    mask = pattern_mask(name, positions(len(cells), padding=2, side=side), parameters)
    where = real(len(cells), len(cells) + 2, side)
    assert_identical(mask[0, where, where], cells)


LENGTHS = (1, 2, 7, 13, 16, 31)
SETTINGS: dict[str, tuple[dict[str, int], ...]] = {
    "window": ({}, {"reach": 0}, {"reach": 5}, {"reach": 100}),
    "star": ({}, {"reach": 0}, {"reach": 3}),
    "longformer": ({}, {"reach": 0, "globals": 0}, {"reach": 1, "globals": 3}, {"globals": 100}),
    "bigbird": (
        {},
        {"seed": 5},
        {"reach": 0, "globals": 0, "random_keys": 3, "seed": 2**31 - 1},
        {"random_keys": 0},
        {"random_keys": 100},
    ),
    "strided": ({}, {"stride": 1}, {"stride": 3}, {"stride": 100}),
    "fixed": ({}, {"stride": 1}, {"stride": 5, "columns": 2}, {"columns": 4}, {"stride": 100, "columns": 99}),
    "logsparse": ({}, {"reach": 0}, {"reach": 5}, {"reach": 8}),
}


def test_every_pattern_is_tried() -> None:
    assert list(SETTINGS) == list(PATTERNS)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", PATTERNS)
def test_against_the_reference(name: str, side: str, causal: bool) -> None:
    """Texts of many lengths in one batch: each has the cells it has alone."""
    at = positions(*LENGTHS, padding=3, side=side, causal=causal)
    for parameters in SETTINGS[name]:
        mask = pattern_mask(name, at, parameters)
        assert (mask.shape, mask.dtype) == (at.valid.shape, torch.bool)
        values = {**PATTERNS[name].parameters, **parameters}
        for row, length in enumerate(LENGTHS):
            where = real(length, mask.shape[1], side)
            cells = (mask & at.valid)[row, where, where]
            assert_identical(cells, expected(name, length, values, causal=causal))


DEFAULTS = {"star": "96.13", "longformer": "88.62", "strided": "70.39", "fixed": "72.66", "logsparse": "89.83"}
PUBLISHED: dict[str, tuple[str, dict[str, int], str]] = {
    **{name: (name, {}, percent) for name, percent in DEFAULTS.items()},
    "strided(4)": ("strided", {"stride": 4}, "70.39"),
    "fixed(4, 1)": ("fixed", {"stride": 4, "columns": 1}, "72.66"),
    "logsparse to 64": ("logsparse", {"reach": 64}, "89.83"),
    "star(1)": ("star", {"reach": 1}, "96.13"),
    **{f"longformer {7 - g} + {g}": ("longformer", {"reach": 7 - g, "globals": g}, "88.62") for g in range(1, 7)},
}


@pytest.mark.parametrize(("name", "parameters", "percent"), PUBLISHED.values(), ids=PUBLISHED)
def test_known_sparsities_of_128_tokens(name: str, parameters: dict[str, int], percent: str) -> None:
    cells = kept(name, 128, **parameters)
    assert f"{sparsity(cells):.2f}" == percent
    without = cells & ~torch.eye(128, dtype=torch.bool)
    assert sparsity(without) - sparsity(cells) == pytest.approx(100 / 128)


def test_known_sparsity_of_bigbird() -> None:
    """An average over seeds: some random keys fall on cells that are kept anyway."""
    assert PATTERNS["bigbird"].parameters == {"reach": 2, "globals": 1, "random_keys": 2, "seed": 0}
    found = [sparsity(kept("bigbird", 128, seed=seed)) for seed in range(32)]
    assert sum(found) / len(found) == pytest.approx(93.13, abs=0.02)
    assert max(found) - min(found) < 0.3


def test_random_keys_of_every_query() -> None:
    at = positions(31, 17, padding=2)
    cells = random_cells(at, keys=3, seed=0)
    assert (cells.sum(2)[at.token] == 3).all()
    assert not (cells & ~at.token.unsqueeze(1)).any()
    assert len({tuple(row.tolist()) for row in cells[0, :31]}) > 25
    assert not torch.equal(cells, random_cells(at, keys=3, seed=1))
    assert (random_cells(at, keys=4, seed=0) | ~cells).all()
    causal = random_cells(positions(31, causal=True), keys=3, seed=0)
    assert causal[0].sum(1).tolist() == [1, 2, *[3] * 29]
    assert not causal.triu(1).any()


def test_random_keys_favour_none() -> None:
    """4,064 draws of 127 keys: 32 each, with a standard deviation of 5.6."""
    at = positions(127)
    drawn = torch.stack([random_cells(at, keys=2, seed=seed)[0] for seed in range(16)]).sum(0)
    assert drawn.sum() == 16 * 2 * 127
    by_key = drawn.sum(0).double()
    assert 4 < by_key.std().item() < 8
    assert drawn.max() <= 5
    assert torch.corrcoef(torch.stack([torch.arange(127.0).double(), by_key]))[0, 1].abs() < 0.3


def test_random_keys_of_a_text_that_grows() -> None:
    """Those of the longer text that the shorter one has are among its own; causal: are its own."""
    for causal in (False, True):
        shorter, longer = (random_cells(positions(n, causal=causal), keys=3, seed=0)[0] for n in (19, 29))
        assert (shorter | ~longer[:19, :19]).all()
        assert torch.equal(shorter, longer[:19, :19]) == causal
