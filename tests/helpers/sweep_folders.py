"""Run folders of `attnprobe sparsify` with plausible made-up figures, for tests of what reads run folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = (
    *("point", "checkpoint", "data", "method", "granularity", "sharing", "diagonal", "train", "target"),
    *("cell_sparsity", "nominal_sparsity", "block_sparsity", "block_size"),
    *("metric_name", "value", "ci_low", "ci_high", "dense", "drop", "drop_ci_low", "drop_ci_high", "loss"),
    *("heldout_value", "heldout_dense", "heldout_drop", "heldout_drop_ci_high"),
    *("counted_sparsity", "sparsity_before_threshold", "steps", "seconds", "seed", "draw", "examples", "exported"),
    *("kept_diagonal", "kept_cls_key", "kept_cls_query", "kept_sep_key", "kept_sep_query", "kept_previous"),
    *("kept_next", "kept_neighbour", "kept_cross_segment", "kept_other", "kept_first_key", "kept_first_query"),
)
CLASSES = tuple(name.removeprefix("kept_") for name in COLUMNS if name.startswith("kept_"))[:-2]
TOKENS = ("[CLS]", "how", "many", "people", "live", "in", "new", "york", "city", "?", "[SEP]")
DENSE = 0.966
LOSS = {"dam": 0.15, "magnitude": 0.9, "taylor": 0.7, "random": 4.0, "window": 1.6, "star": 1.4, "longformer": 1.3}
"""Method -> points of accuracy lost for each point of sparsity beyond 75 %."""
GATED = ("dam", "random", "magnitude", "taylor")
Row = dict[str, Any]


def row(
    point: str = "dense",
    method: str = "dense",
    *,
    value: float = DENSE,
    half: float = 0.016,
    drop_half: float = 0.01,
    dense: float = DENSE,
    sparsity: float = 0.0,
    **more: Any,
) -> Row:
    """A row of tradeoff.csv. `half`, `drop_half`: half widths of the intervals of value and drop; NaN for none."""
    masked = method != "dense"
    gated = method in GATED
    return {
        "point": point,
        "checkpoint": "minilm-trec",
        "data": "TREC_10.csv",
        "method": method,
        "granularity": "offset" if gated else "pattern" if masked else "",
        "sharing": "none" if method == "dam" else "",
        "diagonal": "free" if masked else "",
        "train": "gates" if method == "dam" else "none",
        "target": sparsity if masked else math.nan,
        "cell_sparsity": sparsity,
        "nominal_sparsity": sparsity * 1.01 if masked else 0.0,
        "block_sparsity": max(0.0, sparsity - 0.8) if masked else 0.0,
        "block_size": 16,
        "metric_name": "accuracy",
        "value": value,
        "ci_low": value - half,
        "ci_high": value + half,
        "dense": dense,
        "drop": dense - value,
        "drop_ci_low": dense - value - drop_half,
        "drop_ci_high": dense - value + drop_half,
        "loss": 0.2 + dense - value,
        "heldout_value": value - 0.002,
        "heldout_dense": dense,
        "heldout_drop": dense - value + 0.002,
        "heldout_drop_ci_high": dense - value + 0.012,
        "counted_sparsity": sparsity,
        "sparsity_before_threshold": sparsity - 0.002 if method == "dam" else math.nan,
        "steps": 600 if method == "dam" else 0,
        "seconds": 81.5 if method == "dam" else 1.25,
        "seed": 0,
        "draw": math.nan,
        "examples": 500,
        "exported": False,
        **more,
    }


def sweep_rows(
    *,
    targets: Sequence[float] = (0.8, 0.9, 0.95),
    methods: Sequence[str] = tuple(LOSS),
    seeds: int = 3,
    exported: str | None = "dam-offset-gates-0.9-s0",
    seed: int = 0,
) -> list[Row]:
    """Rows of a sweep: dense, DAM with several seeds, random with several draws, controls, what each class keeps."""
    random = np.random.default_rng(seed)
    rows = [row()]
    for method in methods:
        for target in targets:
            repeats = seeds if method in ("dam", "random") else 1
            for repeat in range(repeats):
                name = f"{method}-offset-gates-{target:g}-s{repeat}" if method == "dam" else f"{method}-{target:g}"
                name += f"-d{repeat}" if method == "random" else ""
                lost = LOSS.get(method, 1.5) * max(target - 0.75, 0.01) + random.normal(0, 0.003) * (repeats > 1)
                rows.append(
                    row(
                        name,
                        method,
                        value=DENSE - lost,
                        sparsity=target + random.normal(0, 0.001),
                        target=target,
                        seed=repeat if method == "dam" else 0,
                        draw=repeat if method == "random" else math.nan,
                        exported=name == exported,
                        **_kept(random, method, target),
                    )
                )
    return rows


def write_sweep(
    folder: Path,
    rows: Iterable[Mapping[str, Any]] | None = None,
    *,
    without: Sequence[str] = (),
    sites: int = 2,
    heads: int = 3,
    tokens: Sequence[str] = TOKENS,
    summary: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    **info: Any,
) -> Path:
    """Write a complete run folder into `folder` (made if missing), leaving out the files named in `without`."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(list(sweep_rows() if rows is None else rows)).reindex(columns=list(COLUMNS))
    random = np.random.default_rng(0)
    masked = [str(name) for name in table.loc[table["method"] != "dense", "point"]]
    trained = [str(name) for name in table.loc[table["steps"] > 0, "point"]]
    written = {
        "tradeoff.csv": table.astype({"draw": "Int64", "seed": "Int64", "steps": "Int64"}),
        "kept.csv": _kept_table(random, masked, sites, heads),
        "training.csv": _training_table(trained),
    }
    for name, frame in written.items():
        if name not in without:
            frame.to_csv(folder / name, index=False, float_format="%.7g", lineterminator="\n")
    if "masks.npz" not in without:
        np.savez(
            folder / "masks.npz",
            allow_pickle=False,
            tokens=np.asarray(tokens),
            **_masks(random, table, sites, heads, len(tokens)),
        )
    exported = table.loc[table["exported"].astype(bool), "point"]
    record = sweep_info(
        {
            "dense": DENSE,
            "metric_name": "accuracy",
            "exported": str(exported.iloc[0]) if len(exported) else None,
            "max_drop": 0.01,
            "reason": "",
            **(summary or {}),
        },
        sites=sites,
        heads=heads,
        warnings=list(warnings),
    )
    (folder / "run.json").write_text(json.dumps(record | info), encoding="utf-8")
    return folder


