"""Sweeps on Ray: the same tables as here, a lost worker's point tried again, errors in one line."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnprobe.errors import EngineError, MissingDependencyError, UsageError
from attnprobe.options import ModelOptions
from attnprobe.runs import read_run
from attnprobe.sparsify import ray_engine
from attnprobe.sparsify.options import ENGINES as NAMES
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.ray_engine import Order, make_point
from attnprobe.sparsify.run import ENGINES
from tests.helpers.sweeps import lay_ground, sweep, tradeoff

ray = pytest.importorskip("ray", reason="ray is not installed (extra: ray)")

SWEEP: dict[str, Any] = {"train": "all", "seeds": ("0", "1"), "max_drop": 100.0}
VICTIM = "dam-offset-all-0.6-s0"


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    """A local Ray of two CPUs, whose workers outlive a test, and whose token is not kept at home."""
    environment = pytest.MonkeyPatch()
    environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    environment.setenv("RAY_AUTH_MODE", "")
    environment.delenv("RAY_AUTH_MODE")  # which Ray sets; what it was comes back at the end
    environment.setenv("RAY_worker_niceness", "0")
    environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own making
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    yield
    ray.shutdown()
    environment.undo()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_ground(tmp_path_factory.mktemp("ray") / "ground")


@pytest.fixture(scope="module")
def here(ground: Path) -> Path:
    """The sweep made in this process."""
    return sweep(ground, "here", **SWEEP)


def traced(folder: Path, victim: str | None = None) -> Callable[[Order, Point], Any]:
    """As `make_point`; leaves a file named after its process, which is killed in its first training of ``victim``."""

    def traced_point(order: Order, point: Point) -> Any:
        from attnprobe.sparsify.learning import _Conductor

        (folder / f"{os.getpid()}-{point.name}").touch()
        killed, begin = folder / "killed", _Conductor.on_step_begin

        def fatal(conductor: Any, args: Any, state: Any, *rest: Any, **more: Any) -> None:
            if state.global_step == 3:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            begin(conductor, args, state, *rest, **more)

        if point.name == victim and not killed.exists():
            _Conductor.on_step_begin = fatal  # type: ignore[assignment, method-assign]
        return make_point(order, point)

    return traced_point


@pytest.mark.usefixtures("two_workers")
def test_a_lost_worker(
    ground: Path, here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One of two workers is killed in mid-training: its point is made by another, and nothing else is different."""
    monkeypatch.setattr(ray_engine, "make_point", traced(tmp_path, VICTIM))
    monkeypatch.chdir(ground)
    there = sweep(Path(), "there", engine="ray", **SWEEP)
    assert (tmp_path / "killed").exists()
    (warning,) = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert warning == f"the worker of point {VICTIM} was lost (WorkerCrashedError): it is tried again (2 of 3)"
    makers = [file.name.split("-", 1) for file in tmp_path.glob("*-*")]
    assert len([name for _, name in makers if name == VICTIM]) == 2
    assert len({process for process, _ in makers}) >= 2
    assert str(os.getpid()) not in {process for process, _ in makers}
    as_typed = ["checkpoint", "data"]
    pd.testing.assert_frame_equal(
        tradeoff(there).drop(columns=as_typed), tradeoff(here).drop(columns=as_typed), check_exact=True
    )
    arguments = read_run(there).record["arguments"]
    assert (arguments["checkpoint"], arguments["train_file"]) == ("model", "train.csv")  # as typed
    assert (there / "training.csv").read_text() == (here / "training.csv").read_text()


