"""Readers of local files, chosen by the ending of the name. Every field comes as it is written: `NA` is a text."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnprobe.data.conll import looks_like_conll, read_conll
from attnprobe.data.table import Cell, Table
from attnprobe.data.tasks import Task
from attnprobe.errors import DataError

Row = list[str]


def read_file(path: Path, *, task: Task | None = None) -> Table:
    """Read a file as the table it holds.

    A task says what a `.txt` file is (GLUE and friends: tab-separated, as Microsoft's MRPC), and how the columns of a
    file without a header are called (CoLA). Without one, a `.txt` file whose every line has a tag holds tagged
    sentences, any other raw text.

    Raises:
        DataError: the path is missing, not a file, empty, not UTF-8, of an unknown ending, or malformed.
    """
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise DataError(f"{path} ends in {suffix or 'nothing'}: data files must end in {', '.join(ENDINGS)}")
    if not path.exists():
        raise DataError(f"{path} does not exist: give the path of a data file")
    if not path.is_file():
        raise DataError(f"{path} is not a file: give the path of one data file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    if not content.strip():
        raise DataError(f"{path} is empty: give a file with at least one row")
    if suffix == ".parquet":
        return _read_parquet(content, str(path))
    return _READERS[suffix](_decode(content, path), str(path), task)


def _decode(content: bytes, path: Path) -> str:
    """Text from UTF-8, with or without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} is not UTF-8 (line {line}, byte {error.object[error.start]:#04x}): "
            "convert it, for example with iconv -t UTF-8"
        ) from error


def _lines(text: str) -> list[str]:
    """Split at line feeds alone: U+2028, form feeds and the like are text."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _read_csv(text: str, source: str, task: Task | None) -> Table:
    """Comma-separated, quoted as RFC 4180 says; quotes that do not match are an error, not a very long field."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, Row]] = []
    with _any_field_size():
        try:
            rows.extend((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise DataError(f"line {reader.line_num} of {source} is malformed ({error}): mend its quotes") from error
    return _with_header(rows, source, task)


@contextmanager
def _any_field_size() -> Iterator[None]:
    """Lift the csv module's limit of 131,072 characters a field, which a document can exceed."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _read_tsv(text: str, source: str, task: Task | None) -> Table:
    """Tab-separated, as GLUE and Microsoft write it: a quote is a character like any other."""
    rows = [(number, line.split("\t")) for number, line in enumerate(_lines(text), 1) if line]
    return _with_header(rows, source, task)


def _with_header(rows: Sequence[tuple[int, Row]], source: str, task: Task | None) -> Table:
    """Name the columns by the first row, or by the task if its files have no header and this one has none."""
    header = rows[0][1]
    names = task.headerless if task else ()
    if len(names) == len(header) and not set(names) & set(header):
        header = list(names)
    else:
        rows = rows[1:]
    if len(set(header)) < len(header):
        raise DataError(f"{source} names a column twice in its header: rename one of {', '.join(header)}")
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"line {number} of {source} has {len(row)} fields, the header {len(header)}: "
                "mend the line (csv fields may be quoted, tsv fields may not)"
            )
    fields = [row for _, row in rows]
    return Table(columns={name: [row[i] for row in fields] for i, name in enumerate(header)}, source=source)


def _read_jsonl(text: str, source: str, task: Task | None) -> Table:  # noqa: ARG001 (the readers' common signature)
    """One JSON object a line; a key that a line lacks is None there."""
    records: list[dict[str, Cell]] = []
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            raise DataError(f"line {number} of {source} is not JSON ({reason}): write one object a line") from error
        if not isinstance(record, dict):
            raise DataError(f"line {number} of {source} is not a JSON object: write one object a line")
        records.append(record)
    names = dict.fromkeys(name for record in records for name in record)
    return Table(columns={name: [record.get(name) for record in records] for name in names}, source=source)


def _read_text(text: str, source: str, task: Task | None) -> Table:
    """What a `.txt` file holds depends on the task; see `read_file`."""
    lines = _lines(text)
    if task and task.kind in ("classification", "regression"):
        return _read_tsv(text, source, task)
    if task.kind == "token_classification" if task else looks_like_conll(lines):
        return read_conll(lines, source=source)
    return _read_raw(text, source, task)


def _read_raw(text: str, source: str, task: Task | None) -> Table:  # noqa: ARG001
    """Raw text: one row for every line that is not blank."""
    rows = [line.strip() for line in _lines(text)]
    return Table(columns={"text": [row for row in rows if row]}, source=source)


def _read_sentences(text: str, source: str, task: Task | None) -> Table:  # noqa: ARG001
    return read_conll(_lines(text), source=source)


def _read_parquet(content: bytes, source: str) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: write it again, or give another") from error
    return Table(columns=table.to_pydict(), source=source)


_READERS: dict[str, Callable[[str, str, Task | None], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_jsonl,
    ".txt": _read_text,
    ".raw": _read_raw,
    ".conll": _read_sentences,
    ".bio": _read_sentences,
    ".iob": _read_sentences,
}

#: The endings of file names that are understood.
ENDINGS: tuple[str, ...] = (*_READERS, ".parquet")
