"""The points of a sweep on a Ray cluster: a task each, tried again when its worker is lost."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from attnprobe import __version__
from attnprobe.checkpoint.locate import DEMO_NAMES
from attnprobe.data.sources import DataOptions
from attnprobe.distributed import processes
from attnprobe.errors import AttnProbeError, EngineError, MissingDependencyError, RunFolderError, UsageError
from attnprobe.options import ModelOptions
from attnprobe.quiet import first_line
from attnprobe.runs import read_run
from attnprobe.sparsify.engines import Engine, Job, Made, training_folder
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.outcome import Outcome
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting, opened
from attnprobe.sparsify.sweep import run_point

logger = logging.getLogger(__name__)

TRIES = 3
"""How often a point is begun at most, when its worker is lost each time."""

_QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment that Ray reads where it is imported: without it, it writes what happens to workers on stdout."""

_ANSWER_SECONDS = 5.0

_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The frame that either side of HTTP/2 begins with: its length, its kind, flags, stream."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker needs to open the sweep, wherever it runs.

    Attributes:
        name: the checkpoint; a folder by its absolute path.
        data: files by their absolute paths.
        model: with the worker's device.
        options: of the sweep.
        run: absolute path of the run folder, which the worker may or may not see.
        started: when the run began, by which the worker knows the folder.
        version: of attnprobe.
    """

    name: str
    data: DataOptions
    model: ModelOptions
    options: SparsifyOptions
    run: Path
    started: str
    version: str = __version__


@contextmanager
def _ready(options: SparsifyOptions, model: ModelOptions) -> Iterator[None]:
    """Be connected to Ray, at an address or on a local instance; one that is in use already stays so.

    Raises:
        EngineError: nothing like Ray answers at the address.
        MissingDependencyError: Ray is not installed.
        UsageError: no machine can give what a point asks for.
    """
    if processes() > 1:
        raise UsageError("--engine ray starts processes of its own: start the command without torchrun or launch")
    if model.device != "cpu" and not options.num_gpus:
        raise UsageError(
            f"--engine ray hides GPUs from points that ask for none: give --num-gpus beside --device {model.device}"
        )
    ray = _import_ray()
    address = options.address or os.environ.get("RAY_ADDRESS", "")
    with ExitStack() as stack:
        if not ray.is_initialized():
            _connect(ray, address)
            stack.callback(ray.shutdown)
        _require_room(options, own=address in ("", "local"))
        yield


def _make(job: Job, points: Sequence[Point]) -> Generator[Made, None, None]:
    """Make the points in tasks; they come as they end.

    Raises:
        AttnProbeError: as a worker met it; EngineError where a worker fails otherwise, or is lost too often.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    order, options = _order(job), job.setting.options
    task = ray.remote(make_point).options(
        num_returns=2, max_retries=0, num_cpus=options.num_cpus, num_gpus=options.num_gpus
    )
    running: dict[Any, tuple[Point, Any]] = {}
    begun: Counter[str] = Counter()

    def begin(point: Point) -> None:
        begun[point.name] += 1
        outcome, weights = task.remote(order, point)
        running[outcome] = point, weights

    try:
        for point in points:
            begin(point)
        while running:
            dense = [at for at, (point, _) in running.items() if point.kind == "dense" and point.train == "none"]
            (ended,), _ = ray.wait(dense or list(running), num_returns=1)
            point, weights = running.pop(ended)
            try:
                arrays = {name: array.copy() for name, array in ray.get(ended).items()}  # Ray's own are read-only
                outcome = Outcome.of(arrays)
                made = Made(
                    point=point,
                    outcome=outcome,
                    weights=ray.get(weights) if job.may_be_exported(point, outcome) else None,
                )
            except RayTaskError as error:
                raise _failed(point, error) from error
            except RayError as error:
                _require_tries_left(point, begun[point.name], error)
                begin(point)
                continue
            yield made
    finally:
        for ref in running:
            ray.cancel(ref, force=True)


def _failed(point: Point, error: Any) -> AttnProbeError:
    """What a worker raised: an error of the product as it is, any other with the point's name."""
    cause = error.cause or error
    if isinstance(cause, AttnProbeError):
        return cause
    return EngineError(
        f"point {point.name} failed in a worker of Ray with {type(cause).__name__}: {first_line(cause)}; "
        "the worker's log in Ray has it in full; --engine local shows whether it fails here too"
    )


def _require_tries_left(point: Point, begun: int, error: Exception) -> None:
    """Say that a worker was lost; raise where it was the last try."""
    lost = f"the worker of point {point.name} was lost ({type(error).__name__})"
    if begun >= TRIES:
        raise EngineError(
            f"{lost}, the last of {TRIES} tries: see Ray's logs; where memory runs out, let fewer points share a "
            "machine by a larger --num-cpus. Points that are made are kept: go on with --resume"
        ) from error
    logger.warning("%s: it is tried again (%s of %s)", lost, begun + 1, TRIES)


