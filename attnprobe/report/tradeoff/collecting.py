"""Reading run folders to be merged, and refusing those that cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from attnprobe.errors import RunFolderError, UsageError
from attnprobe.report.identity import short_name
from attnprobe.report.tables import Record, Run, read_info, read_run, text
from attnprobe.report.tradeoff.points import Point, Sweep, read_sweep
from attnprobe.report.tradeoff.study import Study, study_of

COMMANDS = ("sparsify", "importance")
"""Commands whose runs can be merged."""

TOLERANCE = 1e-4
"""How far figures of one point may differ between two runs, relative to their size, and still be the same."""

SAME_FIGURES = ("value", "loss", "target", "cell_sparsity", "nominal_sparsity", "block_sparsity")
SAME_WORDS = ("method", "granularity", "sharing", "diagonal", "train", "metric_name")

Read = Callable[[Record], object]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A run with the name that tells it from the others, and its tradeoff.csv as it stands, behind a column `run`."""

    name: str
    run: Sweep | Run
    rows: pd.DataFrame = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Runs that can be compared; `studies` are of one checkpoint, data set and metric each."""

    runs: Sequence[Named]
    studies: Sequence[Study]

    @property
    def sweeps(self) -> list[tuple[str, Sweep]]:
        """Runs of `sparsify`, named."""
        return [(named.name, named.run) for named in self.runs if isinstance(named.run, Sweep)]

    @property
    def importance(self) -> list[tuple[str, Run]]:
        """Runs of `importance`, named."""
        return [(named.name, named.run) for named in self.runs if isinstance(named.run, Run)]


def collect(folders: Sequence[Path]) -> Merged:
    """Read run folders, and see that they can be compared.

    Raises:
        UsageError: a run is given twice, none is of `sparsify`, or two cannot be compared; both are named.
        RunFolderError: a folder is no run folder, is broken, is not complete, or is of a command without a place here.
    """
    _require_distinct(folders)
    names = _names(folders)
    runs = [_read(folder, name) for folder, name in zip(folders, names, strict=True)]
    if not any(isinstance(named.run, Sweep) for named in runs):
        raise UsageError(
            f"merging needs at least one run of sparsify, {_list(names)} {'is' if len(names) == 1 else 'are'} of "
            "importance: add one, or make each report alone"
        )
    _require_comparable(runs)
    return Merged(runs=runs, studies=_studies(runs))


def _require_distinct(folders: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in seen:
            what = "twice" if seen[place] == folder else f"as {seen[place]} too"
            raise UsageError(f"each run must be given once, and {folder} is given {what}: leave one out")
        seen[place] = folder


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where that is not enough to tell them apart."""
    short = [folder.name or str(folder) for folder in folders]
    return short if len(set(short)) == len(short) else [folder.as_posix() for folder in folders]


def _read(folder: Path, name: str) -> Named:
    info = read_info(folder)
    command, status = str(info.get("command")), str(info.get("status"))
    if command not in COMMANDS:
        raise RunFolderError(
            f"only runs of {' and '.join(COMMANDS)} can be merged, {folder} is a run of {command}: leave it out"
        )
    if status != "complete":
        raise RunFolderError(
            f"only complete runs can be merged, {folder} is not (status: {status}): finish it with --resume, or leave "
            "it out"
        )
    if command == "importance":
        return Named(name=name, run=read_run(folder), rows=pd.DataFrame())
    sweep = read_sweep(folder)
    rows = pd.read_csv(folder / "tradeoff.csv", dtype=str, keep_default_na=False)
    rows.insert(0, "run", name)
    return Named(name=name, run=sweep, rows=rows)