@pytest.mark.usefixtures("two_workers")
class TestErrors:
    """Of workers that are warm by now."""

    def test_of_the_product(self, ground: Path) -> None:
        with pytest.raises(UsageError, match=r"--target-sparsity 0.9999 can't be met .* --diagonal keep"):
            sweep(ground, "unreachable", engine="ray", target_sparsity=("0.9999",), diagonal=("keep",))

    def test_of_any_other_kind(self, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(order: Order, point: Point) -> Any:
            if point.method == "dam":
                raise ZeroDivisionError("all\nis lost")
            return make_point(order, point)

        monkeypatch.setattr(ray_engine, "make_point", broken)
        text = r"point dam-offset-gates-0.6-s0 failed in a worker of Ray with ZeroDivisionError: all; .* --engine local"
        with pytest.raises(EngineError, match=text):
            sweep(ground, "broken", engine="ray")
        assert {file.stem for file in (ground / "broken" / "partial").glob("*.npz")} >= {"dense"}

    def test_a_worker_that_is_lost_every_time(self, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost(order: Order, point: Point) -> Any:
            del order, point
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(ray_engine, "make_point", lost)
        monkeypatch.setattr(ray_engine, "TRIES", 1)
        with pytest.raises(
            EngineError, match=r"the worker of point dense was lost .*, the last of 1 tries: .* --resume"
        ):
            sweep(ground, "lost", engine="ray", methods=("dam",))


@pytest.mark.usefixtures("two_workers")
def test_ray_answers() -> None:
    """The address of the instance that runs passes; the dashboard's would not."""
    ray_engine._require_answer(ray.get_runtime_context().gcs_address)


def test_another_version(ground: Path) -> None:
    order = Order(name="x", data=None, model=None, options=None, run=ground, started="", version="0")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="the sweep was started by 0: install the same version on every machine"):
        make_point(order, Point(method="dense"))


def test_the_table_of_engines() -> None:
    assert tuple(ENGINES) == NAMES


def test_without_ray(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"install attnprobe\[ray\], or give --engine local"):
        sweep(ground, "never", engine="ray")
    assert not (ground / "never").exists()


def test_under_a_launcher(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="--engine ray starts processes of its own"):
        sweep(ground, "never", engine="ray")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ray were not in use."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nothing_at_the_address(scheme: str, ground: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(EngineError, match=rf"no Ray cluster answers at --address {address} \(.*\); start one with"):
        sweep(ground, "never", engine="ray", address=address)
    assert time.monotonic() - began < 3
    assert not (ground / "never").exists()


@pytest.mark.usefixtures("nowhere")
def test_something_else_at_the_address(ground: Path) -> None:
    """Such as the dashboard, or any other server of the web."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EngineError, match=r"no Ray cluster .* \(what answers is not Ray\); .* that it says"):
            sweep(ground, "never", engine="ray", address=f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("address", ["auto", "nonsense"])
def test_an_address_that_ray_refuses(address: str, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        EngineError, match=rf"can't reach the Ray cluster at --address {address}: Could not .* instance\.;"
    ):
        sweep(ground, "never", engine="ray", address=address)
    assert not (ground / "never").exists()


@pytest.mark.parametrize("alive", [True, False])
def test_room(alive: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": alive, "Resources": {"CPU": 5.0, "GPU": 1.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    ray_engine._require_room(SparsifyOptions(engine="ray", num_cpus=2), own=True)
    wanted = SparsifyOptions(engine="ray", num_cpus=3, num_gpus=0.5)
    if alive:
        ray_engine._require_room(wanted, own=True)
        return
    text = r"a point asks for --num-cpus 3 and --num-gpus 0.5, and no machine of Ray has .* \(at most 2 CPUs, 0 GPUs\)"
    with pytest.raises(UsageError, match=text):
        ray_engine._require_room(wanted, own=True)
    ray_engine._require_room(wanted, own=False)
    assert caplog.records[-1].getMessage().endswith(": points wait until one comes")


def test_a_gpu_that_was_not_asked_for() -> None:
    with pytest.raises(UsageError, match="give --num-gpus beside --device cuda"):
        ENGINES["ray"].ready(SparsifyOptions(engine="ray"), ModelOptions(device="cuda")).__enter__()