def _connect(ray: Any, address: str) -> None:
    _require_answer(address)
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address or "local", **quiet, **({} if address else {"include_dashboard": False}))
    except Exception as error:  # Ray raises errors of every kind
        if not address:
            raise EngineError(f"can't start Ray here: {first_line(error)}; give --engine local") from error
        raise EngineError(
            f"can't reach the Ray cluster at --address {address}: {first_line(error)}; check the address, and where "
            "the cluster asks for a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, as Ray has it"
        ) from error


def _import_ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            f"--engine ray needs Ray ({first_line(error)}); install attnprobe[ray], or give --engine local"
        ) from error
    return ray


def _require_answer(address: str) -> None:
    """See that something at ``host:port`` speaks as Ray does (HTTP/2): Ray itself would wait for minutes.

    Raises: EngineError.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()) or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
            reason = "" if connection.recv(9)[3:4] == _SETTINGS[3:4] else "what answers is not Ray"
    except (OSError, OverflowError, UnicodeError) as error:
        reason = first_line(error)
    if reason:
        raise EngineError(
            f"no Ray cluster answers at --address {address} ({reason}); start one with `ray start --head`, "
            "give the address that it says, or leave --address out"
        )


def _require_room(options: SparsifyOptions, *, own: bool) -> None:
    """See that a machine can hold a point; a cluster that is not ours may still grow. Raises: UsageError."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": options.num_cpus, "GPU": options.num_gpus}
    if any(all(node.get(name, 0) >= number for name, number in wanted.items()) for node in nodes):
        return
    most = ", ".join(f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}s" for name in wanted)
    rule = (
        f"a point asks for --num-cpus {options.num_cpus:g} and --num-gpus {options.num_gpus:g}, "
        f"and no machine of Ray has as much (at most {most})"
    )
    if own:
        raise UsageError(f"{rule}: ask for less, or give the --address of a cluster that has")
    logger.warning("%s: points wait until one comes", rule)


def _order(job: Job) -> Order:
    options, model = job.setting.options, job.setting.model_options
    data = replace(
        job.data,
        train_file=job.data.train_file and job.data.train_file.absolute(),
        eval_file=job.data.eval_file and job.data.eval_file.absolute(),
        dataset_name=job.data.dataset_name and _absolute(job.data.dataset_name),
    )
    return Order(
        name=job.name if job.name in DEMO_NAMES else _absolute(job.name),
        data=data,
        model=replace(model, device="cuda") if options.num_gpus else model,
        options=options,
        run=job.run.path.absolute(),
        started=job.run.record["started"],
    )


def _absolute(name: str) -> str:
    """A folder's absolute path; a name that is no path as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def make_point(order: Order, point: Point) -> tuple[dict[str, NDArray[Any]], dict[str, Tensor] | None]:
    """Make a point, in a worker: its outcome's arrays, and the model's weights on the host where it has its own.

    Ray fetches the second part only where it is asked for.
    """
    if order.version != __version__:
        raise EngineError(
            f"a worker of Ray has attnprobe {__version__}, and the sweep was started by {order.version}: "
            "install the same version on every machine"
        )
    _, setting = _opened(order.name, order.data, order.model, order.options)
    with _training_folder(order, point) as folder:
        outcome = run_point(setting, point, folder, resume=True)
    if point.train not in ("weights", "all") or outcome.mask is None:
        return outcome.arrays(), None
    return outcome.arrays(), {name: tensor.cpu() for name, tensor in setting.session.model.state_dict().items()}


@lru_cache(maxsize=1)
def _opened(name: str, data: DataOptions, model: ModelOptions, options: SparsifyOptions) -> tuple[ExitStack, Setting]:
    """The sweep as opened in this worker, which makes several of its points. The stack keeps it open."""
    stack = ExitStack()
    return stack, stack.enter_context(opened(name, data, model, options))


@contextmanager
def _training_folder(order: Order, point: Point) -> Iterator[Path]:
    """Where the training keeps its checkpoints: in the run folder where this machine sees it, so that another try,
    or --resume, goes on from there."""
    try:
        seen = read_run(order.run).record.get("started") == order.started
    except RunFolderError:
        seen = False
    if seen:
        yield training_folder(order.run, point)
        return
    with TemporaryDirectory(prefix="attnprobe-") as folder:
        yield Path(folder)


RAY = Engine(ready=_ready, make=_make)
"""In tasks on a Ray cluster."""
