"""Readers: every field as it is written, every malformed file one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from attnprobe.data.files import ENDINGS, read_file
from attnprobe.data.tasks import TASKS
from attnprobe.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_quotes_and_missing_looking_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\r\n"a, ""b""\nc",0\r\nNA,1\r\n,None\r\n')
    assert read_file(path).columns == {"text": ['a, "b"\nc', "NA", ""], "label": ["0", "1", "None"]}


def test_csv_field_of_any_size(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = write(tmp_path / "a.csv", "text,label\n" + "x" * 200_000 + ",0\n")
    assert len(read_file(path).columns["text"][0]) == 200_000  # type: ignore[arg-type]
    assert csv.field_size_limit() == limit


def test_tsv_takes_quotes_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'sentence\tlabel\n"open\t1\nhe said "no"\u2028\x0c\t0\n')
    assert read_file(path).columns == {"sentence": ['"open', 'he said "no"\u2028\x0c'], "label": ["1", "0"]}


def test_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufeffQuality\t#1 String\r\n1\ta\r\n")
    assert read_file(path).columns == {"Quality": ["1"], "#1 String": ["a"]}


def test_cola_has_no_header_but_may_have_one(tmp_path: Path) -> None:
    bare = write(tmp_path / "a.tsv", "gj04\t1\t\tIt works.\ngj04\t0\t*\tIt work.\n")
    with_header = write(tmp_path / "b.tsv", "source\tlabel\tmark\tsentence\ngj04\t1\t\tIt works.\n")
    other = write(tmp_path / "c.tsv", "index\tsentence\n0\tIt works.\n")
    assert read_file(bare, task=TASKS["cola"]).columns["sentence"] == ["It works.", "It work."]
    assert read_file(with_header, task=TASKS["cola"]).columns["label"] == ["1"]
    assert read_file(other, task=TASKS["cola"]).columns["sentence"] == ["It works."]
    assert "sentence" not in read_file(bare).columns


def test_jsonl_keeps_types_and_fills_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n\n{"text": "NaN", "tags": ["O"]}\n')
    assert read_file(path).columns == {"text": ["a", "NaN"], "label": [1, None], "tags": [None, ["O"]]}


def test_parquet(tmp_path: Path) -> None:
    columns = {"tokens": [["a", "b"], ["c"]], "score": [0.5, None]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert read_file(tmp_path / "a.parquet").columns == columns


@pytest.mark.parametrize("ending", ["txt", "raw"])
def test_raw_text_is_a_row_a_line(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", " = Title = \r\n\r\n \r\nA line, with commas\tand tabs.\r\n")
    assert read_file(path).columns == {"text": ["= Title =", "A line, with commas\tand tabs."]}


def test_what_a_txt_file_holds(tmp_path: Path) -> None:
    tagged = write(tmp_path / "tagged.txt", "EU B-ORG\nrejects O\n\nGo O\n")
    table = write(tmp_path / "msr.txt", "Quality\t#1 String\t#2 String\n1\ta\tb\n")
    untagged = write(tmp_path / "untagged.txt", "go O\nnow O\n")
    assert list(read_file(tagged).columns) == ["tokens", "tags"]
    assert read_file(tagged, task=TASKS["text"]).columns["text"] == ["EU B-ORG", "rejects O", "Go O"]
    assert read_file(table, task=TASKS["mrpc"]).columns["#2 String"] == ["b"]
    assert list(read_file(untagged).columns) == ["text"]
    assert read_file(untagged, task=TASKS["token-classification"]).columns["tokens"] == [["go", "now"]]


@pytest.mark.parametrize("ending", ["conll", "bio", "iob"])
def test_tagged_sentences(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", "go O\n")
    assert read_file(path).columns == {"tokens": [["go"]], "tags": [["O"]]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty: give a file with at least one row"),
        ("a.csv", " \n\n", "is empty"),
        ("a.csv", "text,label\na,b,c\n", "line 2 of .* has 3 fields, the header 2: mend the line"),
        ("a.csv", "text,label\n\na\n", "line 3 of .* has 1 fields, the header 2"),
        ("a.csv", 'text,label\n"a,0\nb,1\n', r"line 3 of .* is malformed \(unexpected end of data\): mend its quotes"),
        ("a.csv", "text,text\na,b\n", "names a column twice in its header: rename one of text, text"),
        ("a.tsv", "text\tlabel\na\n", "line 2 of .* has 1 fields, the header 2"),
        ("a.tsv", b"text\tlabel\na\t0\nb\xe9\t1\n", r"is not UTF-8 \(line 3, byte 0xe9\): convert it"),
        ("a.txt", "a".encode("utf-16"), r"is not UTF-8 \(line 1, byte 0xff\)"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"line 2 of .* is not JSON \(Expecting value\): write one object a"),
        ("a.jsonl", '["a"]\n', "line 1 of .* is not a JSON object"),
        ("a.jsonl", "[" * 200_000 + "\n", r"line 1 of .* is not JSON \(nested too deeply\)"),
        ("a.parquet", "PAR1 but not really", "is not a readable parquet file"),
        ("a.xlsx", "a", r"ends in \.xlsx: data files must end in \.csv, \.tsv, .*, \.parquet"),
        ("data", "a", "ends in nothing: data files must end in"),
        ("a.conll", "go O\nnow\n", "line 2 of .* has 1 fields, those before it 2"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as raised:
        read_file(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="does not exist: give the path of a data file"):
        read_file(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is not a file: give the path of one data file"):
        read_file(tmp_path / "folder.csv")


def test_upper_case_endings(tmp_path: Path) -> None:
    path = write(tmp_path / "A.JSONL", json.dumps({"text": "a"}))
    assert ".jsonl" in ENDINGS
    assert len(read_file(path)) == 1
