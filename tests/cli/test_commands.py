"""What commands do when all is well: results on stdout, logs on stderr, and run folders that can be had again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnprobe import __version__
from tests.cli.conftest import ROWS, Call, Outcome
from tests.helpers import tiny_checkpoints as tiny

SAME = "importance clf --eval-file d.csv --methods mass --resamples 10"
TABLES = ("importance.csv", "offsets.csv", "agreement.csv", "heads.csv")


def _record(run: Path) -> dict[str, Any]:
    record = json.loads((run / "run.json").read_text())
    assert isinstance(record, dict)
    return record


def _installed(sandbox: Path, line: str) -> Outcome:
    """Run the installed entry point in a process of its own."""
    entry = Path(sys.executable).with_name("attnprobe")
    if not entry.exists():
        pytest.skip("attnprobe is not installed here, so it has no entry point")
    done = subprocess.run([entry, *line.split()], cwd=sandbox, capture_output=True, text=True, check=False)
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)


def test_importance_as_installed(sandbox: Path) -> None:
    outcome = _installed(sandbox, "importance mlm --limit 3 --methods mass,taylor --resamples 10 --output-dir new")
    assert outcome.code == 0
    finding, report = outcome.out.splitlines()
    assert "matters" in finding
    assert report == "report: new/report.html"
    assert all(line.startswith("attnprobe: warning: ") for line in outcome.err.splitlines())
    assert "no data is named: 3 sentences of the prose of Python's language reference" in outcome.err
    assert {path.name for path in (sandbox / "new").iterdir()} == {*TABLES, "maps.npz", "run.json", "report.html"}
    assert any("no data is named" in warning for warning in _record(sandbox / "new")["warnings"])


def test_evaluate_as_installed(sandbox: Path) -> None:
    outcome = _installed(sandbox, "evaluate clf --eval-file d.csv --drop diagonal --drop cls_column")
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert result["metric_name"] == "accuracy"
    assert 0 <= result["ci_low"] <= result["metric"] <= result["ci_high"] <= 1
    assert result["loss"] > 0
    assert (result["examples"], result["drop"]) == (len(ROWS), ["diagonal", "cls_column"])


def test_doctor_as_installed(sandbox: Path) -> None:
    outcome = _installed(sandbox, "doctor clf")
    assert (outcome.code, outcome.err) == (0, "")
    assert "sequence classifier, trained, 2 labels: negative, positive" in outcome.out


def test_report_as_installed_is_the_same(sandbox: Path) -> None:
    before = (sandbox / "run/report.html").read_bytes()
    (sandbox / "run/report.html").write_text("spoilt")
    outcome = _installed(sandbox, "report run")
    assert (outcome.code, outcome.out, outcome.err) == (0, "report: run/report.html\n", "")
    assert (sandbox / "run/report.html").read_bytes() == before


def test_report_needs_tables_alone(sandbox: Path, call: Call) -> None:
    before = (sandbox / "run/report.html").read_bytes()
    shutil.rmtree(sandbox / "clf")
    (sandbox / "d.csv").unlink()
    (sandbox / "run/report.html").unlink()
    assert call("report run").code == 0
    assert (sandbox / "run/report.html").read_bytes() == before


@pytest.mark.usefixtures("sandbox")
def test_evaluate_prints_one_object(call: Call) -> None:
    outcomes = [call(f"evaluate clf --eval-file d.csv {flag}") for flag in ("", "--json", "--quiet")]
    assert {(outcome.code, outcome.err) for outcome in outcomes} == {(0, "")}
    assert len({outcome.out for outcome in outcomes}) == 1
    star = json.loads(call("evaluate clf --eval-file d.csv --pattern star --backend sdpa").out)
    dense = json.loads(outcomes[0].out)
    assert star["cell_sparsity"] > dense["cell_sparsity"] == 0
    assert star["loss"] != dense["loss"]


def test_json_has_no_word_for_nan(sandbox: Path, call: Call) -> None:
    """A correlation over one row is not a number."""
    tiny.bert_classifier(sandbox / "stsb", labels=("score",))
    (sandbox / "one.csv").write_text("sentence1,sentence2,label\nthe cat,a dog,2.5\n")
    outcome = call("evaluate stsb --task stsb --eval-file one.csv")
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads(outcome.out, parse_constant=pytest.fail)
    assert (result["metric_name"], result["metric"], result["ci_low"], result["examples"]) == ("pearson", None, None, 1)


@pytest.mark.usefixtures("sandbox")
def test_doctor_prints_one_object(call: Call) -> None:
    outcome = call("doctor base --json")
    assert (outcome.code, outcome.err) == (0, "")
    assert isinstance(json.loads(outcome.out), dict)


def test_importance_prints_one_object(sandbox: Path, call: Call) -> None:
    outcome = call(f"{SAME} --output-dir new --json")
    assert (outcome.code, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert (result["run"], result["report"]) == ("new", "new/report.html")
    assert (sandbox / "new/report.html").is_file()
    assert call(f"{SAME} --output-dir other").out == f"{result['finding']}\nreport: other/report.html\n"


def test_quiet(sandbox: Path, call: Call) -> None:
    line = "importance base --limit 2 --methods mass --resamples 10"
    loud = call(f"{line} --output-dir loud")
    quiet = call(f"{line} --output-dir quiet --quiet")
    assert "fidelity to the dense model: the checkpoint has no trained head" in loud.err
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out == loud.out.replace("loud", "quiet")
    assert _record(sandbox / "quiet")["warnings"] == _record(sandbox / "loud")["warnings"] != []


@pytest.mark.usefixtures("sandbox")
def test_quiet_keeps_errors(call: Call) -> None:
    assert call("evaluate nowhere/at/all --quiet").err.startswith("attnprobe: error: ")


@pytest.mark.usefixtures("sandbox")
def test_default_folder(call: Call) -> None:
    assert call(f"{SAME}").out.endswith("report: runs/importance-clf/report.html\n")
    assert call(f"{SAME}").err.startswith("attnprobe: error: runs/importance-clf is not empty")


def test_one_row(sandbox: Path, call: Call) -> None:
    (sandbox / "one.csv").write_text("text,label\nit ran,1\n")
    outcome = call("importance clf --eval-file one.csv --resamples 10 --n-steps 2 --output-dir new")
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("rows", ["a,-1\nb,-1\n", "a,\nb,\n"])
def test_unlabelled_rows_are_measured_by_fidelity(rows: str, sandbox: Path, call: Call) -> None:
    """GLUE's test files: no accuracy, but label-free measures."""
    (sandbox / "test.csv").write_text("text,label\n" + rows)
    outcome = call("evaluate clf --eval-file test.csv --drop diagonal")
    assert outcome.code == 0
    assert "what is measured is fidelity to the dense model" in outcome.err
    result = json.loads(outcome.out)
    assert (result["objective"]["kind"], result["metric_name"]) == ("fidelity", "agreement")
    assert "accuracy" not in outcome.out


