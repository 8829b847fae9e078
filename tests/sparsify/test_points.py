"""The points of a sweep: which, in which order, under which names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attnprobe.sparsify.methods import METHODS
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point, plan_points


def plan(seed: int = 7, **options: Any) -> list[Point]:
    return plan_points(SparsifyOptions(**options), seed)


def names(**options: Any) -> list[str]:
    return [point.name for point in plan(**options)]


def test_the_default_sweep() -> None:
    """The dense model first, controls, then what is learnt."""
    assert names() == [
        "dense",
        "random-offset-0.9-d0",
        "random-offset-0.9-d1",
        "random-offset-0.9-d2",
        "magnitude-offset-0.9",
        "window-0.9",
        "star-0.9",
        "dam-offset-gates-0.9-s7",
    ]


def test_every_choice_makes_points() -> None:
    """Targets ascending, diagonals and seeds as given."""
    found = plan(
        target_sparsity=("0.95", "50%"),
        methods=("star", "taylor", "dam"),
        diagonal=("drop", "free"),
        seeds=("3", "1"),
        granularity="cell",
    )
    assert [point.name for point in found] == [
        "dense",
        *("star-drop-0.5", "star-drop-0.95", "star-0.5", "star-0.95"),
        *("taylor-cell-drop-0.5", "taylor-cell-drop-0.95", "taylor-cell-0.5", "taylor-cell-0.95"),
        *(f"dam-cell-drop-gates-{target}-s{seed}" for target in (0.5, 0.95) for seed in (3, 1)),
        *(f"dam-cell-gates-{target}-s{seed}" for target in (0.5, 0.95) for seed in (3, 1)),
    ]
    assert {point.seed for point in found[:9]} == {3}  # what is not trained is made once
    assert [point.seed for point in found[9:]] == [3, 1, 3, 1, 3, 1, 3, 1]


def test_tuned_controls() -> None:
    """Each seed tunes the dense model's weights and those under every control; random masks are drawn by seed then."""
    found = names(methods=("dam", "random", "window"), train="all", tune_controls=True, seeds=("0", "2"), draws=2)
    assert found == [
        "dense",
        "random-offset-0.9-d0",
        "random-offset-0.9-d1",
        "window-0.9",
        "dense-weights-s0",
        "dense-weights-s2",
        "random-offset-weights-0.9-s0",
        "random-offset-weights-0.9-s2",
        "window-weights-0.9-s0",
        "window-weights-0.9-s2",
        "dam-offset-all-0.9-s0",
        "dam-offset-all-0.9-s2",
    ]


@pytest.mark.parametrize("price", [{"lambda_": 0.1}, {"paper_form": True}], ids=["price", "paper"])
def test_a_price_takes_the_place_of_targets_where_something_is_learnt(price: dict[str, Any]) -> None:
    found = plan(methods=("dam", "star"), target_sparsity=("0.5", "0.9"), **price)
    assert [point.name for point in found] == ["dense", "star-0.5", "star-0.9", "dam-offset-gates-s7"]
    assert [point.target for point in found] == [None, 0.5, 0.9, None]


LARGE: dict[str, Any] = {
    "target_sparsity": ("0.5", "0.8", "0.9", "99.9%", "0.95", "33.3%"),
    "methods": tuple(METHODS),
    "diagonal": ("free", "keep", "drop"),
    "seeds": ("0", "1", "2", "10", "11"),
    "draws": 12,
    "train": "all",
    "tune_controls": True,
}


@pytest.mark.parametrize("granularity", ["cell", "offset", "block", "head"])
def test_names_tell_points_apart(granularity: str) -> None:
    """Fit for files on any system; counted."""
    found = plan(**LARGE, granularity=granularity)
    assert len({point.name.lower() for point in found}) == len(found)
    assert all(re.fullmatch(r"[a-z0-9.-]+", point.name) and len(point.name) < 60 for point in found)
    targets, diagonals, seeds, draws = 6, 3, 5, 12
    patterns = sum(method.kind == "pattern" for method in METHODS.values())
    assert patterns == 7
    untrained = (patterns + 2 + draws) * diagonals * targets
    tuned = (patterns + 3) * diagonals * targets * seeds
    learnt = diagonals * targets * seeds
    assert len(found) == 1 + untrained + seeds + tuned + learnt
    assert found == plan(**LARGE, granularity=granularity)


def test_names_of_nearby_targets_differ() -> None:
    assert len(set(names(target_sparsity=("0.999", "99.95%", "0.9999", "0.99")))) == len(
        names(target_sparsity=("0.999", "99.95%", "0.9999", "0.99"))
    )


def test_what_kind_a_point_is() -> None:
    kinds = {point.method: (point.kind, point.granularity, point.diagonal) for point in plan(methods=tuple(METHODS))}
    assert kinds["dense"] == ("dense", "", "")
    assert kinds["dam"] == ("learnt", "offset", "free")
    assert kinds["random"] == ("random", "offset", "free")
    assert kinds["magnitude"] == kinds["taylor"] == ("scored", "offset", "free")
    assert all(kinds[name] == ("pattern", "pattern", "free") for name, m in METHODS.items() if m.kind == "pattern")


def test_the_seed_of_the_run_stands_in_for_seeds() -> None:
    assert {point.seed for point in plan(seed=5)} == {5}
    assert {point.seed for point in plan(seed=5, seeds=("8",))} == {8}


def test_only_random_points_have_draws() -> None:
    assert [point.draw for point in plan(methods=("random", "star"), draws=2)] == [None, 0, 1, None]


def test_without_a_learnt_mask() -> None:
    assert names(methods=("window",)) == ["dense", "window-0.9"]
