"""Merging run folders: what is written, what is refused and in which words, and the command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnprobe.errors import AttnProbeError, RunFolderError, UsageError
from attnprobe.report import FORMATS, merge_runs
from attnprobe.report.page import LIMIT
from attnprobe.report.tradeoff.means import INTERVALS
from cli import run
from tests.helpers.outline import Outline, figures_of
from tests.helpers.run_folders import write_run_folder
from tests.helpers.sweep_folders import COLUMNS, row, sweep_rows, write_sweep

ALL = tuple(FORMATS)
DAM = row("dam-s0", "dam", value=0.958, sparsity=0.9, target=0.9, exported=True)
SEED = row("dam-s1", "dam", value=0.938, sparsity=0.9, target=0.9, seed=1)
STAR = row("star", "star", value=0.798, sparsity=0.84, target=0.9)
SST2: dict[str, Any] = {
    "checkpoint": {"name": "minilm-sst2", "digest": "ab" * 32},
    "data": {"source": "dev.tsv", "digest": "cd" * 32, "examples": 872, "max_length": 64},
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs `a` (two points) and `b` (another seed, and dense once more), and the current folder."""
    write_sweep(tmp_path / "a", [row(), DAM, STAR])
    write_sweep(tmp_path / "b", [row(seconds=9.0), SEED])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def merge(*names: str, **options: Any) -> list[Path]:
    return merge_runs([Path(name) for name in names], Path("out"), **options)


@pytest.mark.usefixtures("runs")
def test_csv_and_html_unless_told_otherwise() -> None:
    assert merge("a", "b") == [Path("out/tradeoff.csv"), Path("out/report.html")]
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html", "tradeoff.csv"]


