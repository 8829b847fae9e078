"""What a training of a retrofit run leaves: scores before and after, its gates, what its attention looks like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnprobe.residual.stream import Residual
from attnprobe.training.scores import Scores

LOG_COLUMNS = ("step", "loss", "grad_norm", "gate", "learning_rate")
"""Columns of the log of a training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A training's result.

    Attributes:
        start: on the evaluation data, before the first step: of ``immediate`` with its gates at 1.
        scores: on the evaluation data, after the last.
        held_out: on the training rows held out, after the last.
        residual: the residual attention it ended with.
        looks: what its attention looks like on the evaluation data, see :func:`~attnprobe.retrofit.looks.looks`.
        likeness: mean correlation of scores of adjacent sites' heads, before and after alignment, (2, sites - 1).
        bears: for each target sparsity, what a mask learnt under frozen weights loses: rows as plain values.
        log: rows of :data:`LOG_COLUMNS`.
        steps: optimizer steps taken.
        seconds: wall-clock time of making and scoring it.
    """

    start: Scores
    scores: Scores
    held_out: Scores
    residual: Residual | None
    looks: pd.DataFrame
    likeness: NDArray[np.float64] | None
    bears: Sequence[Mapping[str, Any]]
    log: Sequence[Mapping[str, float]]
    steps: int
    seconds: float

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As named arrays, to be stored."""
        arrays = self.start.arrays("start") | self.scores.arrays("eval") | self.held_out.arrays("held_out")
        for name in self.looks:
            column = self.looks[name]
            arrays[f"looks/{name}"] = column.to_numpy(dtype=str if name == "special" else np.float64)
        if self.likeness is not None:
            arrays["likeness"] = self.likeness
        numbers = {
            "residual": None if self.residual is None else self.residual.describe(),
            "bears": list(self.bears),
            "steps": self.steps,
            "seconds": self.seconds,
        }
        arrays["numbers"] = np.asarray(json.dumps(numbers))
        rows = [[row.get(name, np.nan) for name in LOG_COLUMNS] for row in self.log]
        arrays["log"] = np.asarray(rows, dtype=np.float64).reshape(len(rows), len(LOG_COLUMNS))
        return arrays

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> Outcome:
        """Back from :meth:`arrays`."""
        numbers = json.loads(str(arrays["numbers"]))
        return cls(
            start=Scores.of(arrays, "start"),
            scores=Scores.of(arrays, "eval"),
            held_out=Scores.of(arrays, "held_out"),
            residual=None if numbers["residual"] is None else Residual.of(numbers["residual"]),
            looks=pd.DataFrame(
                {n.removeprefix("looks/"): values for n, values in arrays.items() if n.startswith("looks/")}
            ),
            likeness=arrays.get("likeness"),
            bears=numbers["bears"],
            log=[dict(zip(LOG_COLUMNS, row, strict=True)) for row in arrays["log"].tolist()],
            steps=numbers["steps"],
            seconds=numbers["seconds"],
        )
