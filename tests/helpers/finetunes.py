"""Run folders of `attnprobe finetune` with plausible made-up figures, for tests of what reads run folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Row = dict[str, Any]

METHODS: dict[str, tuple[str, float, float, float]] = {
    "none": ("", 0.0, 0.950, 1.0),
    "weights": ("", 0.1, 0.953, 1.05),
    "drophead": ("", 0.2, 0.957, 1.1),
    "scheduled": ("linear", 0.2, 0.954, 1.1),
    "attendout": ("reinforce, window", 0.1, 0.962, 3.4),
}
"""Method -> variant, rate, mean metric, and its time in multiples of none."""


def row(dropout: str, *, seed: int = 0, match: str = "steps", half: float = 0.01, sites: int = 3, **more: Any) -> Row:
    """A row of finetune.csv; ``half``: half width of its interval."""
    variant, rate, mean, times = METHODS[dropout]
    made: Row = {
        **{"checkpoint": "minilm-trec", "data": "test.csv", "dropout": dropout, "variant": variant, "rate": rate},
        **{"match": match, "seed": seed, "steps": 250 if match == "steps" else round(250 * 3.4 / times)},
        **{"metric_name": "accuracy", "value": mean, "loss": 0.2, "heldout_value": mean, "drop_rate": rate},
        **{f"drop_rate_{site}": rate for site in range(1, sites + 1)},
        **{"seconds_per_step": 0.25 * times, "peak_memory": 1000 * (1 + (times - 1) / 2), "examples": 500},
        **{"trained_on": 4000 if dropout == "attendout" else 4500, "exported": False, **more},
    }
    made["training"] = f"{dropout}{'-time' if match == 'time' else ''}-s{seed}"
    made["seconds"] = made["steps"] * made["seconds_per_step"]
    return made | {"ci_low": made["value"] - half, "ci_high": made["value"] + half}


def rows(
    methods: Sequence[str] = tuple(METHODS),
    *,
    seeds: int = 3,
    matches: Sequence[str] = ("steps",),
    spread: float = 0.004,
) -> list[Row]:
    """A row for each method and seed; the first seed has the mean metric, others are ``spread`` around it."""
    return [
        row(dropout, seed=seed, match=match, value=METHODS[dropout][2] + spread * (0, 1, -1)[seed % 3])
        for match in matches
        for dropout in methods
        for seed in range(seeds)
    ]


def comparison(dropout: str, against: str, difference: float, p: float, **more: Any) -> Row:
    """A row of comparisons.csv; ``p``: corrected."""
    half = abs(difference) / 2 if p < 0.05 else abs(difference) + 0.004
    return {
        **{"dropout": dropout, "variant": METHODS[dropout][0], "match": "steps", "against": against},
        **{"difference": difference, "ci_low": difference - half, "ci_high": difference + half},
        **{"p_value": p / 4, "p_corrected": p, "wins": 3 if difference > 0 else 0, "seeds": 3, **more},
    }


def compared(p: float = 0.4, *, matches: Sequence[str] = ("steps",), **special: float) -> list[Row]:
    """Every method against none and against weights, at corrected p-values ``p``, or a method's own of ``special``."""
    return [
        comparison(dropout, against, METHODS[dropout][2] - METHODS[against][2], special.get(dropout, p), match=match)
        for match in matches
        for dropout in METHODS
        for against in ("none", "weights")
        if dropout != against
    ]


def rates(trainings: Iterable[Row], *, sites: int = 3) -> list[Row]:
    """rates.csv: AttendOut's rates rise over the training, the more the deeper the site; others stay as they are."""
    return [
        {
            **{name: of[name] for name in ("training", "dropout", "variant", "match", "seed")},
            **{"progress": progress, "site": site},
            "rate": of["rate"] * ((site + 1) * progress + 0.2 * of["seed"] if of["dropout"] == "attendout" else 1),
        }
        for of in trainings
        for progress in np.linspace(0, 1, 11)
        for site in range(sites)
    ]


def training(trainings: Iterable[Row]) -> list[Row]:
    """training.csv: a falling loss; AttendOut is rewarded at every second row, and wins at every fourth."""
    return [
        {
            **{"training": of["training"], "step": step, "loss": 1.5 * math.exp(-step / 90) + 0.1 + 0.02 * of["seed"]},
            **{"grad_norm": 2.5, "learning_rate": 2e-5 * (1 - step / 250)},
            "reward": 0.1 * math.sin(step) if of["dropout"] == "attendout" and step % 20 == 0 else math.nan,
            "winner": float(step % 40 == 0) if of["dropout"] == "attendout" and step % 20 == 0 else math.nan,
        }
        for of in trainings
        for step in range(10, 251, 10)
    ]


def write_finetune(
    folder: Path,
    trainings: Sequence[Row] | None = None,
    *,
    sites: int = 3,
    whole: bool = False,
    **tables: Sequence[Row],
) -> Path:
    """Write a run folder into ``folder`` (made if missing).

    Args:
        folder: where.
        trainings: rows of finetune.csv; without them those of :func:`rows`.
        sites: of the checkpoint.
        whole: with every table that a run leaves; else with finetune.csv alone.
        tables: rows of others, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainings = rows() if trainings is None else trainings
    matches = tuple(dict.fromkeys(of["match"] for of in trainings))
    usual: Mapping[str, Sequence[Row]] = (
        {
            "comparisons": compared(matches=matches),
            "rates": rates(trainings, sites=sites),
            "training": training(trainings),
        }
        if whole
        else {}
    )
    exported = next((of["training"] for of in trainings if of.get("exported")), None)
    record = {
        **{"schema_version": 1, "command": "finetune", "status": "complete"},
        "checkpoint": {"name": "minilm-trec", "family": "bert", "sites": sites, "heads": 12},
        "data": {"source": "test.csv", "examples": 500},
        "objective": {"kind": "task"},
        "arguments": {},
        "summary": {"metric_name": "accuracy", "exported": exported},
        "warnings": [],
    }
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    for name, made in {"finetune": trainings, **usual, **tables}.items():
        pd.DataFrame(made).to_csv(folder / f"{name}.csv", index=False)
    return folder
