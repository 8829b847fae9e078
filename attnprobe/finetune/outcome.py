"""What a training of a finetune run leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprobe.training.scores import Scores

LOG_COLUMNS = ("step", "loss", "grad_norm", "learning_rate", "reward", "winner")
"""Columns of the log of a training; the last two of AttendOut."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A training's result.

    Attributes:
        scores: on the evaluation data.
        held_out: on the training rows held out.
        progress: shares of the training at which drop rates are known.
        rates: share dropped at each site, (len(progress), sites).
        log: rows of :data:`LOG_COLUMNS`.
        steps: optimizer steps taken.
        seconds: of training alone, wall-clock.
        peak_memory: MiB; None where it can't be told.
        net: with AttendOut which net it is, the one with masks or the one without: ``A`` or ``D``; else empty.
    """

    scores: Scores
    held_out: Scores
    progress: NDArray[np.float64]
    rates: NDArray[np.float64]
    log: Sequence[Mapping[str, float]]
    steps: int
    seconds: float
    peak_memory: float | None
    net: str = ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As named arrays, to be stored."""
        rows = [[row.get(name, np.nan) for name in LOG_COLUMNS] for row in self.log]
        numbers = {"steps": self.steps, "seconds": self.seconds, "peak_memory": self.peak_memory, "net": self.net}
        return {
            **self.scores.arrays("eval"),
            **self.held_out.arrays("held_out"),
            "progress": self.progress,
            "rates": self.rates,
            "log": np.asarray(rows, dtype=np.float64).reshape(len(rows), len(LOG_COLUMNS)),
            "numbers": np.asarray(json.dumps(numbers)),
        }

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> Outcome:
        """Back from :meth:`arrays`."""
        return cls(
            scores=Scores.of(arrays, "eval"),
            held_out=Scores.of(arrays, "held_out"),
            progress=arrays["progress"],
            rates=arrays["rates"],
            log=[dict(zip(LOG_COLUMNS, row, strict=True)) for row in arrays["log"].tolist()],
            **json.loads(str(arrays["numbers"])),
        )
