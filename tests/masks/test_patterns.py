"""The table of fixed patterns: its grids, fitting one to a density, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from attnprobe.data.positions import Positions
from attnprobe.errors import UsageError
from attnprobe.masks.patterns import PATTERNS, fit_pattern, pattern_mask, pattern_parameters
from tests.helpers.padded import positions

NESTED = [name for name, pattern in PATTERNS.items() if pattern.nested]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_grid_is_of_full_settings(name: str) -> None:
    pattern = PATTERNS[name]
    assert all(pattern_parameters(name, setting) == setting for setting in pattern.grid)
    assert all(list(setting) == list(pattern.parameters) for setting in pattern.grid)
    assert len({tuple(setting.values()) for setting in pattern.grid}) == len(pattern.grid)
    assert pattern.nested or len(pattern.grid) <= 16
    assert pattern.parameters in pattern.grid


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NESTED)
def test_nested_grids(name: str, causal: bool) -> None:
    """Each setting keeps cells of the one before only: the last 80, over texts of 3 to 37 tokens."""
    at = positions(37, 11, 3, causal=causal)
    before = at.valid
    for setting in PATTERNS[name].grid[-80:]:
        cells = pattern_mask(name, at, setting) & at.valid
        assert not (cells & ~before).any()
        before = cells
    assert before.sum() < 0.3 * at.valid.sum()


@pytest.mark.parametrize("name", sorted(set(PATTERNS) - set(NESTED)))
def test_other_grids_fall_on_long_texts_only(name: str) -> None:
    grid = PATTERNS[name].grid
    short, long = ([int(pattern_mask(name, positions(n), setting).sum()) for setting in grid[:13]] for n in (37, 1009))
    assert short != sorted(short, reverse=True)
    assert long == sorted(long, reverse=True)


def measure(at: Positions, name: str, asked: list[dict[str, int]]) -> Callable[[Mapping[str, int]], float]:
    def density(parameters: Mapping[str, int]) -> float:
        asked.append(dict(parameters))
        return float((pattern_mask(name, at, parameters) & at.valid).sum() / at.valid.sum())

    return density


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_fitting_finds_the_nearest_of_the_grid(name: str, causal: bool) -> None:
    at = positions(61, 23, 7, causal=causal)
    grid = PATTERNS[name].grid[-150:]  # the rest keeps all cells
    densities = [measure(at, name, [])(setting) for setting in grid]
    for target in (0.0, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0):
        asked: list[dict[str, int]] = []
        setting, density = fit_pattern(name, measure(at, name, asked), target)
        assert density == densities[grid.index(setting)]
        assert abs(density - target) == min(abs(other - target) for other in densities)
        assert len(asked) <= 16
        assert len({tuple(each.values()) for each in asked}) == len(asked)


def test_fitting_one_window_by_hand() -> None:
    """Eleven tokens: 11 + 2 (10 + ... + (11 - reach)) cells of 121."""
    at = positions(11)
    for target, reach, cells in ((0.25, 1, 31), (0.95, 8, 115), (1.0, 10, 121), (0.0, 0, 11)):
        setting, density = fit_pattern("window", measure(at, "window", []), target)
        assert setting == {"reach": reach}
        assert density == pytest.approx(cells / 121)


def test_of_two_settings_as_near_the_denser_is_taken() -> None:
    densities = {2: 0.75, 1: 0.5, 0: 0.25}
    assert fit_pattern("window", lambda of: densities.get(of["reach"], 1.0), 0.375) == ({"reach": 1}, 0.5)
    both = {1: 1.0, 2: 0.25, 3: 0.75}
    assert fit_pattern("strided", lambda of: both.get(of["stride"], 0.0), 0.5) == ({"stride": 3}, 0.75)


def test_what_is_fitted_is_the_callers_to_change() -> None:
    setting, _ = fit_pattern("bigbird", lambda _: 1.0, 1.0)
    setting["seed"] = 3
    assert all(each["seed"] == 0 for each in PATTERNS["bigbird"].grid)


def test_the_rows_of_every_pattern_say_what_it_is() -> None:
    for name, pattern in PATTERNS.items():
        assert pattern.size == next(iter(pattern.parameters))
        assert pattern.summary[0].islower(), name
        assert not pattern.summary.endswith("."), name
        assert len(pattern.summary) <= 110
        assert "20" in pattern.source


KNOWN = "window, star, longformer, bigbird, strided, fixed, logsparse"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("ring", {}, f"unknown pattern 'ring'; choose from {KNOWN}"),
    "of another": ("star", {"globals": 2}, "the pattern star has no parameter 'globals'; it has reach"),
    "negative": (
        "window",
        {"reach": -1},
        "the pattern window needs a whole number from 0 to 2147483647 as its reach, not -1; the default is 1",
    ),
    "no stride": (
        "strided",
        {"stride": 0},
        "the pattern strided needs a whole number from 1 to 2147483647 as its stride, not 0; the default is 4",
    ),
    "no whole number": (
        "bigbird",
        {"random_keys": 1.5},
        "the pattern bigbird needs a whole number from 0 to 2147483647 as its random_keys, not 1.5; the default is 2",
    ),
    "a switch": (
        "bigbird",
        {"seed": True},
        "the pattern bigbird needs a whole number from 0 to 2147483647 as its seed, not True; the default is 0",
    ),
    "too large": (
        "longformer",
        {"globals": 2**31},
        "the pattern longformer needs a whole number from 0 to 2147483647 as its globals, not 2147483648; "
        "the default is 2",
    ),
    "columns beyond the block": (
        "fixed",
        {"columns": 5},
        "the pattern fixed keeps columns within blocks of stride tokens, so that columns must be at most stride, "
        "not 5 of 4; give fewer columns or a larger stride",
    ),
}


@pytest.mark.parametrize(("name", "parameters", "text"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_meant_is_refused(name: str, parameters: dict[str, Any], text: str) -> None:
    for ask in (lambda: pattern_parameters(name, parameters), lambda: pattern_mask(name, positions(3), parameters)):
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value) == text


@pytest.mark.parametrize("target", [-0.1, 1.5, 90.0, float("nan")])
def test_a_target_that_is_no_share_is_refused(target: float) -> None:
    with pytest.raises(UsageError, match=rf"^a target density must be a share of the cells from 0 to 1, not {target}$"):
        fit_pattern("star", lambda _: 0.5, target)
    with pytest.raises(UsageError, match="unknown pattern 'ring'"):
        fit_pattern("ring", lambda _: 0.5, 0.5)
