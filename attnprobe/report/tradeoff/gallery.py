"""The masks of a sweep as small images, sites by heads, one pixel a cell of the example shown."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from attnprobe.report.labels import PARTITION, class_tick
from attnprobe.report.maps import COLUMNS, RAMP, ROWS, spread
from attnprobe.report.numbers import capital
from attnprobe.report.page import Choice, Gallery, Section
from attnprobe.report.tradeoff.means import Mean
from attnprobe.report.tradeoff.points import Masks, Point, Sweep
from attnprobe.report.tradeoff.rows import mean_name
from attnprobe.report.tradeoff.sentences import percent
from attnprobe.report.tradeoff.study import Study

BUDGET = 600_000
"""Bytes that images and facts may take together."""
WIDTH, TILE = 908, 88
"""Pixels of the screen for a row of masks, and at most for one."""
READABLE = 48
"""Pixels below which a mask is drawn larger, even if its row then has to be scrolled."""
IN_EXAMPLE = "Kept of this example"

Facts = Mapping[tuple[str, int, int, str], float]
"""Share kept by point, site, head and position class."""


def gallery_section(sweep: Sweep, study: Study) -> Section | None:
    """The masks, one for each method and target; None where the run left none."""
    shown = _candidates(study, sweep.masks) if sweep.masks else []
    if sweep.masks is None or not shown:
        return None
    shape = next(iter(sweep.masks.kept[point.point].shape for _, point in shown))
    sites, heads = spread(shape[0], ROWS), spread(shape[1], COLUMNS)
    facts = _facts(sweep.kept, {point.point for _, point in shown})
    seen = {name for _, _, _, name in facts}
    classes = [name for name in PARTITION if name in seen]
    images: dict[str, int] = {}
    choices: list[Choice] = []
    size = 0
    for mean, point in shown:
        mask = sweep.masks.kept[point.point]
        if mask.shape != shape:
            continue
        choice, fresh = _choice(mean, point, mask, sites, heads, classes, facts, images)
        size += fresh
        if choices and size > BUDGET:
            break
        choices.append(choice)
    gallery = Gallery(
        key="masks",
        text="One pixel is one cell of one example: queries run down, keys to the right. Rows are sites, columns "
        "heads. Open a mask to enlarge it with the example's tokens and what each class of positions keeps over all "
        "the data; arrow keys go to its neighbours.",
        selector="Mask",
        rows=[str(site) for site in sites],
        columns=[str(head) for head in heads],
        facts=[IN_EXAMPLE, *(capital(class_tick(name)) for name in classes)],
        choices=choices,
        images=list(images),
        tokens=sweep.masks.tokens,
        size=shape[2],
        scale=_scale(shape[2], len(heads)),
    )
    return Section(
        key="gallery", title="What the masks look like", text=_text(sweep, study, choices, shape), blocks=[gallery]
    )


def _candidates(study: Study, masks: Masks) -> list[tuple[Mean, Point]]:
    """One point of each mean that has a mask: the exported one, or else the first; exported and learnt ones first."""
    found = []
    for mean in study.masked:
        stored = [point for point in mean.points if point.point in masks.kept]
        if stored:
            found.append((mean, next((point for point in stored if point.exported), stored[0])))
    return sorted(found, key=lambda pair: (not pair[1].exported, pair[0].line.kind != "learnt"))


def _choice(
    mean: Mean,
    point: Point,
    mask: NDArray[np.bool_],
    sites: Sequence[int],
    heads: Sequence[int],
    classes: Sequence[str],
    facts: Facts,
    images: dict[str, int],
) -> tuple[Choice, int]:
    """A mask as a choice, and the bytes it adds; images that are new join `images` with their number."""
    places = [(site, head) for site in sites for head in heads]
    uris = [_png(mask[place]) for place in places]
    fresh = sum(len(uri) for uri in set(uris) if uri not in images)
    values = [
        [
            _whole_percent(float(mask[place].mean())),
            *(_whole_percent(_of(facts, point, place, name)) for name in classes),
        ]
        for place in places
    ]
    tiles = [images.setdefault(uri, len(images)) for uri in uris]
    seed = f", seed {point.seed:.0f}" if len(mean.points) > 1 and math.isfinite(point.seed) else ""
    choice = Choice(
        label=f"{mean_name(mean)}{seed}{' (exported)' if point.exported else ''}",
        text=_average(point),
        tiles=tiles,
        facts=values,
    )
    return choice, fresh + 4 * sum(map(len, values)) + 4 * len(tiles)


def _average(point: Point) -> str:
    """What the mask keeps on average, over sites, heads and data."""
    removed = f"{percent(point.cell_sparsity)} of the cells removed over all the data."
    names = [name for name in PARTITION if name in point.kept]
    kept = ", ".join(f"{class_tick(name)} {percent(point.kept[name], 0)}" for name in names)
    return f"{removed} Kept on average: {kept}." if kept else removed


def _of(facts: Facts, point: Point, place: tuple[int, int], name: str) -> float:
    return facts.get((point.point, *place, name), math.nan)


def _facts(kept: pd.DataFrame, points: set[str]) -> Facts:
    chosen = kept[kept["point"].isin(points)].dropna(subset=["site", "head"])
    columns = [chosen[name].tolist() for name in ("point", "site", "head", "position_class", "kept")]
    return {
        (str(point), int(site), int(head), str(name)): float(share)
        for point, site, head, name, share in zip(*columns, strict=True)
    }


def _png(mask: NDArray[np.bool_]) -> str:
    """A mask (n, n) as a data URI: kept cells in the maps' blue, the others transparent."""
    image = Image.fromarray(mask.astype(np.uint8))
    image.putpalette([255, 255, 255, *RAMP[3]])
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True, transparency=0, bits=1)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _scale(size: int, heads: int) -> int:
    """Whole screen pixels a cell, so that all cells are drawn alike."""
    fitting = max(1, int(min(TILE, WIDTH / heads - 4) // size))
    return fitting if fitting * size >= READABLE else fitting + 1


def _text(sweep: Sweep, study: Study, choices: Sequence[Choice], shape: Sequence[int]) -> list[str]:
    notes = []
    if len(choices) < len(study.points) - sum(point.method == "dense" for point in study.points):
        notes.append(
            f"Shown are {len(choices)} masks, at most one for each method and target, the exported and learnt ones "
            "first; masks.npz holds all of them."
        )
    if shape[0] > ROWS or shape[1] > COLUMNS:
        notes.append(
            f"Shown are {min(shape[0], ROWS)} of {shape[0]} sites and {min(shape[1], COLUMNS)} of {shape[1]} heads, "
            "evenly spread."
        )
    if sweep.masks:
        notes.append(f"The example: {' '.join(sweep.masks.tokens)}")
    return notes


def _whole_percent(share: float) -> int | None:
    return round(100 * share) if math.isfinite(share) else None
