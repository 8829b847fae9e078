"""How near two tensors have to be: one place for every test, by dtype."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Largest difference, relative to the largest expected number (at least 1), between two ways to compute one thing."""


def assert_identical(actual: Tensor, expected: Tensor) -> None:
    """Equal bit for bit: what was restored, or never changed. NaN equals NaN."""
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=0.0, equal_nan=True)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Equal within the tolerance of the coarser dtype of the two, or within the one that is given."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    allowed = tolerance or _tolerance(actual, expected)
    assert _difference(actual, expected) <= allowed, f"{_difference(actual, expected):.2e} > {allowed:.0e}"


def assert_differs(actual: Tensor, expected: Tensor) -> None:
    """Apart by ten times the tolerance at least: no rounding."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    least = 10 * _tolerance(actual, expected)
    assert _difference(actual, expected) >= least, f"{_difference(actual, expected):.2e} < {least:.0e}"


def _tolerance(actual: Tensor, expected: Tensor) -> float:
    return max(TOLERANCE[actual.dtype], TOLERANCE[expected.dtype])


def _difference(actual: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest expected number or 1. NaN, never near anything, comes out as NaN."""
    one, other = actual.detach().double(), expected.detach().double()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1.0))
