"""Metric and loss of a checkpoint as it is, or with some of its attention closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.attention import AttentionSession, evaluating
from attnprobe.data.batches import Batch
from attnprobe.data.positions import REGIONS, Positions, cells_of, class_map, membership
from attnprobe.data.sources import DataOptions
from attnprobe.errors import UsageError
from attnprobe.masks.patterns import PATTERNS, pattern_mask
from attnprobe.metrics import METRICS
from attnprobe.options import GateOptions, ModelOptions
from attnprobe.scoring import scored_output, to_numpy
from attnprobe.statistics import metric_interval
from attnprobe.workbench import Workbench, prepare


def evaluate(name: str, *, data: DataOptions, model: ModelOptions, gates: GateOptions) -> dict[str, Any]:
    """Score a checkpoint on data, gated as asked.

    Returns:
        ``metric_name``, ``metric`` with its interval ``ci_low`` and ``ci_high``, ``loss`` (mean over examples),
        ``examples``; and the divergence from the checkpoint as it is, the share of valid cells closed (by the mask of
        an export too), what was measured.

    Raises:
        AttnProbeError: see :func:`~attnprobe.workbench.prepare`; UsageError for an unknown class or pattern.
    """
    bench = prepare(name, data, model)
    with bench.attached(backend=gates.backend) as session, evaluating(bench.checkpoint.model):
        causal = session.sites[0].causal
        _require_known(gates.drop, causal)
        batches = bench.batches(bench.encoded.plan(model.per_device_batch_size))
        parts = [_score(bench, session, gates, batch, causal=causal) for batch in batches]
        identity = bench.identity(session.sites)
    scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(scores["rows"])
    predictions, references = scores["prediction"][order], scores["reference"][order]
    if predictions.shape[1] == 1:
        predictions = predictions[:, 0]
    metrics = {metric: METRICS[metric].compute(predictions, references) for metric in bench.objective.metrics}
    first = bench.objective.metrics[0]
    low, high = metric_interval(
        METRICS[first].compute, predictions, references, resamples=gates.resamples, seed=model.seed
    )
    return {
        "metric_name": first,
        "metric": metrics[first],
        "ci_low": low,
        "ci_high": high,
        "loss": _mean(scores["loss"]),
        "loss_unit": bench.objective.loss_unit,
        "divergence": _mean(scores["divergence"]),
        "divergence_unit": bench.objective.divergence_unit,
        "examples": len(order),
        "metrics": metrics,
        "drop": list(gates.drop),
        "pattern": gates.pattern,
        "pattern_window": gates.pattern_parameters[PATTERNS[gates.pattern].size] if gates.pattern else None,
        "pattern_parameters": gates.pattern_parameters or None,
        "cell_sparsity": float(scores["closed"].sum() / scores["valid"].sum()),
        **identity,
        "warnings": list(bench.warnings),
    }


def _mean(values: NDArray[np.floating]) -> float:
    """The mean over the examples that have a value; NaN where none has."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _score(
    bench: Workbench, session: AttentionSession, gates: GateOptions, batch: Batch, *, causal: bool
) -> dict[str, NDArray[Any]]:
    """Everything that is known of each example of a batch, gated."""
    model, objective = bench.checkpoint.model, bench.objective
    prepared = objective.prepare(batch)
    at = bench.positions(batch, causal=causal, window=gates.window)
    keep = _kept(at, gates)
    with torch.no_grad():
        prepared = prepared.with_dense(scored_output(model, objective, prepared))
        assert prepared.dense is not None
        output = prepared.dense
        if gates.drop or gates.pattern:
            with session.gate(lambda _call: keep.unsqueeze(1)):
                output = scored_output(model, objective, prepared)
        return {
            "rows": batch.indices.cpu().numpy(),
            "loss": to_numpy(objective.loss(output, prepared)),
            "divergence": to_numpy(objective.divergence(output, prepared)),
            "prediction": to_numpy(objective.predictions(output, prepared)),
            "reference": to_numpy(objective.references(prepared)),
            "closed": to_numpy(_closed(bench, session, batch, keep & at.valid, at.valid)),
            "valid": to_numpy(at.valid.sum((1, 2))),
        }


def _closed(bench: Workbench, session: AttentionSession, batch: Batch, keep: Tensor, valid: Tensor) -> Tensor:
    """Valid cells that are closed, by the mask of an export too: (batch,), a mean over sites and heads."""
    mask, rules = bench.checkpoint.mask, bench.checkpoint.rules
    if mask is None or rules is None:
        return (valid & ~keep).sum((1, 2))
    at = rules.positions(batch.inputs["input_ids"], batch.inputs["attention_mask"])
    mask = mask.to(keep.device)
    cells = mask.cells(at)
    kept = [
        (mask.keep(at, site.index, cells) & keep.unsqueeze(1)).sum((2, 3)).float().mean(1) for site in session.sites
    ]
    return valid.sum((1, 2)) - torch.stack(kept).mean(0)


def _require_known(names: tuple[str, ...], causal: bool) -> None:
    try:
        membership([name for name in names if name not in REGIONS], causal)
    except UsageError as error:
        raise UsageError(f"--drop: {error}; regions: {', '.join(REGIONS)}") from error


def _kept(at: Positions, gates: GateOptions) -> Tensor:
    """Cells that stay open: bool (batch, queries, keys)."""
    keep = torch.ones_like(at.valid)
    if gates.pattern:
        keep &= pattern_mask(gates.pattern, at, gates.pattern_parameters)
    for name in gates.drop:
        if name in REGIONS:
            keep &= ~REGIONS[name](at)
        else:
            keep &= ~cells_of(class_map(at), membership([name], at.causal)[0])
    return keep
