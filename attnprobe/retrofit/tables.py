"""From the outcomes of a retrofit run to its tables, and to the choice of the model that is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnprobe.retrofit.outcome import LOG_COLUMNS, Outcome
from attnprobe.retrofit.points import Training
from attnprobe.training.scores import Loss, compare

_OF_TRAINING = ("training", "kind", "variant", "end", "align", "gate", "seed")
COLUMNS = (
    *("checkpoint", "data", *_OF_TRAINING, "steps"),
    *("metric_name", "start", "value", "ci_low", "ci_high", "dense", "drop", "drop_ci_low", "drop_ci_high"),
    *("behind_continued", "behind_continued_ci_low", "behind_continued_ci_high", "loss", "heldout_value"),
    *("entropy_mean", "entropy_median", "entropy_spread", "jsd_same", "jsd_matched"),
    *("likeness_before", "likeness_after", "gate_mean", "grad_norm", "seconds", "examples", "exported"),
)
"""Columns of ``retrofit.csv``: metric, drops in its unit; entropy and JSD in nats."""

SPARSITY_COLUMNS = (
    *(*_OF_TRAINING, "target", "counted_sparsity", "value", "ci_low", "ci_high"),
    *("unmasked", "drop", "drop_ci_low", "drop_ci_high"),
)
TRAINING_COLUMNS = ("training", *LOG_COLUMNS)


def continued_of(training: Training) -> Training:
    """The control without residual attention of the same seed."""
    return Training(kind="continued", seed=training.seed)


def choose(trainings: Sequence[Training], held_out: Mapping[str, float]) -> Training | None:
    """The retrofit to export: of the first variant, end and alignment asked for, the seed best on the rows held out."""
    retrofits = [training for training in trainings if training.kind == "retrofit"]
    if not retrofits:
        return None
    first = retrofits[0]
    same = [t for t in retrofits if (t.variant, t.end, t.align) == (first.variant, first.end, first.align)]
    return max(same, key=lambda training: held_out[training.name])


def retrofit_row(
    training: Training,
    outcomes: Mapping[str, Outcome],
    *,
    shared: Mapping[str, Any],
    metric: str,
    on_data: Mapping[str, Loss],
    start: float,
    held_out: float,
    resamples: int,
    seed: int,
    exported: bool,
) -> dict[str, Any]:
    """A row of ``retrofit.csv``. ``shared``: the columns that are the same in every row of a run."""
    outcome, loss = outcomes[training.name], on_data[training.name]
    control = outcomes.get(continued_of(training).name)
    behind = None
    if control is not None and training.residual:
        behind = compare(metric, outcome.scores, control.scores, resamples=resamples, seed=seed)
    looks = outcome.looks.query("special == 'included'")
    likeness = outcome.likeness
    return {
        **shared,
        **_of_training(training, shared["gate"]),
        "steps": outcome.steps,
        "metric_name": metric,
        "start": start,
        **loss.columns(),
        "behind_continued": None if behind is None else behind.drop,
        "behind_continued_ci_low": None if behind is None else behind.drop_low,
        "behind_continued_ci_high": None if behind is None else behind.drop_high,
        "loss": float(np.nanmean(outcome.scores.loss)),
        "heldout_value": held_out,
        "entropy_mean": float(looks["entropy_mean"].mean()),
        "entropy_median": float(looks["entropy_median"].median()),
        "entropy_spread": float((looks["entropy_q75"] - looks["entropy_q25"]).mean()),
        "jsd_same": float(looks["jsd_previous"].mean()),
        "jsd_matched": float(looks["jsd_matched"].mean()),
        "likeness_before": None if likeness is None else float(likeness[0].mean()),
        "likeness_after": None if likeness is None else float(likeness[1].mean()),
        "gate_mean": None if outcome.residual is None else float(outcome.residual.gates.mean()),
        "grad_norm": float(np.mean([row["grad_norm"] for row in outcome.log])) if outcome.log else None,
        "seconds": outcome.seconds,
        "examples": len(outcome.scores.reference),
        "exported": exported,
    }


def _of_training(training: Training, gate: str) -> dict[str, Any]:
    return {
        "training": training.name,
        "kind": training.kind,
        "variant": training.variant,
        "end": training.end,
        "align": training.align if training.residual else "",
        "gate": gate if training.kind == "retrofit" else "",
        "seed": training.seed,
    }


def retrofit_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """``retrofit.csv``."""
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS)).astype({"seed": "Int64", "steps": "Int64"})


def heads_of_all(trainings: Sequence[Training], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``heads.csv``: entropy of every head's rows, and its distance from the site below, for every training."""
    tables = [outcomes[t.name].looks.assign(training=t.name) for t in trainings]
    return pd.concat(tables, ignore_index=True).astype({"site": int, "head": int, "matched_head": "Int64"})


def sparsity_table(trainings: Sequence[Training], outcomes: Mapping[str, Outcome], gate: str) -> pd.DataFrame:
    """``sparsity.csv``: what masks cost that were learnt for each model, its weights frozen."""
    rows = [{**_of_training(t, gate), **row} for t in trainings for row in outcomes[t.name].bears]
    return pd.DataFrame(rows, columns=list(SPARSITY_COLUMNS))


def training_table(trainings: Sequence[Training], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``training.csv``: the log of every training."""
    rows = [{"training": t.name, **row} for t in trainings for row in outcomes[t.name].log]
    return pd.DataFrame(rows, columns=list(TRAINING_COLUMNS)).astype({"step": "Int64"})