def test_fidelity_needs_no_labels(sandbox: Path, call: Call) -> None:
    """The remedy that is named when labels and head do not fit."""
    (sandbox / "values.csv").write_text("sentence1,sentence2,label\nthe cat,a dog,2.5\n")
    line = "evaluate clf --task stsb --eval-file values.csv"
    assert "--objective fidelity" in call(line).err
    outcome = call(f"{line} --objective fidelity --drop diagonal")
    assert (outcome.code, json.loads(outcome.out)["metric_name"]) == (0, "agreement")


def test_a_random_head_gives_no_number(sandbox: Path, call: Call) -> None:
    tiny.drop_tensors(sandbox / "clf", "classifier.")
    outcome = call("evaluate clf --eval-file d.csv --drop diagonal")
    assert outcome.code == 0
    assert "the head would be random" in outcome.err
    assert json.loads(outcome.out)["objective"]["kind"] == "fidelity"
    assert "accuracy" not in outcome.out


def test_run_json(sandbox: Path) -> None:
    record = _record(sandbox / "run")
    assert (record["schema_version"], record["command"], record["status"]) == (1, "importance", "complete")
    assert record["seed"] == record["arguments"]["seed"] == 0
    assert (record["arguments"]["checkpoint"], record["arguments"]["methods"]) == ("clf", ["mass"])
    assert record["versions"]["attnprobe"] == __version__
    assert {"python", "torch", "transformers"} <= record["versions"].keys()
    for part in ("checkpoint", "data"):
        assert len(record[part]["digest"]) == 64
    assert (record["data"]["examples"], record["data"]["source"]) == (len(ROWS), "d.csv")
    assert record["objective"]["kind"] == "task"
    assert record["started"] <= record["finished"]
    assert not (sandbox / "run/partial").exists()


