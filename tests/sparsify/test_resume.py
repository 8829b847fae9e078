"""Sweeps that are killed and taken up: the same tables as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnprobe.runs import read_run
from attnprobe.sparsify.learning import _Conductor
from attnprobe.training.trainer import last_checkpoint
from tests.helpers.sweeps import ENVIRONMENT, lay_ground, sweep, tradeoff

WEIGHTS: dict[str, Any] = {"train": "all", "seeds": ("0", "1"), "settle": 0.4, "save_steps": 5, "logging_steps": 1}
"""Seven steps, of which the gates learn in four: a checkpoint after the fifth is of weights under a mask."""

GATES: dict[str, Any] = {"methods": ("dam",), "seeds": ("0", "1"), "save_steps": 2}

KILLED = f"""
import os, signal, sys
from pathlib import Path
from attnprobe.sparsify.learning import _Conductor
from tests.helpers.sweeps import one_thread, sweep

begin = _Conductor.on_step_begin

def fatal(self, args, state, *rest, **more):
    if args.output_dir.endswith("-s1") and state.global_step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, args, state, *rest, **more)

_Conductor.on_step_begin = fatal
one_thread()
sweep(Path(sys.argv[1]), "killed", **{WEIGHTS!r})
"""


class Watch:
    """The steps of all trainings, as point's end and number; with ``until`` an error in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int]] = []
        self.until: tuple[str, int] | None = None
        begin = _Conductor.on_step_begin

        def watched(conductor: _Conductor, args: Any, state: Any, *rest: Any, **more: Any) -> None:
            self.steps.append((args.output_dir[-2:], state.global_step))
            if self.steps[-1] == self.until:
                raise RuntimeError("stopped here")
            begin(conductor, args, state, *rest, **more)

        monkeypatch.setattr(_Conductor, "on_step_begin", watched)


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    return lay_ground(tmp_path / "ground")


def test_a_killed_process(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the weights of the second point learn under its mask."""
    undisturbed = sweep(ground, "undisturbed", **WEIGHTS)
    done = subprocess.run([sys.executable, "-c", KILLED, str(ground)], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert read_run(ground / "killed").record["status"] == "running"
    watch = Watch(monkeypatch)
    killed = sweep(ground, "killed", mode="resume", **WEIGHTS)
    assert watch.steps == [("s1", 5), ("s1", 6)]
    pd.testing.assert_frame_equal(tradeoff(killed), tradeoff(undisturbed), check_exact=True)
    for table in ("training.csv", "kept.csv"):
        assert (killed / table).read_text() == (undisturbed / table).read_text()
    assert {file.name for file in killed.iterdir()} == {file.name for file in undisturbed.iterdir()}
    learnt = tradeoff(killed).query("method == 'dam'")
    assert learnt["loss"].nunique() == 2  # another seed gives another row


def test_stopped_while_gates_learn(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = sweep(ground, "undisturbed", **GATES)
    watch = Watch(monkeypatch)
    watch.until = ("s0", 5)
    with pytest.raises(RuntimeError, match="stopped here"):
        sweep(ground, "stopped", **GATES)
    watch.until, watch.steps = None, []
    stopped = sweep(ground, "stopped", mode="resume", **GATES)
    assert watch.steps == [*(("s0", step) for step in range(4, 7)), *(("s1", step) for step in range(7))]
    pd.testing.assert_frame_equal(tradeoff(stopped), tradeoff(undisturbed), check_exact=True)


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    for step in (2, 10, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert last_checkpoint(tmp_path) is None
    for step in (2, 10):
        (tmp_path / f"checkpoint-{step}" / "attnprobe-whole").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
