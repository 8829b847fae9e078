"""Trainer's conveniences change how a training is computed, and not what is learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.sweeps import lay_ground, watched_sweep
from tests.helpers.tolerance import assert_near


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
