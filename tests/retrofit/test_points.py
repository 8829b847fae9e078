"""The trainings of a run: which, in which order, under which names."""

from __future__ import annotations

from typing import Any

from attnprobe.residual.gates import GATES_BY
from attnprobe.residual.stream import VARIANTS
from attnprobe.retrofit.options import DEEPEST_SUM, GATES_BY_NAMES, VARIANT_NAMES, RetrofitOptions
from attnprobe.retrofit.points import plan_trainings


def names(*, sites: int = 6, can_align: bool = True, **options: Any) -> list[str]:
    return [t.name for t in plan_trainings(RetrofitOptions(**options), 7, sites=sites, can_align=can_align)]


def test_the_names_are_the_librarys() -> None:
    assert tuple(VARIANTS) == VARIANT_NAMES
    assert tuple(GATES_BY) == GATES_BY_NAMES


def test_the_default_run() -> None:
    assert names() == [
        "dense",
        "continued-s7",
        "sum-canonical-retrofit-s7",
        "sum-canonical-retrofit-unaligned-s7",
        "sum-immediate-s7",
    ]


def test_deep_models_take_the_mean() -> None:
    assert "sum-canonical-retrofit-s7" in names(sites=DEEPEST_SUM)
    assert "mean-canonical-retrofit-s7" in names(sites=DEEPEST_SUM + 1)


def test_every_choice_makes_trainings() -> None:
    found = names(variants=("mean", "sum"), ends=("learned", "canonical"), seeds=("3", "1"), controls=("continued",))
    assert found == [
        *("dense", "continued-s3", "continued-s1"),
        *(
            f"{variant}-{end}-retrofit-s{seed}"
            for variant in ("mean", "sum")
            for end in ("learned", "canonical")
            for seed in (3, 1)
        ),
    ]


def test_heads_that_can_not_be_aligned_are_told() -> None:
    unaligned = ["dense", "continued-s7", "sum-canonical-retrofit-unaligned-s7", "sum-immediate-unaligned-s7"]
    assert names(can_align=False) == unaligned
    assert names(align="none") == unaligned
