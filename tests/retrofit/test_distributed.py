"""Two processes that retrofit one model on the CPU, as `torchrun` would start them: what one process would leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.helpers.ranks import run_two
from tests.helpers.retrofits import retrofit, rows
from tests.helpers.sweeps import lay_ground

OPTIONS: dict[str, Any] = {"max_steps": 5, "controls": ("continued",), "save_steps": 2}

RANK = f"""
import sys
from pathlib import Path
from tests.helpers.retrofits import retrofit
from tests.helpers.sweeps import one_thread

one_thread()
retrofit(Path(sys.argv[1]), "together", batch=4, **{OPTIONS!r})
"""


def test_two_processes_leave_what_one_does(tmp_path: Path) -> None:
    """One that puts two batches into each step sees the same rows; without dropout the figures are the same."""
    ground = lay_ground(tmp_path / "laid", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run_two(RANK, lambda _: [str(ground)])
    alone = retrofit(ground, "alone", batch=4, gradient_accumulation_steps=2, **OPTIONS)
    together = ground / "together"
    assert {file.name for file in together.iterdir()} == {file.name for file in alone.iterdir()}
    pd.testing.assert_frame_equal(rows(together), rows(alone), rtol=1e-4)
    one, other = (pd.read_csv(run / "training.csv") for run in (together, alone))
    np.testing.assert_allclose(one["gate"].dropna(), other["gate"].dropna(), rtol=1e-4)
    trained = rows(alone)
    assert not np.isclose(trained["loss"].iloc[1:], trained["loss"].iloc[0]).any()
