"""Fixed attention patterns: one literal table, the cells that a pattern keeps, and fitting one to a density.

The patterns are the baselines of Shi et al. 2021 (SparseBERT). At 128 tokens without padding they leave out 96.13 %
(star), 88.62 % (longformer), 93.13 % (bigbird, on average), 70.39 % (strided), 72.66 % (fixed) and 89.83 % (logsparse)
with the parameters of :data:`PATTERNS`. Imports no torch: the command line shows the table in its help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnprobe.errors import UsageError
from attnprobe.masks.pattern_cells import bigbird, fixed, logsparse, longformer, star, strided, window

if TYPE_CHECKING:
    from torch import Tensor

    from attnprobe.data.positions import Positions

ANY_DISTANCE = 1 << 20
"""A reach in tokens that no two tokens of a text exceed."""

_LARGEST = (1 << 31) - 1
_LEAST = {"reach": 0, "globals": 0, "random_keys": 0, "seed": 0, "stride": 1, "columns": 1}


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A family of fixed masks.

    Attributes:
        keep: the cells kept, bool (batch, queries, keys), from the positions and values of all parameters. Of cells of
            padding it says anything.
        parameters: the parameters with their defaults. The first is the pattern's size in tokens, which
            ``--pattern-window`` sets.
        grid: settings of all parameters that are tried to meet a density, from the densest to the sparsest.
        nested: each setting of the grid keeps only cells that the one before it keeps, on any text. Otherwise the
            order is that of long texts, and short ones may differ.
        summary: what is kept, in one clause, for help and reports.
        source: the paper.
    """

    keep: Callable[[Positions, Mapping[str, int]], Tensor]
    parameters: dict[str, int]
    grid: tuple[dict[str, int], ...]
    nested: bool
    summary: str
    source: str

    @property
    def size(self) -> str:
        """The name of the first parameter."""
        return next(iter(self.parameters))


_REACHES = range(2047, -1, -1)

PATTERNS: dict[str, Pattern] = {
    "window": Pattern(
        keep=lambda at, values: window(at, **values),
        parameters={"reach": 1},
        grid=tuple({"reach": reach} for reach in _REACHES),
        nested=True,
        summary="a band of offsets",
        source="Beltagy et al. 2020 (Longformer), without global tokens",
    ),
    "star": Pattern(
        keep=lambda at, values: star(at, **values),
        parameters={"reach": 1},
        grid=tuple({"reach": reach} for reach in _REACHES),
        nested=True,
        summary="a band of offsets, and the row and column of the first token",
        source="Guo et al. 2019 (Star-Transformer)",
    ),
    "longformer": Pattern(
        keep=lambda at, values: longformer(at, **values),
        parameters={"reach": 5, "globals": 2},
        grid=(*({"reach": reach, "globals": 2} for reach in _REACHES), {"reach": 0, "globals": 1}),
        nested=True,
        summary="a band of offsets, and the rows and columns of the first tokens",
        source="Beltagy et al. 2020 (Longformer)",
    ),
    "bigbird": Pattern(
        keep=lambda at, values: bigbird(at, **values),
        parameters={"reach": 2, "globals": 1, "random_keys": 2, "seed": 0},
        grid=tuple(
            {"reach": reach, "globals": 1, "random_keys": keys, "seed": 0}
            for reach in _REACHES
            for keys in (reach + 1, reach)
            if keys > 0
        ),
        nested=True,
        summary="a band of offsets, the rows and columns of the first tokens, and some random keys of every query",
        source="Zaheer et al. 2020 (BigBird)",
    ),
    "strided": Pattern(
        keep=lambda at, values: strided(at, **values),
        parameters={"stride": 4},
        grid=tuple({"stride": stride} for stride in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)),
        nested=False,
        summary="a band of offsets, and the offsets that are multiples of the stride",
        source="Child et al. 2019 (Sparse Transformer)",
    ),
    "fixed": Pattern(
        keep=lambda at, values: fixed(at, **values),
        parameters={"stride": 4, "columns": 1},
        grid=(
            *({"stride": 4, "columns": columns} for columns in (4, 3, 2)),
            *({"stride": stride, "columns": 1} for stride in (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48)),
        ),
        nested=False,
        summary="blocks along the diagonal, and the columns of each block's last tokens",
        source="Child et al. 2019 (Sparse Transformer)",
    ),
    "logsparse": Pattern(
        keep=lambda at, values: logsparse(at, **values),
        parameters={"reach": ANY_DISTANCE},
        grid=(*({"reach": 1 << power} for power in range(20, -1, -1)), {"reach": 0}),
        nested=True,
        summary="the diagonal, and the offsets that are powers of two",
        source="Li et al. 2019 (LogSparse Transformer)",
    ),
}
"""All patterns. Choices, help, report labels and controls derive from this table.

In bigbird's grid the random keys are about as many as the reach, as in the default, so that it stays itself at any
density. Longformer has two global tokens, since with one it would be star.
"""


