"""A run folder of `attnprobe importance` with plausible made-up figures, for tests of what reads run folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

EFFECTS: dict[str, tuple[float, float, int]] = {
    "diagonal": (-0.004, 0.05, 18_000),
    "cls_key": (0.05, 0.04, 16_000),
    "cls_query": (2.0, 0.03, 16_000),
    "sep_key": (0.004, 0.04, 15_000),
    "sep_query": (0.006, 0.03, 15_000),
    "previous": (0.07, 0.05, 14_000),
    "next": (0.33, 0.05, 14_000),
    "neighbour": (0.26, 0.11, 60_000),
    "cross_segment": (float("nan"), float("nan"), 0),
    "other": (0.9, 0.7, 210_000),
    "cls": (2.1, 0.08, 32_000),
    "sep": (0.011, 0.07, 30_000),
    "special": (2.3, 0.15, 62_000),
    "window": (1.4, 0.3, 106_000),
}
"""Class -> change of the loss, of its control, cells: of the size that a fine-tuned MiniLM shows."""

UNITS: dict[str, tuple[str, ...]] = {
    "ablation": ("loss", "kl"),
    "integrated-gradients": ("loss",),
    "taylor": ("loss",),
    "mass": ("share", "density"),
    "learned": ("gate",),
}
DEFAULT = ("ablation", "integrated-gradients", "taylor", "mass")
"""The methods of a run that names none."""

LEVELS = ("class", "site", "head", "class_site")


def write_run_folder(
    folder: Path,
    *,
    sites: int = 6,
    heads: int = 12,
    length: int = 24,
    methods: Sequence[str] = DEFAULT,
    without: Sequence[str] = (),
    class_heads: bool = False,
    checkpoint: str = "minilm-trec",
    warnings: Sequence[str] = (),
    arguments: dict[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write a complete run folder into `folder` (made if missing), leaving out the files named in `without`."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "importance.csv": importance_table(random, sites, heads, methods, class_heads=class_heads),
        "offsets.csv": _offsets(random, methods, length),
        "agreement.csv": _agreement(random, methods),
        "heads.csv": _heads(random, sites, heads),
    }
    for name, table in tables.items():
        if name not in without:
            table.to_csv(folder / name, index=False)
    if "maps.npz" not in without:
        maps, counts = _maps(random, sites, heads, length)
        np.savez_compressed(folder / "maps.npz", maps=maps, counts=counts)
    info = run_info(checkpoint, sites, heads, list(warnings), arguments or {})
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    return folder


def run_info(checkpoint: str, sites: int, heads: int, warnings: list[str], arguments: dict[str, Any]) -> dict[str, Any]:
    """The contents of run.json."""
    return {
        "schema_version": 1,
        "command": "importance",
        "status": "complete",
        "arguments": {
            "checkpoint": checkpoint,
            "eval_file": "TREC_10.csv",
            "methods": ["ablation", "mass", "taylor", "integrated-gradients"],
            "window": 4,
            "max_length": 64,
            "include_special": True,
            **arguments,
        },
        "versions": {"attnprobe": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0"},
        "seed": 0,
        "checkpoint": {
            "name": checkpoint,
            "digest": "9f" * 32,
            "family": "bert",
            "class": "BertForSequenceClassification",
            "sites": sites,
            "heads": heads,
        },
        "data": {
            "source": "TREC_10.csv",
            "digest": "3c" * 32,
            "examples": 500,
            "truncated": 2,
            "unlabelled": 0,
            "max_length": 64,
        },
        "objective": {"kind": "task", "loss_unit": "nats", "metric_name": "accuracy"},
        "summary": {"completeness_gap": 1.2e-7},
        "warnings": warnings,
        "started": "2026-01-05T10:00:00+00:00",
        "finished": "2026-01-05T10:01:04+00:00",
        "seconds": 64.1,
    }


def importance_table(
    random: np.random.Generator,
    sites: int = 6,
    heads: int = 12,
    methods: Sequence[str] = DEFAULT,
    *,
    class_heads: bool = False,
) -> pd.DataFrame:
    """importance.csv: classes of `EFFECTS` by every method, and sites, heads, classes by site with random figures."""
    rows: list[dict[str, Any]] = []
    cells_of_all = sum(
        cells for name, (_, _, cells) in EFFECTS.items() if name not in ("cls", "sep", "special", "window")
    )
    for method in methods:
        for unit in UNITS.get(method, ("loss",)):
            for name, (effect, control, cells) in EFFECTS.items():
                value, other = _in_unit(unit, effect, control, cells / cells_of_all)
                rows.append(_row(random, method, unit, "class", value, other, cells, position_class=name))
                for site in range(sites):
                    part = value * random.gamma(1.0, 1.0) / sites
                    rows.append(
                        _row(
                            random,
                            method,
                            unit,
                            "class_site",
                            part,
                            other / sites,
                            cells,
                            position_class=name,
                            site=site,
                        )
                    )
            for site in range(sites):
                value = abs(random.normal(0.25, 0.1)) * (1 + site / 2)
                rows.append(_row(random, method, unit, "site", value, np.nan, 0, site=site))
                for head in range(heads):
                    value = random.normal(0.004, 0.003) + (random.random() > 0.94) * 0.2
                    rows.append(_row(random, method, unit, "head", value, np.nan, 0, site=site, head=head))
    if class_heads:
        for name in EFFECTS:
            for site in range(sites):
                for head in range(heads):
                    place = {"position_class": name, "site": site, "head": head}
                    rows.append(_row(random, "mass", "share", "class_head", random.random(), 0.1, 100, **place))
    return pd.DataFrame(rows)


def _in_unit(unit: str, effect: float, control: float, share: float) -> tuple[float, float]:
    if unit == "kl":
        return abs(effect) * 1.1, abs(control) * 1.2
    if unit == "share":
        return share * (1 + effect), share
    if unit == "gate":
        return 1 / (1 + np.exp(3 - abs(effect) * 3)), 0.09
    if unit == "density":
        return (np.nan, np.nan) if share == 0 else (0.4 + abs(effect) * 3, 1.0)
    return effect, control


def _row(
    random: np.random.Generator,
    method: str,
    unit: str,
    level: str,
    value: float,
    control: float,
    cells: int,
    **place: Any,
) -> dict[str, Any]:
    half = 0.12 * abs(value) + 0.0015
    ablated = method == "ablation" and unit == "loss"
    bounded = method != "mass"
    return {
        "method": method,
        "level": level,
        "position_class": place.get("position_class"),
        "site": place.get("site"),
        "head": place.get("head"),
        "value": value,
        "unit": unit,
        "ci_low": value - half * random.uniform(0.9, 1.1),
        "ci_high": value + half * random.uniform(0.9, 1.1),
        "control": control if method in ("ablation", "mass", "learned") else np.nan,
        "control_ci_low": control * 0.85 if method == "ablation" else np.nan,
        "control_ci_high": control * 1.15 if method == "ablation" else np.nan,
        "loss_dense": 0.1667 if ablated else np.nan,
        "loss_ablated": 0.1667 + value if ablated else np.nan,
        "metric_name": "accuracy" if ablated else None,
        "metric_dense": 0.966 if ablated else np.nan,
        "metric_ablated": max(0.2, 0.966 - max(value, 0) / 3) if ablated else np.nan,
        "cells": cells,
        "control_cells": cells if bounded else np.nan,
        "examples": 500,
    }


def _offsets(random: np.random.Generator, methods: Sequence[str], length: int) -> pd.DataFrame:
    rows = []
    for method in methods:
        for unit in UNITS.get(method, ("loss",)):
            for offset in range(1 - length, length):
                shape = np.exp(-abs(offset - 1) / 3) if offset else 0.02
                value = shape * (2.4 if unit == "density" else 0.2) + (0.4 if unit == "density" else 0.0)
                half = 0.1 * value + 0.004
                control = 1.0 if unit == "density" else 0.01
                rows.append(
                    {
                        "method": method,
                        "offset": offset,
                        "value": value + random.normal(0, half / 4),
                        "unit": unit,
                        "ci_low": value - half,
                        "ci_high": value + half,
                        "control": control if method in ("ablation", "mass") else np.nan,
                        "control_ci_low": control * 0.8,
                        "control_ci_high": control * 1.2,
                        "cells": 500 * (length - abs(offset)),
                        "examples": 500,
                    }
                )
    return pd.DataFrame(rows)


def _agreement(random: np.random.Generator, methods: Sequence[str]) -> pd.DataFrame:
    rows = []
    for level in LEVELS:
        for index, first in enumerate(methods):
            for second in methods[index + 1 :]:
                value = random.uniform(-0.1, 0.95)
                rows.append(
                    {
                        "level": level,
                        "method_a": first,
                        "method_b": second,
                        "statistic": "spearman",
                        "value": value,
                        "ci_low": value - 0.12,
                        "ci_high": min(1.0, value + 0.09),
                        "items": 10,
                        "examples": 500,
                    }
                )
    columns = ["level", "method_a", "method_b", "statistic", "value", "ci_low", "ci_high", "items", "examples"]
    return pd.DataFrame(rows, columns=columns)


def _heads(random: np.random.Generator, sites: int, heads: int) -> pd.DataFrame:
    rows = []
    for special in ("included", "excluded"):
        for site in range(sites):
            for head in range(heads):
                median = max(0.1, random.normal(2.1 - 0.15 * site, 0.4))
                jsd = np.nan if site == 0 else random.uniform(0.15, 0.45)
                rows.append(
                    {
                        "site": site,
                        "head": head,
                        "special": special,
                        "entropy_mean": median - 0.05,
                        "entropy_ci_low": median - 0.08,
                        "entropy_ci_high": median - 0.02,
                        "entropy_q25": median - random.uniform(0.1, 0.4),
                        "entropy_median": median,
                        "entropy_q75": median + random.uniform(0.05, 0.3),
                        "normalised_entropy_mean": median / 2.7,
                        "jsd_previous": jsd,
                        "jsd_previous_ci_low": jsd - 0.01,
                        "jsd_previous_ci_high": jsd + 0.01,
                        "matched_head": np.nan if site == 0 else random.integers(heads),
                        "jsd_matched": jsd * 0.55,
                        "rows": 9_000,
                    }
                )
    return pd.DataFrame(rows)


def _maps(random: np.random.Generator, sites: int, heads: int, length: int) -> tuple[Any, Any]:
    """Maps (sites, heads, queries, keys) of heads that look at [CLS] or near by; counts fall with length."""
    query, key = np.mgrid[:length, :length]
    scores = np.empty((sites, heads, length, length))
    for site in range(sites):
        for head in range(heads):
            centre, breadth = random.integers(-3, 4), random.uniform(0.5, 8)
            near = -(((query - key - centre) / breadth) ** 2)
            scores[site, head] = near + random.uniform(0, 4) * (key == 0) + random.normal(0, 0.3, (length, length))
    maps = np.exp(scores)
    maps /= maps.sum(-1, keepdims=True)
    counts = np.maximum(500 - 20 * np.maximum(query, key), 0)
    return np.where(counts > 0, maps, 0).astype(np.float32), counts
