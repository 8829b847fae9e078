"""Trainer's conveniences change how a training is computed, and not what is learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.sweeps import lay_ground, watched_sweep
from tests.helpers.tolerance import assert_identical, assert_near


@pytest.mark.parametrize("train", ["gates", "all"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path, train: str) -> None:
    ground = lay_ground(tmp_path / "laid", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = {"methods": ("dam",), "train": train, "max_steps": 3}
    plain = watched_sweep(ground, "plain", **options)
    recomputed = watched_sweep(ground, "recomputed", gradient_checkpointing=True, **options)
    assert plain.keys() == recomputed.keys()
    assert sum(name.startswith("gradient") for name in plain) >= 1
    for name, tensor in plain.items():
        assert_near(recomputed[name].float(), tensor.float(), 1e-5)


def test_states_are_followed_where_weights_learn(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path / "laid", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = {"methods": ("dam",), "train": "all", "max_steps": 5}
    plain, followed = (
        watched_sweep(ground, name, distill_hidden=weight, **options)
        for name, weight in (("plain", 0.0), ("near", 5.0))
    )
    assert_identical(followed["gradient 0"], plain["gradient 0"])  # all gates are open, and the states still equal
    assert any(not torch.equal(followed[name], tensor) for name, tensor in plain.items())
    assert all(bool(tensor.isfinite().all()) for tensor in followed.values())