def pattern_parameters(name: str, parameters: Mapping[str, int]) -> dict[str, int]:
    """All parameters of a named pattern, in the table's order: those given, and the defaults of the others.

    Raises:
        UsageError: an unknown pattern or parameter, a value that is no whole number or out of its range.
    """
    if name not in PATTERNS:
        raise UsageError(f"unknown pattern {name!r}; choose from {', '.join(PATTERNS)}")
    defaults = PATTERNS[name].parameters
    for parameter, value in parameters.items():
        if parameter not in defaults:
            raise UsageError(f"the pattern {name} has no parameter {parameter!r}; it has {', '.join(defaults)}")
        least = _LEAST[parameter]
        if type(value) is not int or not least <= value <= _LARGEST:
            raise UsageError(
                f"the pattern {name} needs a whole number from {least} to {_LARGEST} as its {parameter}, "
                f"not {value!r:.60}; the default is {defaults[parameter]}"
            )
    values = {**defaults, **parameters}
    if values.get("columns", 0) > values.get("stride", _LARGEST):
        raise UsageError(
            f"the pattern {name} keeps columns within blocks of stride tokens, so that columns must be at most stride, "
            f"not {values['columns']} of {values['stride']}; give fewer columns or a larger stride"
        )
    return values


def pattern_mask(name: str, at: Positions, parameters: Mapping[str, int] | None = None) -> Tensor:
    """The cells that a named pattern keeps: bool (batch, queries, keys).

    Args:
        name: of the pattern, in :data:`PATTERNS`.
        at: the tokens. The answer is the same at every site and head: ask once a batch.
        parameters: of the pattern; what is not given has the table's default.

    Raises:
        UsageError: see :func:`pattern_parameters`.
    """
    values = pattern_parameters(name, parameters or {})
    return PATTERNS[name].keep(at, values)


def fit_pattern(
    name: str, density_of: Callable[[Mapping[str, int]], float], target_density: float
) -> tuple[dict[str, int], float]:
    """The setting of a pattern's grid whose density is nearest to a target, and that density.

    A pattern cannot meet every density: one has to compare the two. Of two settings equally near, the denser is taken,
    which favours the pattern as a control.

    Args:
        name: of the pattern, in :data:`PATTERNS`.
        density_of: the density of a setting (all parameters): share of valid cells kept, 0 to 1, over the user's data.
            Asked at most 16 times, each time of another setting.
        target_density: 0 to 1.

    Raises:
        UsageError: an unknown pattern, or a target that is no share.
    """
    pattern_parameters(name, {})
    if not 0 <= target_density <= 1:
        raise UsageError(f"a target density must be a share of the cells from 0 to 1, not {target_density}")
    pattern = PATTERNS[name]
    measured: dict[int, float] = {}

    def density(setting: int) -> float:
        if setting not in measured:
            measured[setting] = density_of(pattern.grid[setting])
        return measured[setting]

    settings = _around(density, len(pattern.grid), target_density) if pattern.nested else range(len(pattern.grid))
    best = min(settings, key=lambda setting: (abs(density(setting) - target_density), -density(setting)))
    return dict(pattern.grid[best]), density(best)


def _around(density: Callable[[int], float], settings: int, target: float) -> list[int]:
    """The last setting of at least the target's density and the first below it, where densities fall: bisection."""
    low, high = 0, settings
    while low < high:
        middle = (low + high) // 2
        if density(middle) >= target:
            low = middle + 1
        else:
            high = middle
    return [setting for setting in (low - 1, low) if 0 <= setting < settings]
