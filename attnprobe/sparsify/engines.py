"""Where the points of a sweep are made: the form of every engine, and the one that makes them here, one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from attnprobe.data.sources import DataOptions
from attnprobe.distributed import is_main
from attnprobe.options import ModelOptions
from attnprobe.runs import RunFolder
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting
from attnprobe.sparsify.sweep import run_point


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What an engine is given beside the points.

    Attributes:
        setting: the sweep as it is opened here.
        name: the checkpoint, as the user named it.
        data: as the user named it.
        run: the run folder; engines read it, and leave writing results to who asks for them.
        resume: whether to go on with trainings that the folder holds.
        may_be_exported: whether a point's own weights may be needed; asked once the dense model's result is kept.
        starting: called with a point that is begun, where points are made one by one.
    """

    setting: Setting
    name: str
    data: DataOptions
    run: RunFolder
    resume: bool
    may_be_exported: Callable[[Point, Outcome], bool]
    starting: Callable[[Point], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """A point that is made. ``weights``: the model's, by name, where they may be exported and this process writes."""

    point: Point
    outcome: Outcome
    weights: Mapping[str, Tensor] | None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A place to make points.

    Attributes:
        ready: a context in which it can be used, entered before anything is opened; raises where it can't be used.
        make: gives each point as soon as it is made, the dense model first; each is kept before the next is asked for.
    """

    ready: Callable[[SparsifyOptions, ModelOptions], AbstractContextManager[None]]
    make: Callable[[Job, Sequence[Point]], Generator[Made, None, None]]


def training_folder(run: Path, point: Point) -> Path:
    """Where the training of a point keeps its checkpoints."""
    return run / "partial" / f"training-{point.name}"


def _make(job: Job, points: Sequence[Point]) -> Generator[Made, None, None]:
    """Make the points in this process, in their order."""
    for point in points:
        job.starting(point)
        outcome = run_point(job.setting, point, training_folder(job.run.path, point), resume=job.resume)
        wanted = is_main() and job.may_be_exported(point, outcome)
        weights = job.setting.session.model.state_dict() if wanted else None
        yield Made(point=point, outcome=outcome, weights=weights)


@contextmanager
def _ready(options: SparsifyOptions, model: ModelOptions) -> Iterator[None]:
    del options, model
    yield


LOCAL = Engine(ready=_ready, make=_make)
"""In this process, or in all that train together, one by one."""
