"""The per-example results of a run, batch by batch on disk, and what is estimated from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprobe.runs import RunFolder
from attnprobe.statistics import Estimate, bootstrap_means


def piece_name(method: str, number: int) -> str:
    """The name under which a method's result on a batch is kept."""
    return f"{method}/{number:06d}"


class Pieces:
    """The results of every method on every batch of a plan.

    Attributes:
        run: the folder that holds them.
        plan: example numbers of each batch.
        examples: number of examples.
    """

    def __init__(self, run: RunFolder, plan: list[list[int]], *, resamples: int, seed: int) -> None:
        self.run, self.plan = run, plan
        self.resamples, self.seed = resamples, seed
        self.examples = sum(map(len, plan))

    def arrays(self, method: str) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """(example numbers, arrays by name) of each batch."""
        names = (piece_name(method, number) for number in range(len(self.plan)))
        for rows, arrays in zip(self.plan, self.run.pieces(names), strict=True):
            yield np.asarray(rows), arrays

    def gather(self, method: str, key: str) -> NDArray[Any]:
        """One array of a method over all examples, in their order; NaN where a batch has none of it."""
        whole: NDArray[Any] | None = None
        for rows, arrays in self.arrays(method):
            if key not in arrays:
                continue
            if whole is None:
                whole = np.full((self.examples, *arrays[key].shape[1:]), np.nan, dtype=arrays[key].dtype)
            whole[rows] = arrays[key]
        assert whole is not None
        return whole

    def estimate(self, method: str) -> dict[str, Estimate]:
        """Means and replicates of every series of a method; figures in order of their level's axes.

        All series are resampled together, and all methods alike, so that every figure is paired with every other.
        """
        widths = self._widths(method)

        def blocks() -> Iterator[tuple[NDArray[np.int64], NDArray[np.floating]]]:
            for rows, arrays in self.arrays(method):
                columns = [
                    arrays[key].reshape(len(rows), -1) if key in arrays else np.full((len(rows), width), np.nan)
                    for key, width in widths.items()
                ]
                yield rows, np.concatenate(columns, axis=1)

        joint = bootstrap_means(blocks, self.examples, resamples=self.resamples, seed=self.seed)
        found, start = {}, 0
        for key, width in widths.items():
            found[key] = joint.part(slice(start, start + width))
            start += width
        return found

    def _widths(self, method: str) -> dict[str, int]:
        """Every series of a method that is a mean over examples, with its number of figures."""
        return {
            key: int(np.prod(values.shape[1:]))
            for _, arrays in self.arrays(method)
            for key, values in arrays.items()
            if not key.endswith("/prediction")
        }
