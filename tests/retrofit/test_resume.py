"""Retrofits that are killed and taken up: the same tables as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from tests.helpers.retrofits import retrofit, rows
from tests.helpers.sweeps import ENVIRONMENT, lay_ground

OPTIONS: dict[str, Any] = {"seeds": ("0", "1"), "save_steps": 3, "controls": ("continued",)}

KILLED = f"""
import os, signal, sys
from pathlib import Path
from attnprobe.retrofit.learning import _Ramp
from tests.helpers.retrofits import retrofit
from tests.helpers.sweeps import one_thread

begin = _Ramp.on_step_begin

def fatal(self, args, state, *rest, **more):
    if args.output_dir.endswith("-s1") and state.global_step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, args, state, *rest, **more)

_Ramp.on_step_begin = fatal
one_thread()
retrofit(Path(sys.argv[1]), "killed", **{OPTIONS!r})
"""


def test_a_killed_process(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path / "ground")
    undisturbed = retrofit(ground, "undisturbed", **OPTIONS)
    done = subprocess.run([sys.executable, "-c", KILLED, str(ground)], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = retrofit(ground, "killed", mode="resume", **OPTIONS)
    pd.testing.assert_frame_equal(rows(killed), rows(undisturbed), check_exact=True)
    for table in ("training.csv", "heads.csv"):
        assert (killed / table).read_text() == (undisturbed / table).read_text()
    assert {file.name for file in killed.iterdir()} == {file.name for file in undisturbed.iterdir()}
