"""Metrics over arrays of examples, safe to compute on any resample: no warnings, NaN where undefined.

`predictions` and `labels` are arrays with one row an example, so that a bootstrap can draw rows. What is scored in
pieces of an example (tokens, spans) comes as counts for each example: see `token_accuracy` and `span_f1`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure of merit; higher is better.

    Attributes:
        name: as in tables.
        description: for people.
        compute: from predictions and labels, each `(examples,)` unless the description says otherwise.
    """

    name: str
    description: str
    compute: Callable[[Array, Array], float]


def accuracy(predictions: Array, labels: Array) -> float:
    """Share of examples whose class is right; NaN without examples."""
    return float(np.mean(predictions == labels)) if len(labels) else float("nan")


def f1(predictions: Array, labels: Array) -> float:
    """F1 of class 1, as GLUE's MRPC and QQP; 0 when nothing is, or is said to be, of class 1."""
    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def macro_f1(predictions: Array, labels: Array) -> float:
    """Mean of the F1 of each class that is predicted or true."""
    return float(f1_score(labels, predictions, average="macro", zero_division=0.0))


def matthews_correlation(predictions: Array, labels: Array) -> float:
    """Matthews' correlation (Gorodkin 2004 for many classes); 0 when either side is constant."""
    if _constant(predictions) or _constant(labels):
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(predictions: Array, labels: Array) -> float:
    """Pearson's correlation; NaN when either side is constant or not finite."""
    if not (_correlates(predictions) and _correlates(labels)):
        return float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(stats.pearsonr(predictions, labels).statistic)


def spearman(predictions: Array, labels: Array) -> float:
    """Spearman's rank correlation; NaN when either side is constant or not finite."""
    if not (_correlates(predictions) and _correlates(labels)):
        return float("nan")
    return float(stats.spearmanr(predictions, labels).statistic)


def token_accuracy(predictions: Array, labels: Array) -> float:  # noqa: ARG001 (the metrics' common signature)
    """Share of counted tokens that are right, from `predictions` `(examples, 2)`: right, counted."""
    right, counted = predictions.sum(axis=0)
    return float(right / counted) if counted else float("nan")


def span_f1(predictions: Array, labels: Array) -> float:  # noqa: ARG001
    """Micro F1 of spans, from `predictions` `(examples, 3)`: found rightly, predicted, true; 0 when there are none."""
    right, predicted, true = predictions.sum(axis=0)
    return float(2 * right / (predicted + true)) if predicted + true else 0.0


def agreement(predictions: Array, labels: Array) -> float:
    """Share of examples whose predicted class is the dense model's (`labels`)."""
    return accuracy(predictions, labels)


def cosine(predictions: Array, labels: Array) -> float:  # noqa: ARG001
    """Mean cosine to the dense model's embedding, which is what `predictions` `(examples,)` hold."""
    return float(predictions.mean()) if len(predictions) else float("nan")


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The spans `(start, end, type)`, `end` exclusive, that BIO, BIOES or BILOU tags mark.

    Tolerant as the CoNLL-2000 script `conlleval`: a span also begins with `I-` after `O`, after the end of a span, or
    where the type changes. A tag without a prefix counts as `I-`.
    """
    found: set[tuple[int, int, str]] = set()
    start, before, before_type = 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, hyphen, kind = tag.partition("-")
        if tag != "O" and not hyphen:
            prefix, kind = "I", tag
        begins = prefix in "BSU" or before in "OESL" or before == "U" or kind != before_type
        if before != "O" and (prefix == "O" or begins):
            found.add((start, position, before_type))
        if prefix != "O" and begins:
            start = position
        before, before_type = prefix, kind
    return found


def _constant(values: Array) -> bool:
    return len(values) == 0 or bool(np.all(values == values[0]))


def _correlates(values: Array) -> bool:
    return len(values) > 1 and bool(np.isfinite(values).all()) and not _constant(values)


METRICS: dict[str, Metric] = {
    function.__name__: Metric(name=function.__name__, description=description, compute=function)
    for function, description in (
        (accuracy, "share of examples whose class is right"),
        (f1, "F1 of class 1"),
        (macro_f1, "mean F1 over the classes"),
        (matthews_correlation, "Matthews' correlation"),
        (pearson, "Pearson's correlation"),
        (spearman, "Spearman's rank correlation"),
        (token_accuracy, "share of tokens whose tag is right (predictions: right and counted, for each example)"),
        (agreement, "share of examples whose class is the dense model's"),
        (cosine, "mean cosine to the dense model's embedding"),
        (span_f1, "micro F1 of tagged spans (predictions: right, predicted and true, for each example)"),
    )
}
