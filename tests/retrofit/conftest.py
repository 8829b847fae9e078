"""What the tests of whole sweeps share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.helpers.sweeps import one_thread


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    one_thread()
    yield
    torch.set_num_threads(before)