def sweep_info(summary: Mapping[str, Any], *, sites: int, heads: int, warnings: list[str]) -> dict[str, Any]:
    """The contents of run.json."""
    return {
        "schema_version": 1,
        "command": "sparsify",
        "status": "complete",
        "command_line": "attnprobe sparsify minilm-trec --eval-file TREC_10.csv --target-sparsity 0.8,0.9,0.95",
        "arguments": {"checkpoint": "minilm-trec", "eval_file": "TREC_10.csv", "max_length": 64},
        "seed": 0,
        "checkpoint": {"name": "minilm-trec", "digest": "9f" * 32, "family": "bert", "sites": sites, "heads": heads},
        "data": {"source": "TREC_10.csv", "digest": "3c" * 32, "examples": 500, "max_length": 64},
        "objective": {"kind": "task", "loss_unit": "nats", "metric_name": "accuracy"},
        "versions": {"attnprobe": "0.1.0", "torch": "2.13.0"},
        "summary": dict(summary),
        "warnings": warnings,
        "started": "2026-01-05T10:00:00+00:00",
        "finished": "2026-01-05T10:21:04+00:00",
        "seconds": 1264.1,
    }


def _kept(random: np.random.Generator, method: str, target: float) -> dict[str, float]:
    shares = dict.fromkeys(CLASSES, 1 - target)
    if method == "dam":
        shares = {name: float(np.clip(random.normal(1 - target, 0.1), 0.01, 0.99)) for name in CLASSES}
        shares |= {"diagonal": 0.02, "cls_query": 0.7}
    del shares["cross_segment"]
    return {f"kept_{name}": share for name, share in shares.items()}


def _kept_table(random: np.random.Generator, points: Sequence[str], sites: int, heads: int) -> pd.DataFrame:
    rows = [
        (point, site, head, name, random.random(), 100 + number)
        for point in points
        for site in range(sites)
        for head in range(heads)
        for number, name in enumerate(CLASSES)
        if name != "cross_segment"
    ]
    return pd.DataFrame(rows, columns=["point", "site", "head", "position_class", "kept", "cells"])


def _training_table(points: Sequence[str]) -> pd.DataFrame:
    rows = [
        (point, step, 0.2 + 0.1 / (1 + step / 100), max(0.1, 1 - step / 300), max(0.1, 1 - step / 310), 0.3)
        for point in points
        for step in range(0, 601, 25)
    ]
    return pd.DataFrame(rows, columns=["point", "step", "loss", "wanted_density", "density", "learning_rate"])


def _masks(random: np.random.Generator, table: pd.DataFrame, sites: int, heads: int, n: int) -> dict[str, Any]:
    """Masks (sites, heads, n, n) as 0 and 1: single cells for learnt ones and random ones, a band for the others."""
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    masks = {}
    for point, method, sparsity in zip(table["point"], table["method"], table["cell_sparsity"], strict=True):
        if method == "dense":
            continue
        if method in GATED:
            mask = random.random((sites, heads, n, n)) > sparsity
        else:
            mask = np.broadcast_to(distance <= n * (1 - sparsity) / 2, (sites, heads, n, n))
        masks[str(point)] = mask.astype(np.uint8)
    return masks
