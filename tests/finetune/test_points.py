"""The trainings of a run: which, in which order, under which names."""

from __future__ import annotations

from typing import Any

import pytest

from attnprobe.dropout.methods import METHODS
from attnprobe.dropout.options import DropoutOptions
from attnprobe.finetune.options import FinetuneOptions
from attnprobe.finetune.points import Training, plan_trainings, variant_of


def plan(*, dropout: tuple[str, ...] = ("none", "attendout"), rates: tuple[str, ...] = (), **options: Any) -> list[str]:
    return [t.name for t in _plan(dropout, rates, **options)]


def _plan(dropout: tuple[str, ...], rates: tuple[str, ...] = (), **options: Any) -> list[Training]:
    return plan_trainings(FinetuneOptions(**options), DropoutOptions(dropout=dropout, rates=rates), 7)


def test_the_default_run() -> None:
    assert [t.name for t in plan_trainings(FinetuneOptions(), DropoutOptions(), 7)] == [
        "none-s7",
        "weights-s7",
        "attendout-s7",
    ]


def test_equal_steps_come_first() -> None:
    """They tell what a method costs, whatever the order in which the matches are given."""
    expected = [
        *("none-s3", "none-s1", "attendout-s3", "attendout-s1"),
        *("none-time-s3", "none-time-s1", "attendout-time-s3", "attendout-time-s1"),
    ]
    for match in (("steps", "time"), ("time", "steps")):
        assert plan(match=match, seeds=("3", "1")) == expected


def test_names_are_unique_and_fit_for_files() -> None:
    names = plan(dropout=tuple(METHODS), match=("steps", "time"), seeds=("0", "1", "10"))
    assert len(names) == len(METHODS) * 2 * 3
    assert len(set(names)) == len(names)
    assert not [name for name in names if set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")]


def test_every_method_has_its_rate() -> None:
    usual = {t.dropout: t.rate for t in _plan(tuple(METHODS))}
    assert usual == {name: method.rate for name, method in METHODS.items()}
    own = {t.dropout: t.rate for t in _plan(tuple(METHODS), rates=("0.5", "scores=0.03"))}
    assert own["scores"] == 0.03
    assert own["drophead"] == own["attendout"] == 0.5
    assert own["none"] == own["r-drop"] == own["asa"] == 0


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("none", {}, ""),
        ("drophead", {"schedule": "curriculum", "reward": "sign"}, ""),
        ("scheduled", {}, "linear"),
        ("scheduled", {"schedule": "curriculum"}, "curriculum"),
        ("scheduled", {"schedule": "runs/of/before/schedule.json"}, "schedule.json"),
        ("attendout", {}, "reinforce, window"),
        ("attendout", {"reward_scope": "sample", "reward": "sign"}, "reinforce, sample, sign"),
        ("attendout", {"gnet_training": "straight-through", "reward_scope": "sample"}, "straight-through"),
    ],
)
def test_variants(method: str, options: dict[str, Any], expected: str) -> None:
    assert variant_of(method, DropoutOptions(**options)) == expected
