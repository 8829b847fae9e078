"""Average attention maps as small palette PNGs in data URIs, one pixel a cell."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROWS, COLUMNS, POSITIONS = 24, 16, 96
BUDGET = 620_000
"""Bytes that all data URIs of a page may take together."""
LEVELS = 48
"""Colours of the palette, beside index 0: no data, transparent."""
RAMP = ((247, 248, 250), (198, 215, 238), (123, 163, 214), (47, 99, 171), (11, 47, 102))
"""The light theme's sequential colours (`.ramp` of report.css); the dark theme inverts the images."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Encoded maps: which sites and heads they show, up to which position, and the value of the darkest colour."""

    sites: Sequence[int]
    heads: Sequence[int]
    positions: int
    peak: float
    uris: Sequence[Sequence[str]]
    notes: Sequence[str]


def encode_maps(maps: NDArray[np.float32], counts: NDArray[np.int64], *, budget: int = BUDGET) -> Images:
    """Encode maps (sites, heads, queries, keys), all on one scale: colour is the square root of value / peak.

    Cells that no example has (`counts` 0) are transparent. Sites and heads beyond 24 x 16 are thinned evenly, and
    positions are cut to the first ones until everything fits `budget` bytes; `notes` says so.
    """
    sites, heads = spread(maps.shape[0], ROWS), spread(maps.shape[1], COLUMNS)
    seen = np.flatnonzero(counts.any(axis=0) | counts.any(axis=1))
    filled = int(seen[-1]) + 1 if len(seen) else 0
    positions = min(filled, POSITIONS)
    chosen = maps[np.ix_(sites, heads)]
    peak = float(np.nanmax(np.where(counts > 0, chosen, np.nan))) if filled else 0.0
    uris = _encode(chosen, counts, positions, peak)
    while (size := sum(len(uri) for row in uris for uri in row)) > budget and positions > 8:
        positions = max(8, min(positions - 1, int(positions * (budget / size) ** 0.5)))
        uris = _encode(chosen, counts, positions, peak)
    notes = []
    if positions < filled:
        notes.append(f"Maps are cut to the first {positions} of {filled} positions.")
    if len(sites) < maps.shape[0] or len(heads) < maps.shape[1]:
        notes.append(
            f"Shown are {len(sites)} of {maps.shape[0]} sites and {len(heads)} of {maps.shape[1]} heads, evenly spread."
        )
    return Images(sites=sites, heads=heads, positions=positions, peak=peak, uris=uris, notes=notes)


def spread(total: int, at_most: int) -> list[int]:
    """Numbers from 0 to `total` - 1, all of them or `at_most` that are evenly spread."""
    if total <= at_most:
        return list(range(total))
    return [round(step * (total - 1) / (at_most - 1)) for step in range(at_most)]


def _encode(maps: NDArray[np.float32], counts: NDArray[np.int64], positions: int, peak: float) -> list[list[str]]:
    empty = counts[:positions, :positions] == 0
    return [[_png(head[:positions, :positions], empty, peak) for head in site] for site in maps]


def _png(values: NDArray[np.float32], empty: NDArray[np.bool_], peak: float) -> str:
    shade = np.sqrt(np.clip(np.nan_to_num(values) / (peak or 1.0), 0, 1))
    pixels = np.where(empty, 0, 1 + np.rint(shade * (LEVELS - 1))).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.putpalette([128, 128, 128, *_palette()])
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True, transparency=0)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _palette() -> list[int]:
    """`LEVELS` colours between those of `RAMP`, as red, green, blue, red, ..."""
    at = np.linspace(0, len(RAMP) - 1, LEVELS)
    channels = [np.interp(at, range(len(RAMP)), [color[channel] for color in RAMP]) for channel in range(3)]
    return [int(value) for value in np.rint(np.stack(channels, axis=1)).ravel()]
