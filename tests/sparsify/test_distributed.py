"""Two processes that train one model on the CPU, as `torchrun` would start them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from attnprobe import distributed
from tests.helpers.ranks import run_two
from tests.helpers.sweeps import lay_ground, tradeoff, watched_sweep

SWEEPS: dict[str, dict[str, Any]] = {
    "gates": {"methods": ("dam", "random"), "max_steps": 5},
    "all": {"methods": ("dam",), "train": "all", "max_steps": 7, "settle": 0.4, "save_steps": 3, "learning_rate": 1e-3},
}

RANK = f"""
import sys
from pathlib import Path
import torch
from tests.helpers.sweeps import one_thread, watched_sweep

one_thread()
seen = {{name: watched_sweep(Path(sys.argv[1]), name, batch=4, **options) for name, options in {SWEEPS!r}.items()}}
torch.save(seen, sys.argv[2])
"""

Seen = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout, which no two ways of dividing a batch draw alike."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return lay_ground(tmp_path_factory.mktemp("distributed") / "ground", **none)


@pytest.fixture(scope="module")
def ranks(ground: Path) -> list[Seen]:
    """What both processes saw."""
    run_two(RANK, lambda rank: [str(ground), str(ground / f"seen{rank}.pt")])
    return [torch.load(ground / f"seen{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(ground: Path) -> Seen:
    """What one process sees that puts two batches into each step: the same rows."""
    return {
        name: watched_sweep(ground, f"{name}-alone", batch=4, gradient_accumulation_steps=2, **options)
        for name, options in SWEEPS.items()
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_every_process_has_the_same_gates_and_weights(ranks: list[Seen], name: str) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first.keys() == second.keys()
    assert any(key.endswith(" gates") for key in first)
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key


@pytest.mark.parametrize("name", SWEEPS)
def test_gradients_are_those_of_one_process(ranks: list[Seen], alone: Seen, name: str) -> None:
    gradients = [key for key in alone[name] if key.startswith("gradient")]
    assert len(gradients) == {"gates": 5, "all": 4}[name]
    assert ranks[0][name].keys() == alone[name].keys()
    for key, tensor in alone[name].items():
        if not key.endswith("key.bias"):  # which softmax takes no notice of: its gradient is nothing but rounding
            torch.testing.assert_close(ranks[0][name][key], tensor, rtol=1e-4, atol=1e-5, msg=key)
    one, other = (alone[name][key] for key in gradients[:2])
    assert not torch.allclose(one, other, rtol=1e-2)


@pytest.mark.parametrize("name", SWEEPS)
def test_the_run_folder_is_that_of_one_process(ground: Path, ranks: list[Seen], alone: Seen, name: str) -> None:
    del ranks, alone
    together, single = ground / name, ground / f"{name}-alone"
    assert json.loads((together / "run.json").read_text())["status"] == "complete"
    assert {file.name for file in together.iterdir()} == {file.name for file in single.iterdir()}
    pd.testing.assert_frame_equal(tradeoff(together), tradeoff(single), rtol=1e-5)


def test_weights_were_trained(alone: Seen) -> None:
    (gates, weights) = (alone[name] for name in ("gates", "all"))
    key = "dam-offset-{}-0.6-s0 classifier.weight"
    assert not torch.equal(gates[key.format("gates")], weights[key.format("all")])


def test_the_main_process_speaks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    for rank, expected in (("0", []), ("1", [15.0])):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match="wrong"), distributed.main_speaks_first():
            raise ValueError("wrong")
        assert waited == expected
    monkeypatch.setenv("RANK", "1")
    with distributed.main_speaks_first():
        pass
    assert len(waited) == 1


def test_one_process_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    value = object()
    assert distributed.share(value, device="cpu") is value
    assert distributed.processes() == 1
    assert distributed.is_main()
    distributed.wait_for_all(device="cpu")
