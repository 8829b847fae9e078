"""Score a model under a mask (or dense) on some rows, example by example."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnprobe.attention import evaluating
from attnprobe.data.batches import Encoded
from attnprobe.masks.applying import applied
from attnprobe.masks.mask import Mask
from attnprobe.scoring import scored_output, to_numpy
from attnprobe.sparsify.setting import Setting


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What is known of each example, in the order of the rows asked for.

    Attributes:
        prediction: (examples, columns), what the metric reads.
        reference: (examples,), what it compares with.
        loss: (examples,), NaN where an example has none.
    """

    prediction: NDArray[np.float32]
    reference: NDArray[np.float32]
    loss: NDArray[np.float32]

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As named arrays, to be stored."""
        return {f"{prefix}/{name}": getattr(self, name) for name in ("prediction", "reference", "loss")}

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], prefix: str) -> Scores:
        """Back from :meth:`arrays`."""
        return cls(
            prediction=arrays[f"{prefix}/prediction"],
            reference=arrays[f"{prefix}/reference"],
            loss=arrays[f"{prefix}/loss"],
        )


def score(setting: Setting, mask: Mask | None, encoded: Encoded, rows: Sequence[int], *, dense: bool) -> Scores:
    """Score the model as it is now.

    Args:
        setting: of the sweep.
        mask: what is kept; None: everything.
        encoded: the data.
        rows: which of its rows.
        dense: score the untouched dense model instead.
    """
    objective = setting.bench.objective
    model = setting.dense_model if dense else setting.session.model
    place = {row: number for number, row in enumerate(rows)}
    parts: list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]] = []
    with torch.no_grad(), evaluating(model):
        for batch in map(encoded.batch, encoded.plan(setting.model_options.per_device_batch_size, rows=rows)):
            where = np.asarray([place[row] for row in batch.indices.tolist()])
            prepared = objective.prepare(batch.to(model.device))
            if objective.kind == "fidelity" or dense:
                prepared = prepared.with_dense(scored_output(setting.dense_model, objective, prepared))
            if dense:
                assert prepared.dense is not None
                output = prepared.dense
            else:
                with nullcontext() if mask is None else applied(setting.session, mask, setting.rules):
                    output = scored_output(model, objective, prepared)
            parts.append(
                (
                    where,
                    {
                        "prediction": to_numpy(objective.predictions(output, prepared)),
                        "reference": to_numpy(objective.references(prepared)),
                        "loss": to_numpy(objective.loss(output, prepared)),
                    },
                )
            )
    order = np.argsort(np.concatenate([where for where, _ in parts]))
    merged = {name: np.concatenate([part[name] for _, part in parts])[order] for name in parts[0][1]}
    return Scores(**merged)
