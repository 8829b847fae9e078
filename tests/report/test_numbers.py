"""How figures are written, and where they are drawn."""

from __future__ import annotations

import math

import pytest

from attnprobe.report.numbers import compact, count, estimate, interval, number, rounded, typeset
from attnprobe.report.scale import choose_scale


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (-0.004, -0.006, -0.002, "-0.0040 [-0.0060, -0.0020]"),
        (2.013, 1.9, 2.1, "+2.01 [+1.90, +2.10]"),
        (12345.6, 12000, 13000, "+12,346 [+12,000, +13,000]"),
        (0.0, -0.001, 0.001, "0.0000 [-0.0010, +0.0010]"),
        (-0.00001, -0.01, 0.01, "0.000 [-0.010, +0.010]"),
        (0.25, math.nan, math.nan, "+0.250"),
        (math.nan, math.nan, math.nan, "n/a"),
        (1e-12, math.nan, math.nan, "+1.0e-12"),
    ],
)
def test_estimate_shows_two_digits_of_its_interval(value: float, low: float, high: float, expected: str) -> None:
    assert estimate(value, low, high, signed=True) == expected


def test_small_words() -> None:
    assert estimate(0.5, 0.4, 0.6, unit="nats") == "0.50 nats [0.40, 0.60]"
    assert interval(math.nan, 1.0) == ""
    assert number(math.inf) == "n/a"
    assert count(18000.0) == "18,000"
    assert [compact(value) for value in (0.0, 0.0512, 210.4, 3e-7, math.nan)] == ["0", "0.051", "210", "3e-7", "n/a"]
    assert rounded(0.123456) == 0.1235
    assert rounded(math.nan) is None


def test_minus_signs_but_not_in_dates_or_names() -> None:
    assert typeset("-0.4 [-1, -0.2]") == "−0.4 [−1, −0.2]"
    assert typeset("2026-01-05 minilm-6 i-1 a--2") == "2026-01-05 minilm-6 i-1 a--2"


def test_linear_scale_where_values_are_alike() -> None:
    scale = choose_scale([0.1, 0.2, -0.5, math.nan, 0.0])
    assert scale.kind == "linear"
    assert scale(0.3) == 0.3
    assert scale.ticks(0, 1) == []
    assert scale.note == ""


def test_symmetric_logarithm_keeps_zero_sign_and_order() -> None:
    scale = choose_scale([-0.004, 0.05, 2.0])
    assert (scale.kind, scale.threshold) == ("symlog", 0.001)
    assert scale(0.0) == 0
    assert scale(-0.004) == -scale(0.004) == pytest.approx(-math.log10(5))
    assert scale.ticks(-0.004, 2.0) == [-0.001, 0.0, 0.001, 0.01, 0.1, 1.0]
    assert math.isnan(scale(math.nan))


def test_noise_is_not_spread_out() -> None:
    assert choose_scale([1e-9, 1.0], noise=0.02).threshold == 0.01
    assert choose_scale([1e-9, 1.0], decades=2).threshold == pytest.approx(0.001)


def test_ratios_are_logarithmic() -> None:
    scale = choose_scale([0.4, 1.0, 6.0], ratio=True)
    assert scale.kind == "log"
    assert scale(1.0) == 0
    assert scale.ticks(0.4, 6.0) == [0.5, 1.0, 2.0, 5.0]