@pytest.mark.usefixtures("runs")
def test_the_csv_holds_all_rows_as_they_stood() -> None:
    merge("a", "b", formats=["csv"])
    head, *rows = Path("out/tradeoff.csv").read_text(encoding="utf-8").splitlines()
    assert head == "run," + ",".join(COLUMNS)
    of_a = Path("a/tradeoff.csv").read_text(encoding="utf-8").splitlines()[1:]
    of_b = Path("b/tradeoff.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert rows == [f"a,{line}" for line in of_a] + [f"b,{line}" for line in of_b]


@pytest.mark.usefixtures("runs")
def test_columns_of_either_run_are_kept() -> None:
    table = pd.read_csv("b/tradeoff.csv").drop(columns="loss").assign(later=7)
    table.to_csv("b/tradeoff.csv", index=False)
    merge("a", "b", formats=["csv"])
    merged = pd.read_csv("out/tradeoff.csv")
    assert list(merged.columns) == ["run", *COLUMNS, "later"]
    assert merged["loss"].notna().tolist() == [True, True, True, False, False]
    assert merged["later"].tolist()[3:] == [7, 7]


@pytest.mark.usefixtures("runs")
def test_the_markdown_table() -> None:
    """Two seeds of two runs are one mean; dense, which both runs have, counts once."""
    merge("a", "b", formats=["md"])
    assert Path("out/tradeoff.md").read_text(encoding="utf-8") == (
        "# Attention sparsity and what it costs\n"
        "\n"
        f"{INTERVALS}\n"
        "\n"
        "## minilm-trec on TREC_10.csv\n"
        "\n"
        "The exported model removes 90.0 % of the attention cells with DAM (offset, frozen weights): accuracy 0.958 "
        "[0.942, 0.974], 0.8 points [−0.2, 1.8] below dense (0.966), no measurable difference. Over its 2 seeds the "
        "mean is 0.948 [0.820, 1.000], 1.8 points [−10.9, 14.5] below dense, no measurable difference. At equal or "
        "lower sparsity, the best fixed pattern, star at 84.0 %, has 0.798 (15.0 points [2.2, 27.8] behind). The "
        "learnt mask is ahead of it. No random mask or magnitude mask was run at equal or lower sparsity.\n"
        "\n"
        "| Mask | Target | Cell sparsity | Nominal | Block | Accuracy [95 %] | Drop, points [95 %] | Seeds or draws |\n"
        "| :-- | --: | --: | --: | --: | --: | --: | --: |\n"
        "| dense |  |  |  |  | 0.966 [0.950, 0.982] |  | 1 |\n"
        "| DAM, offset, frozen weights (exported) | 90.0 % | 90.0 % | 90.9 % | 10.0 % | 0.948 [0.820, 1.000] | "
        "1.8 [−10.9, 14.5] | 2 |\n"
        "| star | 90.0 % | 84.0 % | 84.8 % | 4.0 % | 0.798 [0.782, 0.814] | 16.8 [15.8, 17.8] | 1 |\n"
    )


@pytest.mark.usefixtures("runs")
def test_the_json_records() -> None:
    write_sweep(Path("c"), [DAM])
    merge("c", formats=["json"])
    kept = {name: None for name in COLUMNS if name.startswith("kept_")}
    assert json.loads(Path("out/tradeoff.json").read_text(encoding="utf-8"), parse_constant=pytest.fail) == [
        {
            "run": "c",
            "point": "dam-s0",
            "checkpoint": "minilm-trec",
            "data": "TREC_10.csv",
            "method": "dam",
            "granularity": "offset",
            "sharing": "none",
            "diagonal": "free",
            "train": "gates",
            "target": 0.9,
            "cell_sparsity": 0.9,
            "nominal_sparsity": 0.909,
            "block_sparsity": 0.1,
            "block_size": 16,
            "metric_name": "accuracy",
            "value": 0.958,
            "ci_low": 0.942,
            "ci_high": 0.974,
            "dense": 0.966,
            "drop": 0.008,
            "drop_ci_low": -0.002,
            "drop_ci_high": 0.018,
            "loss": 0.208,
            "heldout_value": 0.956,
            "heldout_dense": 0.966,
            "heldout_drop": 0.01,
            "heldout_drop_ci_high": 0.02,
            "counted_sparsity": 0.9,
            "sparsity_before_threshold": 0.898,
            "steps": 600,
            "seconds": 81.5,
            "seed": 0,
            "draw": None,
            "examples": 500,
            "exported": True,
            **kept,
        }
    ]


@pytest.mark.usefixtures("runs")
def test_the_page_of_one_study() -> None:
    (path,) = merge("a", "b", formats=["html"])
    document = path.read_text(encoding="utf-8")
    outline = Outline(document)
    assert set(figures_of(document)) == {"curves-0", "comparisons-0"}
    assert outline.titles("h1") == ["How much attention minilm-trec on TREC_10.csv can do without"]
    assert outline.titles("h2") == ["minilm-trec on TREC_10.csv: accuracy", "What was run", ""]
    assert "2 runs of sparsify, 3 masks" in outline.text
    runs = [line[0] for line in outline.tables("runs")[0]]
    assert runs == ["Run", "a", "b"]
    assert not [a for tag, a in outline.tags if tag == "script" and "src" in a]


def test_the_page_needs_the_tables_alone(runs: Path) -> None:
    first = merge("a", "b", formats=["html"])[0].read_text(encoding="utf-8")
    for name in ("kept.csv", "training.csv", "masks.npz"):
        (runs / "a" / name).unlink()
    assert merge("a", "b", formats=["html"], overwrite=True)[0].read_text(encoding="utf-8") == first


@pytest.mark.usefixtures("runs")
def test_checkpoints_data_and_importance_side_by_side() -> None:
    write_sweep(Path("c"), [row(dense=0.88, value=0.88), DAM | {"value": 0.87}], warnings=["rows were cut"], **SST2)
    write_run_folder(Path("imp"), sites=1, heads=2, length=5)
    (path,) = merge("a", "c", "imp", formats=["html"])
    document = path.read_text(encoding="utf-8")
    outline = Outline(document)
    assert set(figures_of(document)) == {"curves-0", "curves-1", "comparisons-0"}
    assert outline.titles("h2") == [
        "Warnings",
        "Side by side",
        "minilm-trec on TREC_10.csv: accuracy",
        "minilm-sst2 on dev.tsv: accuracy",
        "Which attention minilm-trec needs",
        "What was run",
        "",
    ]
    (beside,) = outline.tables("side-by-side")
    assert [line[0] for line in beside[1:]] == ["minilm-trec on TREC_10.csv", "minilm-sst2 on dev.tsv"]
    assert beside[1][1:] == [
        *("accuracy", "0.966", "DAM (offset, frozen weights)", "90.0 %", "0.958 [0.942, 0.974]", "n/a", "n/a", "0.798")
    ]
    assert "minilm-trec on TREC_10.csv: The exported model removes 90.0 %" in outline.text
    assert "minilm-sst2 on dev.tsv: The exported model removes 90.0 %" in outline.text
    assert "c: rows were cut" in outline.text
    assert "The diagonal matters least" in outline.text
    assert len(outline.tables("importance-0")) == 4
    assert "2 runs of sparsify and 1 run of importance, 3 masks" in outline.text


@pytest.mark.usefixtures("runs")
def test_many_points_stay_within_the_limit() -> None:
    for number in range(4):
        digest: Any = {"checkpoint": {"name": f"model-{number}", "digest": f"{number}"}}
        write_sweep(Path(f"run-{number}"), sweep_rows(targets=(0.5, 0.7, 0.8, 0.9, 0.95), seeds=4), **digest)
    (path,) = merge(*(f"run-{number}" for number in range(4)), formats=["html"])
    assert path.stat().st_size < LIMIT


def test_runs_of_one_name_are_told_apart_by_their_paths(runs: Path) -> None:
    write_sweep(runs / "x" / "a", [SEED])
    merge("a", "x/a", formats=["csv"])
    assert pd.read_csv("out/tradeoff.csv")["run"].tolist() == ["a", "a", "a", "x/a"]


@pytest.mark.usefixtures("runs")
def test_overwriting_leaves_nothing_of_the_earlier_merging() -> None:
    merge("a", "b", formats=ALL)
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(FORMATS.values())
    merge("a", formats=["md"], overwrite=True)
    assert [path.name for path in Path("out").iterdir()] == ["tradeoff.md"]


@pytest.mark.usefixtures("runs")
def test_a_failed_write_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    merge("a", formats=ALL)
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunFolderError, match=r"^can't write out/tradeoff.csv: No space left on device$"):
        merge("a", "b", formats=ALL, overwrite=True)
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before