def test_same_seed_same_tables(sandbox: Path, call: Call) -> None:
    assert call(f"{SAME} --output-dir new").code == 0
    for name in TABLES:
        assert (sandbox / "new" / name).read_bytes() == (sandbox / "run" / name).read_bytes()
    assert call(f"{SAME} --output-dir other --seed 1").code == 0
    assert (sandbox / "other/importance.csv").read_bytes() != (sandbox / "run/importance.csv").read_bytes()


def test_resume_of_a_complete_run(sandbox: Path, call: Call) -> None:
    before = {path.name: path.read_bytes() for path in (sandbox / "run").iterdir()}
    outcome = call(f"{SAME} --output-dir run --resume")
    assert (outcome.code, outcome.err.count("\n")) == (0, 1)
    assert outcome.err.startswith("attnprobe: warning: run is complete already")
    assert outcome.out.endswith("report: run/report.html\n")
    assert {path.name: path.read_bytes() for path in (sandbox / "run").iterdir()} == before


def test_overwrite_replaces_the_run_and_nothing_else(sandbox: Path, call: Call) -> None:
    """Not even when its record, which may come from anywhere, says so."""
    (sandbox / "run/notes.txt").write_text("mine")
    record = _record(sandbox / "run")
    record["files"] += ["../d.csv", str(sandbox / "pairs.csv"), "..", "heads.csv/../notes.txt"]
    (sandbox / "run/run.json").write_text(json.dumps(record))
    outcome = call(f"{SAME} --output-dir run --overwrite --limit 3")
    assert (outcome.code, outcome.err) == (0, "")
    assert _record(sandbox / "run")["data"]["examples"] == 3
    assert (sandbox / "run/notes.txt").read_text() == "mine"
    assert (sandbox / "d.csv").exists()
    assert (sandbox / "pairs.csv").exists()


CONFIG = """
eval_file: d.csv          # underscores
text-column: sentence     # one name for an option that may be repeated
methods: [mass, taylor]   # a list for names by commas
resamples: 10
include-special: false
limit: 4
label-column:             # nothing: the default
"""


def test_config_and_flags_give_the_same_run(sandbox: Path, call: Call) -> None:
    (sandbox / "c.yaml").write_text(CONFIG)
    flags = "--eval-file d.csv --text-column sentence --methods mass,taylor --resamples 10 --exclude-special --limit 4"
    assert call("importance clf --config c.yaml --output-dir one").code == 0
    assert call(f"importance clf {flags} --output-dir two").code == 0
    assert _record(sandbox / "one")["arguments"] == _record(sandbox / "two")["arguments"]
    for name in TABLES:
        assert (sandbox / "one" / name).read_bytes() == (sandbox / "two" / name).read_bytes()


@pytest.mark.parametrize("line", ["--config c.yaml {}", "{} --config c.yaml"])
def test_flags_win(line: str, sandbox: Path, call: Call) -> None:
    given = line.format("--limit 2 --eval-file d.csv")
    (sandbox / "c.yaml").write_text("limit: 4\nquiet: true\neval-file: nowhere.csv\ndrop: [diagonal, next]\n")
    result = json.loads(call(f"evaluate clf {given}").out)
    assert (result["examples"], result["data"]["source"], result["drop"]) == (2, "d.csv", ["diagonal", "next"])
    assert json.loads(call(f"evaluate clf {given} --drop sep").out)["drop"] == ["sep"]


def test_an_empty_config_changes_nothing(sandbox: Path, call: Call) -> None:
    (sandbox / "c.yaml").write_text("# nothing yet\n")
    line = "evaluate clf --eval-file d.csv"
    assert call(f"{line} --config c.yaml").out == call(line).out


@pytest.mark.usefixtures("sandbox")
def test_interrupted(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnprobe.evaluation.evaluate", stop)
    outcome = call("evaluate clf --eval-file d.csv")
    assert (outcome.code, outcome.out, outcome.err.lstrip()) == (130, "", "attnprobe: error: interrupted\n")


def test_a_reader_that_leaves() -> None:
    """As in `attnprobe ... | head -1`: no traceback."""
    reader = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    reader.wait()
    assert reader.stdin is not None
    done = subprocess.run(
        [sys.executable, "-m", "attnprobe.cli", "--help"],
        stdout=reader.stdin,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    reader.stdin.close()
    assert (done.returncode, done.stderr) == (1, "")
