"""From the outcomes of a finetune run to its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnprobe.finetune.comparing import compare_over_seeds, holm
from attnprobe.finetune.outcome import LOG_COLUMNS, Outcome
from attnprobe.finetune.points import Training
from attnprobe.statistics import metric_interval
from attnprobe.training.scores import Scores, computed

REFERENCES = ("none", "weights")
"""Methods that every other is compared with."""

COMPARISON_COLUMNS = (
    *("dropout", "variant", "match", "against", "difference", "ci_low", "ci_high", "p_value", "p_corrected"),
    *("wins", "seeds"),
)
RATE_COLUMNS = ("training", "dropout", "variant", "match", "seed", "progress", "site", "rate")
TRAINING_COLUMNS = ("training", *LOG_COLUMNS)


def value_of(metric: str, scores: Scores) -> float:
    """The metric of some scores."""
    return computed(metric)(scores.prediction, scores.reference)


def finetune_table(
    trainings: Sequence[Training],
    outcomes: Mapping[str, Outcome],
    *,
    shared: Mapping[str, Any],
    metric: str,
    trained_on: Mapping[str, int],
    chosen: Training | None,
    resamples: int,
    seed: int,
) -> pd.DataFrame:
    """``finetune.csv``, a row a training.

    Args:
        trainings: in order.
        outcomes: by name.
        shared: columns that all rows have alike.
        metric: its name.
        trained_on: rows that each method learns from.
        chosen: the training that is exported.
        resamples: behind each interval.
        seed: of the resamples.
    """
    rows = []
    for training in trainings:
        outcome = outcomes[training.name]
        scores = outcome.scores
        low, high = metric_interval(
            computed(metric), scores.prediction, scores.reference, resamples=resamples, seed=seed
        )
        by_site = outcome.rates.mean(0)
        rows.append(
            {
                "training": training.name,
                **shared,
                "dropout": training.dropout,
                "variant": training.variant,
                "rate": training.rate,
                "match": training.match,
                "seed": training.seed,
                "steps": outcome.steps,
                "metric_name": metric,
                "value": value_of(metric, scores),
                "ci_low": low,
                "ci_high": high,
                "loss": float(np.nanmean(scores.loss)),
                "heldout_value": value_of(metric, outcome.held_out),
                "net": outcome.net,
                "drop_rate": float(by_site.mean()),
                **{f"drop_rate_{site}": float(rate) for site, rate in enumerate(by_site, 1)},
                "seconds": round(outcome.seconds, 1),
                "seconds_per_step": outcome.seconds / outcome.steps,
                "peak_memory": outcome.peak_memory,
                "examples": len(scores.reference),
                "trained_on": trained_on[training.name],
                "exported": training is chosen,
            }
        )
    return pd.DataFrame(rows)


def comparison_table(
    trainings: Sequence[Training], outcomes: Mapping[str, Outcome], *, metric: str, resamples: int, seed: int
) -> pd.DataFrame:
    """``comparisons.csv``: each method against the reference methods, p-values corrected within what is alike."""
    rows: list[dict[str, Any]] = []
    for match in dict.fromkeys(training.match for training in trainings):
        of_match: dict[str, list[Training]] = {}
        for training in trainings:
            if training.match == match:
                of_match.setdefault(training.dropout, []).append(training)
        pairs = [(m, r) for r in REFERENCES if r in of_match for m in of_match if m != r]
        found = []
        for method, against in pairs:
            ours, theirs = (
                [outcomes[training.name].scores for training in of_match[name]] for name in (method, against)
            )
            found.append(compare_over_seeds(metric, ours, theirs, resamples=resamples, seed=seed))
        for (method, against), one, corrected in zip(pairs, found, holm([one.p_value for one in found]), strict=True):
            rows.append(
                {
                    "dropout": method,
                    "variant": of_match[method][0].variant,
                    "match": match,
                    "against": against,
                    "difference": one.difference,
                    "ci_low": one.low,
                    "ci_high": one.high,
                    "p_value": one.p_value,
                    "p_corrected": corrected,
                    "wins": one.wins,
                    "seeds": one.seeds,
                }
            )
    return pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))


def rates_table(trainings: Sequence[Training], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``rates.csv``: share dropped at each site (from 0) over the training."""
    rows = [
        (t.name, t.dropout, t.variant, t.match, t.seed, progress, site, rate)
        for t in trainings
        for progress, of_sites in zip(outcomes[t.name].progress, outcomes[t.name].rates, strict=True)
        for site, rate in enumerate(of_sites)
    ]
    return pd.DataFrame(rows, columns=list(RATE_COLUMNS))


def training_table(trainings: Sequence[Training], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """``training.csv``: the log of every training."""
    rows = [{"training": t.name, **row} for t in trainings for row in outcomes[t.name].log]
    return pd.DataFrame(rows, columns=list(TRAINING_COLUMNS)).astype({"step": "Int64"})