@pytest.mark.usefixtures("runs")
def test_figures_that_differ_by_rounding_are_the_same() -> None:
    write_sweep(Path("c"), [row(value=0.966000001, seconds=3.0, ci_low=0.94), SEED])
    merge("a", "c", formats=["csv"])


def _refused(tmp: Path, case: str) -> tuple[list[str], dict[str, Any]]:
    """Makes what a case of `REFUSED` merges: the runs' names, and options."""
    names: list[str] = ["a", "b"]
    options: dict[str, Any] = {}
    checkpoint = {"name": "minilm-trec", "digest": "00" * 32}
    data = {"source": "TREC_10.csv", "digest": "3c" * 32, "max_length": 64}
    other: dict[str, dict[str, Any]] = {
        "another checkpoint of one name": {"checkpoint": checkpoint},
        "other data of one name": {"data": data | {"digest": "ee" * 32}},
        "another length": {"data": data | {"max_length": 128}},
        "another metric": {"objective": {"metric_name": "macro_f1"}},
        "not complete": {"status": "running"},
        "another command": {"command": "bench"},
        "a later schema": {"schema_version": 99},
    }
    if case in other:
        write_sweep(tmp / "b", [row(), SEED], **other[case])
    elif case == "a point with two results":
        write_sweep(tmp / "b", [row(), DAM | {"value": 0.9}])
    elif case == "a point of two kinds":
        write_sweep(tmp / "b", [row(), DAM | {"train": "all"}])
    elif case == "a run twice":
        names = ["a", "b", "a"]
    elif case == "a run by two paths":
        (tmp / "link").symlink_to(tmp / "a")
        names = ["a", "link"]
    elif case == "no sweep":
        write_run_folder(tmp / "imp", sites=1, heads=2, length=5)
        names = ["imp"]
    elif case == "importance at another length":
        write_run_folder(tmp / "imp", sites=1, heads=2, length=5)
        write_sweep(tmp / "a", [row()], data=data | {"max_length": 32})
        names = ["a", "imp"]
    elif case == "no run":
        names = ["a", "nowhere"]
    elif case == "a full folder":
        (tmp / "out").mkdir()
        (tmp / "out/notes.txt").write_text("mine")
    elif case == "overwriting what is not ours":
        (tmp / "out").mkdir()
        (tmp / "out/notes.txt").write_text("mine")
        options = {"overwrite": True}
    elif case == "a file in the way":
        (tmp / "out").write_text("mine")
    elif case == "unknown format":
        options = {"formats": ["csv", "pdf"]}
    elif case == "no format":
        options = {"formats": []}
    return names, options


