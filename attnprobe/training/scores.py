"""Score a model example by example, and hold it against the dense one on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from attnprobe.attention import evaluating
from attnprobe.data.batches import Encoded
from attnprobe.metrics import METRICS
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output, to_numpy
from attnprobe.statistics import metric_interval
from attnprobe.training.ground import Ground


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


def score(
    ground: Ground,
    encoded: Encoded,
    rows: Sequence[int],
    *,
    dense: bool = False,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Scores:
    """Score the model as it is now.

    Args:
        ground: what the model stands on.
        encoded: the data.
        rows: which of its rows.
        dense: score the untouched dense model instead.
        within: what is in force while the model runs.
    """
    objective = ground.bench.objective

    def dense_output(prepared: Prepared) -> Tensor:
        return scored_output(ground.dense_model, objective, prepared)

    def output(prepared: Prepared) -> tuple[Tensor, Prepared]:
        if dense:
            found = dense_output(prepared)
            return found, prepared.with_dense(found)
        if objective.kind == "fidelity":
            prepared = prepared.with_dense(dense_output(prepared))
        with within():
            return scored_output(ground.session.model, objective, prepared), prepared

    model = ground.dense_model if dense else ground.session.model
    return score_outputs(model, objective, encoded, rows, output, batch_size=ground.model_options.per_device_batch_size)


def score_outputs(
    model: PreTrainedModel,
    objective: Objective,
    encoded: Encoded,
    rows: Sequence[int],
    output: Callable[[Prepared], tuple[Tensor, Prepared]],
    *,
    batch_size: int,
) -> Scores:
    """Score what is given for each batch of rows.

    Args:
        model: in whose evaluation mode, and on whose device.
        objective: scored by it.
        encoded: the data.
        rows: which of its rows.
        output: gives the scored output of a batch, and the batch as it is scored.
        batch_size: of a pass.
    """
    place = {row: number for number, row in enumerate(rows)}
    parts: list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]] = []
    with torch.no_grad(), evaluating(model):
        for batch in map(encoded.batch, encoded.plan(batch_size, rows=rows)):
            where = np.asarray([place[row] for row in batch.indices.tolist()])
            found, prepared = output(objective.prepare(batch.to(model.device)))
            parts.append(
                (
                    where,
                    {
                        "prediction": to_numpy(objective.predictions(found, prepared)),
                        "reference": to_numpy(objective.references(prepared)),
                        "loss": to_numpy(objective.loss(found, prepared)),
                    },
                )
            )
    order = np.argsort(np.concatenate([where for where, _ in parts]))
    merged = {name: np.concatenate([part[name] for _, part in parts])[order] for name in parts[0][1]}
    return Scores(**merged)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a model loses against the dense one, in the metric's unit.

    Attributes:
        value, dense: the metric of both.
        low, high: 95 % interval of the value.
        drop: dense - value.
        drop_low, drop_high: 95 % interval of the drop, paired over examples.
    """

    value: float
    dense: float
    low: float
    high: float
    drop: float
    drop_low: float
    drop_high: float

    def columns(self) -> dict[str, float]:
        """As the columns that tables have of it."""
        return {
            "value": self.value,
            "ci_low": self.low,
            "ci_high": self.high,
            "dense": self.dense,
            "drop": self.drop,
            "drop_ci_low": self.drop_low,
            "drop_ci_high": self.drop_high,
        }


def compare(metric: str, scores: Scores, dense: Scores, *, resamples: int, seed: int) -> Loss:
    """The metric of a model and of the dense one on the same examples."""
    columns = scores.prediction.shape[1]
    both = np.concatenate([scores.prediction, dense.prediction], axis=1)
    alone = computed(metric)

    def drop(predictions: NDArray[np.floating], labels: NDArray[np.floating]) -> float:
        return alone(predictions[:, columns:], labels) - alone(predictions[:, :columns], labels)

    reference = scores.reference
    low, high = metric_interval(alone, scores.prediction, reference, resamples=resamples, seed=seed)
    drop_low, drop_high = metric_interval(drop, both, reference, resamples=resamples, seed=seed)
    value, of_dense = alone(scores.prediction, reference), alone(dense.prediction, reference)
    return Loss(
        value=value,
        dense=of_dense,
        low=low,
        high=high,
        drop=of_dense - value,
        drop_low=drop_low,
        drop_high=drop_high,
    )


def computed(metric: str) -> Callable[[NDArray[np.floating], NDArray[np.floating]], float]:
    """A metric as a function of :attr:`Scores.prediction` and :attr:`Scores.reference`."""
    compute = METRICS[metric].compute
    return lambda predictions, labels: compute(_squeezed(predictions), labels)


def _squeezed(predictions: NDArray[np.floating]) -> NDArray[np.floating]:
    return predictions[:, 0] if predictions.shape[1] == 1 else predictions
