"""Bad input to `sparsify`, to exports and to what reads both: one line, the right exit code, nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnprobe.export.format import RECORD, Applied, write_applied
from attnprobe.runs import EXPORT_MARK
from cli import run
from tests.cli.conftest import ROWS, Call
from tests.export.exported import classifier, generator
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.bad_input import Bad, Spoil, remove, require_refused, write

SCRATCH = "--eval-file d.csv --per-device-batch-size 4 --max-steps 2 --methods dam --resamples 10"
NEW = f"sparsify clf {SCRATCH} --train-file t.csv --output-dir new"
OTHER = f"sparsify clf {SCRATCH} --train-file u.csv --output-dir new"
SWEEP = f"sparsify clf {SCRATCH} --train-file t.csv"
GPT2 = "sparsify gpt2 --eval-file u.csv --train-file u.csv --per-device-batch-size 2 --max-steps 2 --output-dir new"


@pytest.fixture(scope="session")
def ground(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ground of the other tests; training data `t.csv`; `sweep`, a complete run; `masked`, an export by cell.

    `causal` is an export of `gpt2`.
    """
    place = tmp_path_factory.mktemp("sparsify")
    folder = Path(shutil.copytree(ground, place / "ground"))
    (folder / "t.csv").write_text("sentence,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(ROWS * 2)))
    before = Path.cwd()
    os.chdir(folder)
    try:
        code = run(shlex.split(f"{SWEEP} --output-dir sweep --quiet"))
    finally:
        os.chdir(before)
    assert code == 0
    for made, name in ((classifier(place, "cell"), "masked"), (generator(place / "gpt2"), "causal")):
        shutil.copytree(made.folder, folder / name)
    return folder


def _rows(*labels: object) -> Spoil:
    """Training data `u.csv` with these labels, each four times."""
    return write("u.csv", "sentence,label\n" + "".join(f"the cat,{label}\n" for label in labels * 4))


def _texts(*texts: str) -> Spoil:
    return write("u.csv", "text\n" + "".join(f'"{text}"\n' for text in texts * 4))


def _altered(sandbox: Path) -> None:
    record = sandbox / "masked" / RECORD
    record.write_text(record.read_text().replace('"target": 0.4', '"target": 0.5'))


def _masks_of_another(sandbox: Path) -> None:
    shutil.copy(sandbox / "causal/masks.safetensors", sandbox / "masked/masks.safetensors")


def _all_of_another(sandbox: Path) -> None:
    _masks_of_another(sandbox)
    shutil.copy(sandbox / "causal" / RECORD, sandbox / "masked" / RECORD)


def _other_weights(sandbox: Path) -> None:
    tensors = tiny.read_tensors(sandbox / "masked")
    tensors["classifier.bias"] += 1
    tiny.write_tensors(sandbox / "masked", tensors)


def _of_more_sites(sandbox: Path) -> None:
    """A mask for three sites beside a model of two, with all sums right."""
    from attnprobe.export.format import read_applied
    from attnprobe.masks.mask import GateMask

    base = [sandbox / "masked/config.json", sandbox / "masked/model.safetensors"]
    applied = read_applied(sandbox / "masked", base)
    assert applied is not None
    assert isinstance(applied.mask, GateMask)
    mask = replace(applied.mask, gates=torch.cat([applied.mask.gates, applied.mask.gates[:1]]))
    write_applied(sandbox / "masked", Applied(mask=mask, rules=applied.rules, provenance={}), base)


def _unfinished(sandbox: Path) -> None:
    shutil.copytree(sandbox / "sweep", sandbox / "killed")
    record = json.loads((sandbox / "killed/run.json").read_text())
    (sandbox / "killed/run.json").write_text(json.dumps({**record, "status": "running"}))


def _exported(sandbox: Path) -> None:
    """As if the sweep had exported its model."""
    shutil.copytree(sandbox / "masked", sandbox / "sweep/model")


TARGETS = {
    "target 0": Bad(f"{NEW} --target-sparsity 0", 2, ("--target-sparsity must lie between 0 and 1", "not 0")),
    "target 1": Bad(f"{NEW} --target-sparsity 1", 2, ("--target-sparsity must lie between 0 and 1", "not 1")),
    "target nearly 1": Bad(f"{NEW} --target-sparsity 0.99999999", 2, ("between 0 and 1", "not 0.99999999")),
    "target of 120 %": Bad(f"{NEW} --target-sparsity 120%", 2, ("0 % and 100 %", "not 120%")),
    "target below 0": Bad(f"{NEW} --target-sparsity -0.5", 2, ("between 0 and 1", "not -0.5")),
    "per cent without a sign": Bad(f"{NEW} --target-sparsity 0.5,95", 2, ("not 95", "for 95 per cent write 95%")),
    "target in words": Bad(f"{NEW} --target-sparsity most", 2, ("a share such as 0.9 or 90%", "not 'most'")),
    "target NaN": Bad(f"{NEW} --target-sparsity nan", 2, ("between 0 and 1", "not nan")),
    "no target": Bad(f"{NEW} --target-sparsity ,", 2, ("--target-sparsity must name at least one", "0.9")),
    "target beyond the diagonal": Bad(
        f"{NEW} --diagonal keep --target-sparsity 99.9%",
        2,
        ("--target-sparsity 0.999", "--diagonal keep", "on this data", "choose another"),
    ),
    "target below the diagonal": Bad(
        f"{NEW} --diagonal free,drop --target-sparsity 0.01", 2, ("0.01 can't be met", "--diagonal drop", "0.165")
    ),
    "target that leaves no head": Bad(
        f"{NEW} --granularity head --target-sparsity 0.9", 2, ("0.9 can't be met", "--granularity head", "0.833")
    ),
}

OPTIONS = {
    "temperature 0": Bad(f"{NEW} --temperature 0", 2, ("--temperature must be above 0 and finite", "not 0.0")),
    "temperature NaN": Bad(f"{NEW} --temperature nan", 2, ("--temperature must be above 0", "not nan")),
    "temperature that rises": Bad(
        f"{NEW} --temperature 0.1 --final-temperature 0.5",
        2,
        ("--final-temperature must not be above --temperature", "0.5 is above 0.1"),
    ),
    "block that does not divide": Bad(
        f"{NEW} --granularity block --block-size 7 --max-length 20", 2, ("--block-size must divide", "7", "20")
    ),
    "block 0": Bad(f"{NEW} --granularity block --block-size 0", 2, ("--block-size must be at least 1", "not 0")),
    "no steps": Bad(f"{NEW} --max-steps 0", 2, ("--max-steps must be at least 1", "not 0")),
    "distill beyond 1": Bad(f"{NEW} --distill 1.5", 2, ("--distill must be from 0 to 1", "not 1.5")),
    "distill NaN": Bad(f"{NEW} --distill nan", 2, ("--distill must be from 0 to 1", "not nan")),
    "hidden states of frozen weights": Bad(
        f"{NEW} --distill-hidden 1", 2, ("--distill-hidden needs weights that learn", "give --train all")
    ),
    "hidden states without outputs": Bad(
        f"{NEW} --train all --distill 0 --distill-hidden 1", 2, ("--distill-hidden goes with --distill above 0",)
    ),
    "hidden states below 0": Bad(
        f"{NEW} --train all --distill-hidden -1", 2, ("--distill-hidden must be from 0", "not -1.0")
    ),
    "lambda 0": Bad(f"{NEW} --lambda 0", 2, ("--lambda must be above 0", "not 0.0")),
    "lambda without bound": Bad(f"{NEW} --lambda inf", 2, ("--lambda must be above 0 and finite", "not inf")),
    "nothing held out": Bad(f"{NEW} --held-out 0", 2, ("--held-out must be above 0 and at most 0.9", "not 0.0")),
    "all held out": Bad(f"{NEW} --held-out 0.95", 2, ("--held-out must be above 0 and at most 0.9", "not 0.95")),
    "one seed twice": Bad(f"{NEW} --seeds 1,2,01", 2, ("--seeds must differ", "1,2,01", "give each once")),
    "seed below 0": Bad(f"{NEW} --seeds 0,-1", 2, ("--seeds must be whole numbers from 0", "not '-1'")),
    "seed in words": Bad(f"{NEW} --seeds one", 2, ("--seeds must be whole numbers from 0", "not 'one'")),
    "seeds too large": Bad(f"{NEW} --seeds 4294967296", 2, ("from 0 to 4294967295", "not '4294967296'")),
    "seed too large": Bad(f"{NEW} --seed 4294967296", 2, ("--seed must be from 0 to 4294967295", "4294967296")),
    "unknown method": Bad(f"{NEW} --methods dam,magic", 2, ("--methods: unknown 'magic'", "choose from", "bigbird")),
    "one method twice": Bad(f"{NEW} --methods dam,star,dam", 2, ("--methods names 'dam' twice", "give each once")),
    "no method": Bad(f"{NEW} --methods ,", 2, ("--methods must name at least one of", "dam")),
    "unknown granularity": Bad(f"{NEW} --granularity row", 2, ("--granularity", "'row'", "offset")),
    "unknown diagonal": Bad(f"{NEW} --diagonal free,maybe", 2, ("--diagonal: unknown 'maybe'", "free, keep, drop")),
    "unknown sharing": Bad(f"{NEW} --share all", 2, ("--share", "'all'", "heads")),
    "unknown engine": Bad(f"{NEW} --engine dask", 2, ("--engine", "'dask'", "ray")),
    "unknown training": Bad(f"{NEW} --train heads", 2, ("--train", "'heads'", "gates")),
    "unknown relaxation": Bad(f"{NEW} --relaxation softest", 2, ("--relaxation", "'softest'", "soft")),
    "symmetric cells": Bad(f"{NEW} --granularity cell --symmetric", 2, ("--symmetric", "--granularity offset")),
    "controls without weights": Bad(f"{NEW} --tune-controls", 2, ("--tune-controls", "--train all")),
    "two half precisions": Bad(f"{NEW} --bf16 --fp16", 2, ("--bf16 and --fp16", "choose one")),
    "float16 on the CPU": Bad(f"{NEW} --fp16", 2, ("--fp16", "--device cpu", "--device cuda, or --bf16")),
    "weights in float16": Bad(
        f"{NEW} --train all --dtype float16", 2, ("weights that learn", "--dtype float16", "--bf16")
    ),
    "drop below 0": Bad(f"{NEW} --max-drop -1", 2, ("--max-drop must be from 0 to 100", "not -1.0")),
    "rate NaN": Bad(f"{NEW} --learning-rate nan", 2, ("--learning-rate must be above 0 and at most 1000", "not nan")),
    "rate infinite": Bad(
        f"{NEW} --gate-learning-rate inf", 2, ("--gate-learning-rate must be above 0 and at most", "not inf")
    ),
    "decay NaN": Bad(f"{NEW} --weight-decay nan", 2, ("--weight-decay must be from 0 to 1000", "not nan")),
    "decay infinite": Bad(f"{NEW} --weight-decay inf", 2, ("--weight-decay must be from 0 to 1000", "not inf")),
    "CPUs without end": Bad(f"{NEW} --num-cpus inf", 2, ("--num-cpus must be at least 0 and finite", "not inf")),
    "address of no cluster": Bad(f"{NEW} --address 10.0.0.1:6379", 2, ("--address", "--engine ray")),
    "unknown integration": Bad(f"{NEW} --report-to pigeon", 2, ("--report-to: unknown 'pigeon'", "tensorboard")),
    "anew and on": Bad(f"{NEW} --overwrite --resume", 2, ("--overwrite and --resume exclude each other",)),
    "config unknown key": Bad(
        f"{NEW} --config c.yaml",
        2,
        ("'target_sparsities'", "target-sparsity?"),
        write("c.yaml", "target_sparsities: 1"),
    ),
    "config nothing alike": Bad(
        f"{NEW} --config c.yaml", 2, ("'zzz'", "attnprobe sparsify --help"), write("c.yaml", "zzz: 1")
    ),
    "config bad value": Bad(f"{NEW} --config c.yaml", 2, ("--lambda", "not 0.0"), write("c.yaml", "lambda: 0")),
}

DATA = {
    "no training data": Bad(
        f"sparsify clf {SCRATCH} --output-dir new", 2, ("no data to learn from", "--train-file beside --eval-file")
    ),
    "training data alone": Bad("sparsify clf --train-file t.csv", 2, ("--train-file", "--eval-file")),
    "training file missing": Bad(OTHER, 1, ("u.csv does not exist", "give the path")),
    "training file without labels": Bad(OTHER, 1, ("u.csv has no labels", "--objective fidelity"), _rows(-1, "")),
    "training label beyond the head": Bad(OTHER, 1, ("label 2 in row 2 of u.csv", "0 to 1"), _rows(1, 2)),
    "training label unknown": Bad(OTHER, 1, ("'joyful'", "u.csv", "negative, positive"), _rows("joyful")),
    "training file of other columns": Bad(
        f"sparsify clf {SCRATCH} --task sst2 --train-file pairs.csv --output-dir new",
        1,
        ("no column 'sentence' in pairs.csv", "--text-column"),
    ),
    "fewer rows than a batch": Bad(
        f"{NEW} --per-device-batch-size 12",
        1,
        ("t.csv has 12 rows to learn from", "less 1 held out", "a batch of 12", "--per-device-batch-size"),
    ),
    "one row": Bad(f"{OTHER} --limit 1", 1, ("u.csv has 1 rows to learn from", "less 1"), _rows(1)),
    "empty training text": Bad(GPT2, 1, ("row 2 of u.csv has no tokens", "remove the row"), _texts("a cat", "")),
    "texts of one token": Bad(
        f"{GPT2} --methods dam,window", 1, ("u.csv has no token that causal_lm can be scored on", "longer"), _texts("a")
    ),
    "texts without a word": Bad(
        GPT2.replace("gpt2", "mlm"), 1, ("u.csv has no token that masked_lm", "longer"), _texts("", "")
    ),
}

FOLDERS = {
    "not empty": Bad(f"{SWEEP} --output-dir run", 1, ("run is not empty", "--output-dir", "--overwrite", "--resume")),
    "overwrite a checkpoint": Bad(f"{SWEEP} --output-dir clf --overwrite", 1, ("clf", "holds no run")),
    "resume with other options": Bad(
        f"{SWEEP} --output-dir sweep --resume --seeds 7", 2, ("(seeds: [] then, ['7'] now)", "--overwrite")
    ),
    "resume with other training rows": Bad(
        f"{SWEEP} --output-dir sweep --resume",
        2,
        ("training.digest", "then", "--overwrite"),
        write("t.csv", "sentence,label\n" + "a cat,0\na dog,1\n" * 6),
    ),
    "resume another command": Bad(
        f"{SWEEP} --output-dir run --resume", 2, ("run holds a run of `importance`", "--output-dir", "--overwrite")
    ),
    "resume a sweep as another command": Bad(
        "importance clf --eval-file d.csv --methods mass --output-dir sweep --resume",
        2,
        ("sweep holds a run of `sparsify`, not of `importance`", "--output-dir"),
    ),
    "overwrite what is read": Bad(
        f"{SWEEP.replace('clf', 'sweep/model')} --output-dir sweep --overwrite",
        2,
        ("--overwrite would remove sweep/model", "choose another --output-dir"),
        _exported,
    ),
    "overwrite the data": Bad(
        "importance mlm --eval-file run/heads.csv --text-column site --output-dir run --overwrite --methods mass",
        2,
        ("--overwrite would remove run/heads.csv", "choose another --output-dir"),
    ),
    "merge an unfinished run": Bad(
        "report sweep killed --output-dir merged", 1, ("killed is not (status: running)", "--resume"), _unfinished
    ),
    "report without tradeoff.csv": Bad("report sweep", 1, ("tradeoff.csv", "--resume"), remove("sweep/tradeoff.csv")),
    "report of broken masks": Bad("report sweep", 1, ("masks.npz", "run again"), write("sweep/masks.npz", "x")),
    "report of an export": Bad("report masked", 1, ("masked has no run.json", "check the path")),
}

COMMANDS = {
    "evaluate": "evaluate masked --eval-file d.csv",
    "importance": "importance masked --eval-file d.csv --methods mass --resamples 10 --output-dir new",
    "sparsify": NEW.replace("clf", "masked"),
}

SPOILT: dict[str, tuple[tuple[str, ...], Spoil]] = {
    "record altered": (("masked/attnprobe.json was altered after the export",), _altered),
    "record missing": (("masked/attnprobe.json is missing", "copy it"), remove(f"masked/{RECORD}")),
    "masks missing": (("masked/masks.safetensors is missing",), remove("masked/masks.safetensors")),
    "masks of another": (("masked/masks.safetensors is not the one that was exported",), _masks_of_another),
    "all of another": (("masked/config.json was changed after the export",), _all_of_another),
    "mask of another shape": (("3 sites of 3 heads", "the model has 2", "another model"), _of_more_sites),
    "weights changed": (("masked/model.safetensors was changed after the export",), _other_weights),
}

EXPORTS = {
    **{
        f"{spoilt}: {command}": Bad(line, 1, says, spoil)
        for spoilt, (says, spoil) in SPOILT.items()
        for command, line in COMMANDS.items()
    },
    **{
        f"longer than the mask: {command}": Bad(
            f"{line} --max-length 25", 2, ("--max-length 25", "masked", "at most 24")
        )
        for command, line in COMMANDS.items()
    },
    "record altered: doctor": Bad("doctor masked", 1, SPOILT["record altered"][0], _altered),
    "record cut short": Bad(
        "doctor masked", 1, ("attnprobe.json: cannot be read as JSON",), write(f"masked/{RECORD}", "{")
    ),
}

BAD = {**TARGETS, **OPTIONS, **DATA, **FOLDERS, **EXPORTS}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, sandbox: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    require_refused(BAD[name], sandbox, call)


def test_an_integration_that_is_not_installed(sandbox: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "transformers.integrations.integration_utils.get_available_reporting_integrations"
    monkeypatch.setattr(place, lambda: ["mlflow"])
    says = ("--report-to wandb", "not installed", "install it, or choose others")
    require_refused(Bad(f"{NEW} --report-to mlflow,wandb", 1, says), sandbox, call)


def test_columns_without_labels_are_named_first(sandbox: Path, call: Call) -> None:
    (sandbox / "u.csv").write_text("sentence\n" + "the cat\n" * 8)
    outcome = call(OTHER)
    assert outcome.code == 1
    warning, error = outcome.err.splitlines()
    assert "u.csv has no column of labels (it has sentence)" in warning
    assert error.startswith("attnprobe: error: u.csv has no labels to learn from")
    assert not (sandbox / "new").exists()


def test_a_class_that_is_missing_in_the_training_data(sandbox: Path, call: Call) -> None:
    """The run goes on, and says so: on stderr and in run.json."""
    _rows(1)(sandbox)
    outcome = call(f"{OTHER} --per-device-batch-size 2")
    assert outcome.code == 0
    told = "u.csv has no row of 1 of the head's 2 classes (negative)"
    assert f"attnprobe: warning: {told}" in outcome.err
    warnings = json.loads((sandbox / "new/run.json").read_text())["warnings"]
    assert [told in warning for warning in warnings] == [True]
    assert "warning" not in call(NEW.replace("new", "whole")).err


def test_too_few_rows_for_an_interval(sandbox: Path, call: Call) -> None:
    """One row held out has no interval, so nothing can be chosen: said in words, not with a NaN."""
    record = json.loads((sandbox / "sweep/run.json").read_text())
    assert record["summary"]["exported"] is None
    assert "on the rows held out (1) has no 95 % interval" in record["summary"]["reason"]
    assert "--held-out" in record["summary"]["reason"]
    assert "nan" not in call("report sweep --output-dir new --format md").out


@pytest.mark.parametrize(
    "options", ["--train all --learning-rate 1e30", "--lambda 1e39", "--lambda 1e39 --logging-steps 1"]
)
def test_a_training_that_diverges(options: str, sandbox: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row, no report, no export of what is no number; what was made before is kept."""
    monkeypatch.setattr("attnprobe.training.options.LARGEST_RATE", 1e30)
    outcome = call(f"{NEW} --methods window,dam {options}")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("attnprobe: error: the training diverged")
    assert "lower --learning-rate" in outcome.err
    assert json.loads((sandbox / "new/run.json").read_text())["status"] == "running"
    assert {path.name for path in (sandbox / "new").iterdir()} == {"run.json", "partial"}
    assert {path.stem for path in (sandbox / "new/partial").glob("*.npz")} == {"dense", "window-0.9"}


def test_overwriting_takes_the_earlier_export_away(sandbox: Path, call: Call) -> None:
    """Or else the new run would seem to have exported it. What is no export stays."""
    _exported(sandbox)
    assert call(f"{SWEEP} --output-dir sweep --overwrite").out.count("model:") == 0
    assert not (sandbox / "sweep/model").exists()
    (sandbox / "sweep/model").mkdir()
    (sandbox / "sweep/model/thesis.tex").write_text("years of work")
    assert call(f"{SWEEP} --output-dir sweep --overwrite").code == 0
    assert (sandbox / "sweep/model/thesis.tex").read_text() == "years of work"


def test_targets_that_are_one_are_one_point(sandbox: Path, call: Call) -> None:
    assert call(f"{NEW} --methods window --target-sparsity 0.9,90%,0.9000001").code == 0
    assert (sandbox / "new/tradeoff.csv").read_text().count("window-0.9,") == 1


def test_evaluate_of_texts_without_a_loss(sandbox: Path, call: Call) -> None:
    """Nothing to score is null, without a word of numpy's."""
    (sandbox / "u.csv").write_text("text\na\nb\n")
    outcome = call("evaluate gpt2 --eval-file u.csv")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["loss"] is None


def test_the_mark_of_an_export() -> None:
    assert EXPORT_MARK == RECORD
