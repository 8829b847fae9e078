"""Drop rates by site over training, as a file: ``schedule.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from attnprobe.errors import DataError
from attnprobe.runs import replacing

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Drop rates at some times of a training; in between they lie on straight lines.

    Attributes:
        method: that learnt them.
        progress: shares of the training, from 0 to 1, increasing.
        rates: for each of these the rate of every site.
    """

    method: str
    progress: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]

    def at(self, progress: float) -> list[float]:
        """The rate of every site; before the first time and after the last as there."""
        return [float(np.interp(progress, self.progress, of_site)) for of_site in zip(*self.rates, strict=True)]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        with replacing(path) as temporary:
            temporary.write_text(
                json.dumps({"schema": SCHEMA_VERSION, **asdict(self)}, indent=1) + "\n", encoding="utf-8"
            )

    @classmethod
    def read(cls, path: Path, *, sites: int) -> Schedule:
        """Read a schedule for a model of that many sites. Raises: DataError."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"--schedule {path}: no such file; give linear, curriculum, or a schedule.json") from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"--schedule {path} can't be read as JSON: give a schedule.json of a finetune run"
            ) from error
        if not isinstance(found, dict) or found.get("schema") != SCHEMA_VERSION:
            raise DataError(f"--schedule {path} is no schedule of version {SCHEMA_VERSION}: give a schedule.json")
        try:
            progress = np.asarray(found["progress"], dtype=np.float64)
            rates = np.asarray(found["rates"], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"--schedule {path} lacks its `progress` and `rates` in numbers: make it anew") from error
        if rates.ndim != 2 or progress.shape != rates.shape[:1] or not len(progress):
            raise DataError(f"--schedule {path} must have the rates of all sites for each time: make it anew")
        if rates.shape[1] != sites:
            raise DataError(
                f"--schedule {path} has rates for {rates.shape[1]} sites, the checkpoint has {sites}: they must agree"
            )
        if not ((rates >= 0) & (rates <= 1)).all():
            raise DataError(f"--schedule {path} has rates that are not from 0 to 1: make it anew")
        if (np.diff(progress) <= 0).any() or not ((progress >= 0) & (progress <= 1)).all():
            raise DataError(f"--schedule {path} must have times that increase from 0 to 1: make it anew")
        return cls(
            method=str(found.get("method", "")),
            progress=tuple(progress.tolist()),
            rates=tuple(tuple(row) for row in rates.tolist()),
        )
