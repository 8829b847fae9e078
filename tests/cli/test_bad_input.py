"""Bad input of every kind: one line that tells rule, value and remedy, the right exit code, and nothing lost."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.bad_input import Bad, Spoil, remove, require_refused, write

FAILURE, USAGE, UNSUPPORTED = 1, 2, 3


class _Malice:
    """A pickle that would make a folder when it is loaded without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.target),)


def _malicious(sandbox: Path) -> None:
    (sandbox / "clf/model.safetensors").unlink()
    (sandbox / "clf/pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Malice(sandbox / "executed")}))


def _config(**changes: object) -> Spoil:
    return lambda sandbox: tiny.change_config(sandbox / "clf", **changes)


def _cut(sandbox: Path) -> None:
    weights = sandbox / "clf/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _lose_a_shard(sandbox: Path) -> None:
    tiny.as_shards(sandbox / "clf")
    min((sandbox / "clf").glob("model-*.safetensors")).unlink()


def _not_a_number(sandbox: Path) -> None:
    tensors = tiny.read_tensors(sandbox / "clf")
    tensors["classifier.weight"].view(-1)[3] = float("nan")
    tiny.write_tensors(sandbox / "clf", tensors)


def _random_head(sandbox: Path) -> None:
    tiny.drop_tensors(sandbox / "clf", "classifier.")


def _folder(name: str) -> Spoil:
    return lambda sandbox: (sandbox / name).mkdir()


def _foreign(sandbox: Path) -> None:
    (sandbox / "other").mkdir()
    (sandbox / "other/thesis.tex").write_text("years of work")
    (sandbox / "other/report.html").write_text("not ours")


def _unreportable(sandbox: Path) -> None:
    (sandbox / "run/report.html").unlink()
    (sandbox / "run/report.html").mkdir()


EVAL = "evaluate clf --eval-file d.csv"
RUN = "importance clf --eval-file d.csv --output-dir new"
SAME = "importance clf --eval-file d.csv --methods mass --resamples 10"

CHECKPOINTS = {
    "missing path": Bad("doctor ./nowhere", 1, ("'./nowhere'", "no such folder", "give the path")),
    "missing absolute path": Bad("evaluate /nowhere/at/all", 1, ("'/nowhere/at/all'", "no such folder")),
    "file for folder": Bad("importance d.csv", 1, ("d.csv is a file", "folder that holds config.json")),
    "hub id offline": Bad("doctor someone/some-model", 1, ("'someone/some-model'", "offline", "give the path")),
    "empty name": Bad("doctor ''", 1, ("''", "give the path of a checkpoint's folder")),
    "name too long": Bad("doctor " + "x" * 5000, 1, ("cannot be a path", "give a folder")),
    "no config": Bad("doctor clf", 1, ("no config.json in clf", "give the folder"), remove("clf/config.json")),
    "config not JSON": Bad("doctor clf", 1, ("config.json", "cannot be read as JSON"), write("clf/config.json", "{")),
    "no model_type": Bad("doctor clf", 1, ("names no family", '"model_type"'), _config(model_type=None)),
    "corrupt weights": Bad(EVAL, 1, ("model.safetensors", "corrupt"), write("clf/model.safetensors", "no tensors")),
    "truncated weights": Bad(RUN, 1, ("model.safetensors", "cut short"), _cut),
    "missing weights": Bad(EVAL, 1, ("no weights", "pytorch_model.bin"), remove("clf/model.safetensors")),
    "missing shard": Bad(EVAL, 1, ("weight files missing", "model-00001-of-"), _lose_a_shard),
    "malicious pickle": Bad(EVAL, 1, ("pytorch_model.bin", "its code is never run"), _malicious),
    "NaN weights": Bad(RUN, 1, ("classifier.weight", "NaN"), _not_a_number),
    "unsupported family": Bad("doctor clf", 3, ("deberta-v2", "supported"), _config(model_type="deberta-v2")),
    "unsupported for importance": Bad(RUN, 3, ("mpnet", "supported are"), _config(model_type="mpnet")),
    "unknown family": Bad(RUN, 3, ("knows no family 'brand-new'", "bert"), _config(model_type="brand-new")),
    "no tokenizer": Bad(EVAL, 1, ("tokenizer", "beside config.json"), remove("clf/tokenizer.json")),
    "remote code": Bad(
        "doctor clf",
        1,
        ("read that code", "--trust-remote-code"),
        _config(model_type="own", auto_map={"AutoConfig": "own.Own"}),
    ),
}

DATA = {
    "wrong text column": Bad(f"{EVAL} --text-column txt", 1, ("'txt'", "'sentence', 'label'", "--text-column")),
    "wrong label column": Bad(f"{EVAL} --label-column y", 1, ("'y'", "'sentence', 'label'", "--label-column")),
    "one column for both": Bad(
        f"{EVAL} --text-column label --label-column label", 2, ("'label'", "both text and label", "--label-column")
    ),
    "one column twice": Bad(f"{EVAL} --text-column label --text-column label", 2, ("--text-column", "label, label")),
    "three texts": Bad(f"{EVAL} --text-column a --text-column b --text-column c", 2, ("--text-column", "a, b, c")),
    "which text column": Bad(EVAL, 1, ("'a', 'b'", "--text-column"), write("d.csv", "a,b\nx,y\n")),
    "missing file": Bad("evaluate clf --eval-file e.csv", 1, ("e.csv does not exist", "give the path")),
    "folder for file": Bad("evaluate clf --eval-file e.csv", 1, ("e.csv is not a file",), _folder("e.csv")),
    "unknown ending": Bad("evaluate clf --eval-file d.xlsx", 1, ("d.xlsx ends in .xlsx", ".csv", ".parquet")),
    "empty file": Bad(RUN, 1, ("d.csv is empty", "at least one row"), write("d.csv", "")),
    "header only": Bad(EVAL, 1, ("d.csv has no rows", "at least one"), write("d.csv", "sentence,label\n")),
    "not UTF-8": Bad(EVAL, 1, ("d.csv is not UTF-8 (line 2", "iconv"), write("d.csv", b"sentence\nna\xefve\n")),
    "ragged": Bad(EVAL, 1, ("line 3 of d.csv has 3 fields", "the header 2"), write("d.csv", "a,b\nx,0\ny,z,1\n")),
    "malformed jsonl": Bad(
        "evaluate clf --eval-file d.jsonl",
        1,
        ("line 2 of d.jsonl is not JSON", "one object a line"),
        write("d.jsonl", '{"text": "the cat", "label": 0}\n{"text": oops}\n'),
    ),
    "no parquet": Bad(
        "evaluate clf --eval-file d.parquet", 1, ("d.parquet is not a readable parquet",), write("d.parquet", "PAR1")
    ),
    "label beyond the head": Bad(
        EVAL, 1, ("label 2 in row 2 of d.csv", "classes are 0 to 1"), write("d.csv", "text,label\na,0\nb,2\n")
    ),
    "label unknown": Bad(
        EVAL, 1, ("'joyful' in row 1", "negative, positive", "rename"), write("d.csv", "text,label\na,joyful\n")
    ),
    "fraction for class": Bad(EVAL, 1, ("'0.5' in row 1", "not a class"), write("d.csv", "text,label\na,0.5\n")),
    "no labels": Bad(
        f"{EVAL} --objective task",
        1,
        ("no labels", "--objective fidelity"),
        write("d.csv", "text,label\na,-1\nb,-1\n"),
    ),
    "empty text": Bad(
        "evaluate gpt2 --eval-file d.csv", 1, ("row 2 of d.csv", "empty", "remove"), write("d.csv", 'text\ncat\n""\n')
    ),
    "unknown task": Bad(f"{EVAL} --task sst3", 2, ("'sst3'", "sst2", "choose one")),
    "pair task, one column": Bad(f"{EVAL} --task rte --text-column sentence", 2, ("rte", "sentence1, sentence2")),
    "task of other columns": Bad(f"{EVAL} --task rte", 1, ("'sentence1'", "'sentence', 'label'", "--text-column")),
    "task of another head": Bad("evaluate clf --eval-file pairs.csv --task stsb", 1, ("regression", "classification")),
    "task without data": Bad("evaluate clf --task text", 2, ("no data to measure on", "--eval-file")),
    "split of a file": Bad(f"{EVAL} --split test", 2, ("--split test", "--eval-file", "leave one out")),
    "split of nothing": Bad("evaluate clf --split test", 2, ("--split", "--eval-file")),
    "columns of nothing": Bad("evaluate clf --text-column text", 2, ("--text-column", "--eval-file")),
    "file to learn from": Bad("evaluate clf --train-file d.csv", 2, ("--train-file", "--eval-file")),
    "configuration of nothing": Bad("evaluate clf --dataset-config x", 2, ("--dataset-config", "--dataset-name")),
    "path for a data set": Bad("evaluate clf --dataset-name ./d.csv", 2, ("'./d.csv'", "--eval-file")),
}

OPTIONS = {
    "too long": Bad(f"{EVAL} --max-length 9999", 2, ("--max-length 9999", "at most 61")),
    "too short": Bad(f"{EVAL} --max-length 1", 2, ("--max-length", "at least 3 (special tokens included)", "not 1")),
    "no length": Bad(f"{EVAL} --max-length 0", 2, ("--max-length must be at least", "not 0")),
    "no rows": Bad(f"{EVAL} --limit 0", 2, ("--limit must be at least 1", "not 0")),
    "words for a number": Bad(f"{EVAL} --limit ten", 2, ("--limit", "'ten'", "integer")),
    "no batch": Bad(f"{EVAL} --per-device-batch-size 0", 2, ("--per-device-batch-size must be at least 1", "not 0")),
    "seed": Bad(f"{EVAL} --seed -1", 2, ("--seed must be from 0 to 4294967295", "not -1")),
    "unknown objective": Bad(f"{EVAL} --objective best", 2, ("--objective", "'best'", "fidelity")),
    "unknown device": Bad(f"{EVAL} --device gpu", 2, ("--device 'gpu'", "cuda")),
    "no CUDA": Bad(f"{RUN} --device cuda", 2, ("--device cuda", "use cpu")),
    "unknown dtype": Bad(f"{EVAL} --dtype int4", 2, ("--dtype 'int4'", "bfloat16")),
    "task of a base model": Bad(
        "evaluate base --eval-file d.csv --objective task", 2, ("base has no trained task head", "--objective fidelity")
    ),
    "task of a random head": Bad(f"{EVAL} --objective task", 2, ("clf has no trained task head",), _random_head),
    "lm of a classifier": Bad(f"{EVAL} --objective lm", 2, ("no trained language-model head", "--objective fidelity")),
    "unknown class to drop": Bad(f"{EVAL} --drop centre", 2, ("'centre'", "diagonal", "cls_column")),
    "unknown pattern": Bad(f"{EVAL} --pattern moon", 2, ("'moon'", "window, star")),
    "reach of a pattern": Bad(f"{EVAL} --pattern star --pattern-window -1", 2, ("--pattern-window", "not -1")),
    "unknown backend": Bad(f"{EVAL} --backend flash", 2, ("'flash'", "eager", "sdpa")),
    "few resamples": Bad(f"{EVAL} --resamples 1", 2, ("--resamples must be at least 10", "not 1")),
    "window of evaluate": Bad(f"{EVAL} --window 1", 2, ("--window must be at least 2", "not 1")),
    "unknown class": Bad(f"{RUN} --classes diagonal,centre", 2, ("'centre'", "diagonal", "sep_key")),
    "causal class": Bad(f"{RUN} --classes first_key", 2, ("'first_key'", "cls_key")),
    "unknown method": Bad(f"{RUN} --methods mass,magic", 2, ("--methods", "'magic'", "taylor")),
    "no method": Bad(f"{RUN} --methods ,", 2, ("--methods must name at least one of", "mass")),
    "unknown level": Bad(f"{RUN} --ablation-levels layer", 2, ("--ablation-levels", "'layer'", "class_site")),
    "unknown form": Bad(f"{RUN} --taylor-form second", 2, ("--taylor-form", "'second'", "row-exact")),
    "window": Bad(f"{RUN} --window 1", 2, ("--window must be at least 2", "not 1")),
    "no steps": Bad(f"{RUN} --n-steps 0", 2, ("--n-steps must be at least 1", "not 0")),
    "no memory": Bad(f"{RUN} --max-cells 0", 2, ("--max-cells must be at least 1", "not 0")),
    "no draws": Bad(f"{RUN} --control-draws 0", 2, ("--control-draws must be at least 1", "not 0")),
    "no learning": Bad(f"{RUN} --learned-steps 0", 2, ("--learned-steps must be at least 1", "not 0")),
    "negative price": Bad(f"{RUN} --learned-price -1", 2, ("--learned-price must be 0 or more", "not -1")),
    "price that is no number": Bad(f"{RUN} --learned-price nan", 2, ("--learned-price", "finite, not nan")),
    "unknown sharing": Bad(f"{RUN} --learned-sharing heads", 2, ("--learned-sharing", "'heads'", "sites")),
    "unknown option": Bad(f"{EVAL} --lmit 3", 2, ("--lmit", "--limit")),
    "value missing": Bad("evaluate clf --limit", 2, ("--limit", "requires an argument")),
    "argument missing": Bad("importance", 2, ("CKPT", "attnprobe importance --help")),
    "argument too many": Bad("doctor clf base", 2, ("base",)),
    "unknown command": Bad("importence clf", 2, ("'importence'", "importance")),
}

FOLDERS = {
    "below a file": Bad(f"{SAME} --output-dir d.csv/run", 1, ("d.csv/run", "Not a directory")),
    "a file": Bad(f"{SAME} --output-dir d.csv", 1, ("d.csv",)),
    "not empty": Bad(f"{SAME} --output-dir run", 1, ("run is not empty", "--output-dir", "--overwrite", "--resume")),
    "overwrite foreign": Bad(f"{SAME} --output-dir other --overwrite", 1, ("other", "holds no run"), _foreign),
    "resume foreign": Bad(f"{SAME} --output-dir other --resume", 1, ("other", "holds no run"), _foreign),
    "overwrite a checkpoint": Bad(f"{SAME} --output-dir clf --overwrite", 1, ("clf", "holds no run")),
    "overwrite and resume": Bad(f"{SAME} --output-dir run --overwrite --resume", 2, ("--overwrite", "--resume")),
    "resume with others": Bad(
        f"{SAME} --output-dir run --resume --seed 3", 2, ("(seed: 0 then, 3 now)", "--output-dir", "--overwrite")
    ),
    "resume with other data": Bad(
        f"{SAME} --output-dir run --resume",
        2,
        ("data.digest:", "then", "--overwrite"),
        write("d.csv", "text,label\nit ran,0\n"),
    ),
    "resume a broken run": Bad(
        f"{SAME} --output-dir run --resume", 1, ("run", "holds no run"), write("run/run.json", "{")
    ),
    "report of nothing": Bad("report nowhere", 1, ("nowhere", "run.json", "check the path")),
    "report of a file": Bad("report d.csv", 1, ("d.csv has no run.json", "check the path")),
    "report of no run": Bad("report clf", 1, ("clf has no run.json", "check the path")),
    "report of a broken run": Bad("report run", 1, ("run.json", "is not", "run again"), write("run/run.json", "{oops")),
    "report of a list": Bad("report run", 1, ("run.json", "list"), write("run/run.json", "[]")),
    "report of the future": Bad(
        "report run",
        1,
        ("schema 99", "update attnprobe"),
        write("run/run.json", '{"schema_version": 99, "command": "importance", "status": "complete", "arguments": {}}'),
    ),
    "report of another command": Bad(
        "report run",
        1,
        ("brew", "importance"),
        write("run/run.json", '{"schema_version": 1, "command": "brew", "status": "complete", "arguments": {}}'),
    ),
    "report without tables": Bad("report run", 1, ("importance.csv", "--resume"), remove("run/importance.csv")),
    "report of a broken table": Bad(
        "report run", 1, ("importance.csv", "columns"), write("run/importance.csv", "a\n1\n")
    ),
    "report of broken maps": Bad("report run", 1, ("maps.npz", "run again"), write("run/maps.npz", "x")),
    "report in the way": Bad("report run", 1, ("can't write", "report.html"), _unreportable),
}

CONFIGS = {
    "config missing": Bad(f"{EVAL} --config c.yaml", 2, ("--config c.yaml", "no such file")),
    "config a folder": Bad(f"{EVAL} --config clf", 2, ("--config clf", "can't be read")),
    "config not YAML": Bad(f"{EVAL} --config c.yaml", 2, ("--config c.yaml", "YAML"), write("c.yaml", "limit: [1")),
    "config not UTF-8": Bad(f"{EVAL} --config c.yaml", 2, ("--config c.yaml", "utf-8"), write("c.yaml", b"a: \xff")),
    "config a list": Bad(
        f"{EVAL} --config c.yaml", 2, ("--config c.yaml", "option names and values", "list"), write("c.yaml", "- 1")
    ),
    "config unknown key": Bad(
        f"{EVAL} --config c.yaml", 2, ("'lmit'", "did you mean", "limit"), write("c.yaml", "lmit: 3")
    ),
    "config in config": Bad(f"{EVAL} --config c.yaml", 2, ("'config'",), write("c.yaml", "config: d.yaml")),
    "config wrong type": Bad(f"{EVAL} --config c.yaml", 2, ("limit", "ten"), write("c.yaml", "limit: ten")),
    "config number for names": Bad(f"{RUN} --config c.yaml", 2, ("methods", "3"), write("c.yaml", "methods: 3")),
    "config numbers in names": Bad(f"{RUN} --config c.yaml", 2, ("methods", "1"), write("c.yaml", "methods: [1]")),
    "config list for a number": Bad(f"{EVAL} --config c.yaml", 2, ("limit",), write("c.yaml", "limit: [1, 2]")),
    "config mapping for names": Bad(f"{EVAL} --config c.yaml", 2, ("drop",), write("c.yaml", "drop: {a: b}")),
    "config bad value": Bad(f"{EVAL} --config c.yaml", 2, ("--limit", "not 0"), write("c.yaml", "limit: 0")),
}

BAD = {**CHECKPOINTS, **DATA, **OPTIONS, **FOLDERS, **CONFIGS}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, sandbox: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    require_refused(BAD[name], sandbox, call)
