"""Data sets by name, through the `datasets` package (extra `hub`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol, cast

from attnprobe.data.table import Cell, Table
from attnprobe.errors import DataError, MissingDependencyError, UsageError

#: The splits to evaluate on when none is named, the first that is there.
EVAL_SPLITS = ("validation", "validation_matched", "dev", "test")

_IDENTIFIER = re.compile(r"[\w.-]*\w[\w.-]*(/[\w.-]*\w[\w.-]*)?")


class _Dataset(Protocol):
    """What is used of `datasets.Dataset`."""

    features: Mapping[str, object]
    column_names: list[str]
    num_rows: int

    def __getitem__(self, column: str) -> Iterable[Cell]: ...
    def select(self, indices: range) -> _Dataset: ...


def read_hub(name: str, config: str | None, split: str | None, *, training: bool, limit: int | None = None) -> Table:
    """Read one split: the one named, else `train` to learn from, or the first of `EVAL_SPLITS` to measure on.

    Raises:
        MissingDependencyError: `datasets` is not installed.
        UsageError: the name is a path, not an identifier.
        DataError: the data set, its configuration or its split cannot be had.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise UsageError(f"--dataset-name {name!r} is not the name of a data set: files are given with --eval-file")
    source = "/".join(filter(None, (name, config)))
    splits = _load(name, config, source)
    wanted = (split,) if split else ("train",) if training else EVAL_SPLITS
    chosen = next((candidate for candidate in wanted if candidate in splits), None)
    if chosen is None:
        raise DataError(f"{source} has no split {wanted[0]!r}: choose one of {', '.join(splits)} with --split")
    data = splits[chosen]
    if limit is not None:
        data = data.select(range(min(limit, data.num_rows)))
    return Table(
        columns={column: list(data[column]) for column in data.column_names},
        source=f"{source} ({chosen})",
        label_names={column: names for column, feature in data.features.items() if (names := _class_names(feature))},
    )


def _load(name: str, config: str | None, source: str) -> Mapping[str, _Dataset]:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {source} needs the package datasets: pip install 'attnprobe[hub]', or give a file"
        ) from error
    try:
        return cast("Mapping[str, _Dataset]", datasets.load_dataset(name, config))
    except Exception as error:  # the package lets through what its many transports raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(
            f"{source} cannot be read ({reason}): check the name and the network, or give a file"
        ) from error


def _class_names(feature: object) -> tuple[str, ...]:
    """The names of a ClassLabel, alone or in a list; () for anything else."""
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    return tuple(names or ())
