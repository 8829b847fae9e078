"""Run folders: written whole, resumed, refused, overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attnprobe.errors import RunFolderError, UsageError
from attnprobe.runs import SCHEMA_VERSION, Mode, RunFolder, open_run, read_run, replacing

FILES = ("table.csv", "report.html")


def start(path: Path, mode: Mode = "new", **changes: Any) -> RunFolder:
    given: dict[str, Any] = {
        "command": "importance",
        "arguments": {"limit": 3, "eval_file": Path("x.csv"), "methods": ("mass",)},
        "identity": {"seed": 5, "data": {"digest": "d", "examples": 7}},
        "files": FILES,
    }
    return open_run(path, mode=mode, **{**given, **changes})


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    run = start(tmp_path / "deep" / "run")
    record = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    assert record["schema_version"] == SCHEMA_VERSION
    assert (record["command"], record["status"], record["seed"]) == ("importance", "running", 5)
    assert record["arguments"] == {"limit": 3, "eval_file": "x.csv", "methods": ["mass"]}
    assert {"attnprobe", "torch", "transformers", "python"} <= set(record["versions"])
    assert not run.complete
    run.save(summary={"gap": 0.5})
    run.finish(note="done")
    again = read_run(run.path)
    assert again.complete
    assert (again.record["summary"], again.record["note"]) == ({"gap": 0.5}, "done")
    assert again.record["seconds"] >= 0


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"is not empty; choose another --output-dir, or give --overwrite or --r"):
        start(tmp_path)
    for mode in ("overwrite", "resume"):
        with pytest.raises(RunFolderError, match=r"holds no run of attnprobe"):
            start(tmp_path, mode)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_overwriting_removes_the_runs_own_files_and_nothing_else(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.write_table("table", pd.DataFrame({"a": [1]}))
    run.keep_piece("mass/000000", {"x": np.arange(3)})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.csv").write_text("mine too")
    again = start(tmp_path, "overwrite", arguments={"limit": 11})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.txt", "other.csv", "run.json"]
    assert again.record["arguments"] == {"limit": 11}
    assert not again.has_piece("mass/000000")


def test_resuming_takes_up_what_is_there(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.keep_piece("mass/000000", {"x": np.arange(3)})
    again = start(tmp_path, "resume")
    assert again.record == run.record
    assert again.has_piece("mass/000000")
    assert not again.has_piece("mass/000001")
    (arrays,) = again.pieces(["mass/000000"])
    assert arrays["x"].tolist() == [0, 1, 2]
    again.finish()
    assert not (tmp_path / "partial").exists()


def test_resuming_where_there_is_nothing_begins(tmp_path: Path) -> None:
    assert start(tmp_path / "run", "resume").record["status"] == "running"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arguments": {"limit": 4, "eval_file": "x.csv", "methods": ["mass"]}}, "limit: 3 then, 4 now"),
        ({"arguments": {"limit": 3, "eval_file": "x.csv"}}, r"methods: \['mass'\] then, None now"),
        ({"identity": {"seed": 6, "data": {"digest": "d", "examples": 7}}}, "seed: 5 then, 6 now"),
        ({"identity": {"seed": 5, "data": {"digest": "e", "examples": 7}}}, r"data\.digest: 'd' then, 'e' now"),
        ({"command": "sparsify"}, "a run of `importance`, not of `sparsify`"),
    ],
)
def test_resuming_with_anything_else_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    start(tmp_path)
    with pytest.raises(UsageError, match=told) as caught:
        start(tmp_path, "resume", **changes)
    assert "\n" not in str(caught.value)


def test_what_a_killed_write_leaves_is_nothing(tmp_path: Path) -> None:
    """Killed while the very first run.json was written: the folder counts as empty."""
    for name in ("run.json", "table.csv"):
        (tmp_path / f".{name}.4711.tmp").write_text("{")
    run = start(tmp_path, "resume")
    assert [file.name for file in run.path.iterdir()] == ["run.json"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail_half_way() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(RunFolderError, match=r"can't write .*: No space left"), replacing(target):
        raise OSError(28, "No space left on device")
    with replacing(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


def test_tables_are_the_same_bytes_everywhere(tmp_path: Path) -> None:
    run = start(tmp_path)
    table = pd.DataFrame({"value": [1 / 3, np.nan, 1e-12], "site": pd.array([1, None, 3], dtype="Int64")})
    run.write_table("table", table)
    assert (tmp_path / "table.csv").read_bytes() == b"value,site\n0.3333333,1\n,\n1e-12,3\n"
    run.write_arrays("maps", {"a": np.arange(5)})
    first = (tmp_path / "maps.npz").read_bytes()
    run.write_arrays("maps", {"a": np.arange(5)})
    assert (tmp_path / "maps.npz").read_bytes() == first


def test_sums_take_every_part_once(tmp_path: Path) -> None:
    run = start(tmp_path)
    assert run.sums("s") == {}
    for number in (0, 0, 1, 1, 0, 2):  # repeated: killed behind the sums and before the piece
        run.add_to_sums("s", number, {"x": np.full(2, 10.0**number)})
    assert run.sums("s")["x"].tolist() == [111.0, 111.0]
    assert int(run.sums("s")["through"]) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not a run's record"),
        ("[]", "is not a run's record"),
        ('{"schema_version": 1}', "is not a run's record"),
        ('{"schema_version": 99, "command": "c", "status": "s", "arguments": {}}', "newer than this version reads"),
    ],
)
def test_records_that_cannot_be_read(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFolderError, match=told):
        read_run(tmp_path)


def test_a_folder_without_a_record_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no run\.json"):
        read_run(tmp_path)


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="can't make the run folder"):
        start(tmp_path / "file")
