"""Metrics: known answers, degenerate resamples, spans."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnprobe.metrics import METRICS, spans


def score(name: str, predictions: list[float] | list[list[int]], labels: list[float]) -> float:
    return METRICS[name].compute(np.asarray(predictions), np.asarray(labels))


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "expected"),
    [
        ("accuracy", [0, 1, 2, 1], [0, 1, 1, 1], 3 / 4),
        ("f1", [1, 1, 0, 0, 1], [1, 0, 1, 0, 1], 2 / 3),
        ("f1", [2, 1, 0], [1, 1, 2], 2 / 3),
        ("macro_f1", [0, 0, 1], [0, 1, 1], 2 / 3),
        ("macro_f1", [2, 0], [0, 0], 1 / 3),
        ("matthews_correlation", [1, 1, 0, 0], [1, 0, 0, 0], 2 / math.sqrt(12)),
        ("matthews_correlation", [0, 1, 2], [0, 1, 2], 1.0),
        ("pearson", [1, 2, 4], [1, 2, 3], 3 / math.sqrt(2 * 14 / 3)),
        ("spearman", [1, 2, 40], [1, 2, 3], 1.0),
        ("spearman", [1, 3, 2], [1, 2, 3], 0.5),
    ],
)
def test_known_answers(name: str, predictions: list[float], labels: list[float], expected: float) -> None:
    assert score(name, predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize(
    ("predictions", "labels"),
    [([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [2, 2, 2]), ([1], [1]), ([], []), ([math.nan, 1], [1, 2])],
)
def test_correlations_that_are_undefined(name: str, predictions: list[float], labels: list[float]) -> None:
    assert math.isnan(score(name, predictions, labels))


def test_nearly_constant_values_do_not_warn() -> None:
    assert math.isfinite(score("pearson", [1.0, 1.0, 1.0 + 1e-15], [1, 2, 3]))


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "expected"),
    [
        ("matthews_correlation", [1, 1], [0, 1], 0.0),
        ("matthews_correlation", [0, 1], [1, 1], 0.0),
        ("matthews_correlation", [1], [1], 0.0),
        ("f1", [0, 0], [0, 0], 0.0),
        ("f1", [0, 0], [1, 0], 0.0),
        ("macro_f1", [1, 1], [1, 1], 1.0),
        ("macro_f1", [1, 1], [0, 0], 0.0),
        ("accuracy", [1], [0], 0.0),
    ],
)
def test_degenerate_resamples(name: str, predictions: list[float], labels: list[float], expected: float) -> None:
    assert score(name, predictions, labels) == expected


def test_counts() -> None:
    assert score("token_accuracy", [[3, 4], [0, 1]], [0, 0]) == 3 / 5
    assert math.isnan(score("token_accuracy", [[0, 0]], [0]))
    assert score("span_f1", [[1, 2, 1], [1, 1, 3]], [0, 0]) == 4 / 7
    assert score("span_f1", [[0, 0, 0]], [0]) == 0.0


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-P I-P O B-L", {(0, 2, "P"), (3, 4, "L")}),
        ("B-P B-P", {(0, 1, "P"), (1, 2, "P")}),
        ("O I-P I-P", {(1, 3, "P")}),
        ("I-P I-L", {(0, 1, "P"), (1, 2, "L")}),
        ("B-P I-L I-L", {(0, 1, "P"), (1, 3, "L")}),
        ("B-P E-P S-P I-P", {(0, 2, "P"), (2, 3, "P"), (3, 4, "P")}),
        ("B-P L-P U-L O", {(0, 2, "P"), (2, 3, "L")}),
        ("E-P E-P", {(0, 1, "P"), (1, 2, "P")}),
        ("B-a-b I-a-b", {(0, 2, "a-b")}),
        ("P P O", {(0, 2, "P")}),
    ],
)
def test_spans(tags: str, expected: set[tuple[int, int, str]]) -> None:
    assert spans(tags.split()) == expected


def test_names_and_descriptions() -> None:
    assert all(metric.name == name and metric.description for name, metric in METRICS.items())