REFUSED: dict[str, tuple[type[AttnProbeError], str]] = {
    "another checkpoint of one name": (
        UsageError,
        "runs that are compared must have one digest for the checkpoint minilm-trec, a has 9f9f9f9f9f9f... and b "
        "000000000000...: leave one out",
    ),
    "other data of one name": (
        UsageError,
        "runs that are compared must have one digest for the data TREC_10.csv, a has 3c3c3c3c3c3c... and b "
        "eeeeeeeeeeee...: leave one out",
    ),
    "another length": (
        UsageError,
        "runs that are compared must have one max_length for the data TREC_10.csv, a has 64 and b 128: leave one out",
    ),
    "another metric": (
        UsageError,
        "runs that are compared must have one metric for the checkpoint minilm-trec and the data TREC_10.csv, a has "
        "accuracy and b macro_f1: leave one out",
    ),
    "not complete": (
        RunFolderError,
        "only complete runs can be merged, b is not (status: running): finish it with --resume, or leave it out",
    ),
    "another command": (
        RunFolderError,
        "only runs of sparsify and importance can be merged, b is a run of bench: leave it out",
    ),
    "a later schema": (RunFolderError, "b/run.json has schema 99, newer than this version reads (1): update attnprobe"),
    "a point with two results": (
        UsageError,
        "one point must have one result, and dam-s0 has value 0.958 and 0.9 in a and b: leave one of the runs out",
    ),
    "a point of two kinds": (
        UsageError,
        "one point must have one result, and dam-s0 has train gates and all in a and b: leave one of the runs out",
    ),
    "a run twice": (UsageError, "each run must be given once, and a is given twice: leave one out"),
    "a run by two paths": (UsageError, "each run must be given once, and link is given as a too: leave one out"),
    "no sweep": (
        UsageError,
        "merging needs at least one run of sparsify, imp is of importance: add one, or make each report alone",
    ),
    "importance at another length": (
        UsageError,
        "runs that are compared must have one max_length for the data TREC_10.csv, a has 32 and imp 64: leave one out",
    ),
    "no run": (RunFolderError, "nowhere has no run.json, so it is not a run folder: check the path"),
    "a full folder": (RunFolderError, "out is not empty; choose another --output-dir, or give --overwrite"),
    "overwriting what is not ours": (
        RunFolderError,
        "--overwrite replaces what an earlier merging left, and out also holds notes.txt; choose another --output-dir",
    ),
    "a file in the way": (
        RunFolderError,
        "can't read the folder out: Not a directory; choose another --output-dir",
    ),
    "unknown format": (UsageError, "--format: unknown 'pdf'; choose from csv, html, md, json"),
    "no format": (UsageError, "--format must name at least one of csv, html, md, json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(runs: Path, case: str) -> None:
    kind, words = REFUSED[case]
    names, options = _refused(runs, case)
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    with pytest.raises(kind) as raised:
        merge(*names, **options)
    assert str(raised.value) == words
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


COMMANDS: dict[str, tuple[int, str, str]] = {
    "report a": (0, "report: a/report.html\n", ""),
    "report a --quiet": (0, "report: a/report.html\n", ""),
    "report a b --output-dir out": (0, "table: out/tradeoff.csv\nreport: out/report.html\n", ""),
    "report a --output-dir out --format html": (0, "report: out/report.html\n", ""),
    "report a b --output_dir=out --format json,md --quiet": (
        0,
        "table: out/tradeoff.md\ntable: out/tradeoff.json\n",
        "",
    ),
    "report": (2, "", "Missing argument 'RUN...'. See attnprobe report --help."),
    "report a b": (2, "", "merging 2 runs needs --output-dir: name the folder to merge them into"),
    "report a --format md": (
        2,
        "",
        "--format is for merging, which needs --output-dir: name the folder, or leave --format out",
    ),
    "report a --overwrite": (
        2,
        "",
        "--overwrite is for merging, which needs --output-dir: name the folder, or leave --overwrite out",
    ),
    "report a b --output-dir out --format csv,xls": (2, "", "--format: unknown 'xls'; choose from csv, html, md, json"),
    "report a b --output-dir out --format ,": (2, "", "--format must name at least one of csv, html, md, json"),
    "report a a --output-dir out": (2, "", "each run must be given once, and a is given twice: leave one out"),
    "report a b --output-dir b": (1, "", "b is not empty; choose another --output-dir, or give --overwrite"),
    "report a b --output-dir b --overwrite": (
        1,
        "",
        "--overwrite replaces what an earlier merging left, and b also holds kept.csv; choose another --output-dir",
    ),
}


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.usefixtures("runs")
def test_the_command(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = COMMANDS[line]
    assert run(shlex.split(line)) == code
    captured = capfd.readouterr()
    assert captured.out == out
    assert captured.err == (f"attnprobe: error: {err}\n" if err else "")
    assert Path("out").exists() == (code == 0 and "out" in line)
