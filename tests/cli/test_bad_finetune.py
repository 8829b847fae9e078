"""Bad input to `finetune`: one line, the right exit code, nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import ROWS, Call
from tests.export.exported import classifier
from tests.helpers.bad_input import Bad, require_refused, write

NEW = "finetune clf --train-file t.csv --eval-file d.csv --per-device-batch-size 4 --max-steps 2 --output-dir new"
SCHEDULED = f"{NEW} --dropout scheduled --schedule s.json"


@pytest.fixture(scope="session")
def ground(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ground of the other tests; training data `t.csv`; an export, `masked`."""
    place = tmp_path_factory.mktemp("finetune")
    folder = Path(shutil.copytree(ground, place / "ground"))
    (folder / "t.csv").write_text("sentence,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(ROWS * 2)))
    shutil.copytree(classifier(place, "cell").folder, folder / "masked")
    return folder


BAD = {
    "unknown method": Bad(f"{NEW} --dropout none,dropblock", 2, ("--dropout: unknown 'dropblock'", "drophead")),
    "one method twice": Bad(f"{NEW} --dropout none,none", 2, ("--dropout names 'none' twice",)),
    "no method": Bad(f"{NEW} --dropout ,", 2, ("--dropout must name at least one of",)),
    "rate beyond 1": Bad(f"{NEW} --rates weights=1.5", 2, ("--rates must be numbers from 0 to 1", "'weights=1.5'")),
    "rate in words": Bad(f"{NEW} --rates some", 2, ("--rates must be numbers from 0 to 1", "'some'")),
    "rate of a method without": Bad(f"{NEW} --rates none=0.1", 2, ("--rates: 'none' has no rate", "weights")),
    "no such schedule": Bad(SCHEDULED, 1, ("--schedule s.json: no such file", "linear")),
    "schedule that is no JSON": Bad(SCHEDULED, 1, ("s.json can't be read as JSON",), write("s.json", "rates")),
    "schedule of another kind": Bad(SCHEDULED, 1, ("s.json is no schedule of version",), write("s.json", "{}")),
    "unknown reward": Bad(f"{NEW} --reward f1", 2, ("--reward", "'f1'", "accuracy")),
    "unknown scope": Bad(f"{NEW} --reward-scope batch", 2, ("--reward-scope", "'batch'", "sample")),
    "no reward rows": Bad(f"{NEW} --reward-rows 0", 2, ("--reward-rows must be above 0", "not 0")),
    "no dropout step": Bad(f"{NEW} --dropout-step 0", 2, ("--dropout-step must be at least 1", "not 0")),
    "no rank": Bad(f"{NEW} --gnet-rank 0", 2, ("--gnet-rank must be at least 1", "not 0")),
    "no G-Net rate": Bad(f"{NEW} --gnet-learning-rate nan", 2, ("--gnet-learning-rate", "not nan")),
    "one training row": Bad(f"{NEW} --train-rows 1", 2, ("--train-rows must be at least 2", "not 1")),
    "time alone": Bad(f"{NEW} --match time", 2, ("--match time needs the equal steps too", "steps,time")),
    "fewer rows than a batch": Bad(
        NEW.replace("size 4", "size 32"), 1, ("fewer than a batch of 32", "--per-device-batch-size")
    ),
    "a language model's objective": Bad(f"{NEW} --objective lm", 2, ("--objective lm can't be had", "leave it out")),
    "no training data": Bad("finetune clf --eval-file d.csv --output-dir new", 2, ("no data to learn from",)),
    "no evaluation data": Bad("finetune clf --train-file t.csv --output-dir new", 2, ("no data to measure on",)),
    "an export": Bad(NEW.replace("clf", "masked"), 2, ("masked is an export", "begin with the one")),
    "recomputed attribution": Bad(
        f"{NEW} --dropout ad-drop --gradient-checkpointing", 2, ("--gradient-checkpointing can't be had with ad-drop",)
    ),
    "a folder in use": Bad(NEW.replace("new", "run"), 1, ("run is not empty", "--output-dir")),
    "resume another command": Bad(f"{NEW.replace('new', 'run')} --resume", 2, ("run holds a run of `importance`",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, sandbox: Path, call: Call) -> None:
    require_refused(BAD[name], sandbox, call)