def _require_comparable(runs: Sequence[Named]) -> None:
    """What has one name must be one thing; what is measured on one thing must be measured alike."""
    checkpoint, data = _of("checkpoint", "name"), _of("data", "source")
    sweeps = [named for named in runs if isinstance(named.run, Sweep)]
    _require_same(runs, [("checkpoint", checkpoint)], "digest", _of("checkpoint", "digest"))
    _require_same(runs, [("data", data)], "digest", _of("data", "digest"))
    _require_same(runs, [("data", data)], "max_length", _of("data", "max_length"))
    both = [("checkpoint", checkpoint), ("data", data)]
    _require_same(sweeps, both, "metric", _of("objective", "metric_name"))
    points: dict[tuple[object, ...], tuple[Named, Point]] = {}
    for named in sweeps:
        assert isinstance(named.run, Sweep)
        for point in named.run.points:
            other, same = points.setdefault((*_identity(named.run), point.point), (named, point))
            differing = _differing(same, point)
            if differing:
                raise UsageError(
                    f"one point must have one result, and {point.point} has {differing} in {other.run.path} and "
                    f"{named.run.path}: leave one of the runs out"
                )


def _require_same(runs: Iterable[Named], by: Sequence[tuple[str, Read]], what: str, read: Read) -> None:
    """Runs that share what `by` reads must share what `read` reads, where both state it."""
    seen: dict[tuple[object, ...], Named] = {}
    for named in runs:
        shared, value = tuple(part(named.run) for _, part in by), read(named.run)
        if value is None or None in shared:
            continue
        other = seen.setdefault(shared, named)
        before = read(other.run)
        if before != value:
            names = " and ".join(f"the {word} {name}" for (word, _), name in zip(by, shared, strict=True))
            raise UsageError(
                f"runs that are compared must have one {what} for {names}, {other.run.path} has {_short(before)} and "
                f"{named.run.path} {_short(value)}: leave one out"
            )


def _of(part: str, key: str) -> Read:
    return lambda run: run.part(part).get(key)


def _short(value: object) -> str:
    """A value for a message; of a digest its beginning."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 40 else str(value)


def _differing(first: Point, second: Point) -> str:
    """What tells two results of one point apart, in words; nothing where they agree."""
    for name in SAME_WORDS:
        if getattr(first, name) != getattr(second, name):
            return f"{name} {getattr(first, name) or 'none'} and {getattr(second, name) or 'none'}"
    for name in SAME_FIGURES:
        a, b = getattr(first, name), getattr(second, name)
        if math.isfinite(a) and math.isfinite(b) and not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-9):
            return f"{name} {a:g} and {b:g}"
    return ""


def _identity(run: Record) -> tuple[object, object, object]:
    """Checkpoint, data and metric: by digest, or by name where there is none."""
    checkpoint, data = run.part("checkpoint"), run.part("data")
    return (
        checkpoint.get("digest") or checkpoint.get("name"),
        data.get("digest") or data.get("source"),
        run.part("objective").get("metric_name"),
    )


def _studies(runs: Sequence[Named]) -> list[Study]:
    groups: dict[tuple[object, object, object], list[Sweep]] = {}
    for named in runs:
        if isinstance(named.run, Sweep):
            groups.setdefault(_identity(named.run), []).append(named.run)
    short = [title(sweeps[0]) for sweeps in groups.values()]
    full = len(set(short)) < len(short)
    return [_study(title(sweeps[0], full=full), sweeps) for sweeps in groups.values()]


def _study(name: str, sweeps: Sequence[Sweep]) -> Study:
    """The study of runs of one checkpoint, data set and metric; a point that several of them have counts once."""
    points: dict[str, Point] = {}
    for sweep in sweeps:
        for point in sweep.points:
            if point.point not in points or point.exported:
                points[point.point] = point
    limits = {sweep.max_drop for sweep in sweeps if math.isfinite(sweep.max_drop)}
    return study_of(
        name,
        list(points.values()),
        max_drop=limits.pop() if len(limits) == 1 else math.nan,
        reason=sweeps[0].reason if len(sweeps) == 1 else "",
    )


def title(run: Record, *, full: bool = False) -> str:
    """What a run is of: `minilm-trec on TREC_10.csv`."""
    checkpoint, data = text(run.part("checkpoint").get("name")), text(run.part("data").get("source"))
    return f"{(checkpoint if full else short_name(checkpoint)) or 'the checkpoint'} on {data or 'its data'}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
