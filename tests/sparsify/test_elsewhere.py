"""Learning on another device, without one: nothing is left on the host, and nothing waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.helpers import elsewhere
from tests.helpers.learning_steps import learn, opened_to_learn
from tests.helpers.sweeps import lay_ground
from tests.helpers.tolerance import assert_near


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_ground(
        tmp_path_factory.mktemp("elsewhere") / "laid", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


@pytest.mark.parametrize("granularity", ["offset", "cell"])
def test_steps_are_the_hosts_and_wait_for_nothing(ground: Path, granularity: str) -> None:
    with opened_to_learn(ground, granularity) as setting:
        here = learn(setting, nullcontext)
    waited: list[str] = []

    @contextmanager
    def watching() -> Iterator[None]:
        with elsewhere.waits() as noted:
            yield
        waited.extend(noted)

    with opened_to_learn(ground, granularity) as setting, elsewhere.pretending():
        for model in (setting.session.model, setting.dense_model):
            nn.Module.to(model, elsewhere.DEVICE)
        away = learn(setting, watching)
        assert setting.session.model.device == elsewhere.DEVICE
    assert waited == []
    assert_near(away, here)


def test_waiting_and_mixing_are_seen() -> None:
    with elsewhere.pretending():
        numbers = torch.arange(3.0).to(elsewhere.DEVICE)
        with elsewhere.waits() as noted:
            assert numbers.sum().item() == 3.0
            _ = numbers[numbers > 0]
            _ = numbers.cpu()
        assert len(noted) == 3
        with elsewhere.waits() as noted:
            _ = numbers * 2 + numbers[torch.arange(2, device=elsewhere.DEVICE)].sum()
        assert noted == []
        with pytest.raises(RuntimeError, match="here and elsewhere"):
            _ = numbers + torch.arange(3.0)
