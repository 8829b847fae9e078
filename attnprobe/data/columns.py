"""Which columns of a table hold the texts and the labels, and the texts themselves."""

from __future__ import annotations

from collections.abc import Sequence

from attnprobe.data.table import Cell, Table
from attnprobe.data.tasks import COMMON_LAYOUTS, Layout, Task
from attnprobe.errors import DataError

TEXT_FLAG = "--text-column"
LABEL_FLAG = "--label-column"


def find_columns(
    table: Table, *, task: Task | None, text_columns: tuple[str, ...] = (), label_column: str | None = None
) -> Layout:
    """The columns to read: those asked for, else the task's, else the usual ones, else the only text there is.

    Its label is None when the table has no column for it: the rows are then unlabelled.

    Raises:
        DataError: a column that was asked for, or that the task needs, is not there.
    """
    layouts = task.layouts if task else COMMON_LAYOUTS
    text = text_columns or _text_columns(table, task, label_column)
    for name in text:
        table.column(name, flag=TEXT_FLAG)
    if label_column is not None:
        table.column(label_column, flag=LABEL_FLAG)
        return Layout(text=text, label=label_column)
    names = [layout.label for layout in layouts if layout.label in table.columns and layout.label not in text]
    return Layout(text=text, label=names[0] if names else None)


def _text_columns(table: Table, task: Task | None, label_column: str | None) -> tuple[str, ...]:
    """The text columns of the first layout that fits, with its label if that can be."""
    layouts = task.layouts if task else COMMON_LAYOUTS
    fitting = [layout for layout in layouts if table.columns.keys() >= set(layout.text)]
    with_label = [layout for layout in fitting if layout.label in table.columns]
    if fitting:
        return (with_label or fitting)[0].text
    if task:
        return task.text_columns
    labels = {label_column, *(layout.label for layout in layouts)}
    others = tuple(name for name in table.columns if name not in labels)
    if len(others) != 1:
        raise DataError(
            f"which column of {table.source} holds the text is not plain: "
            f"it has {', '.join(map(repr, table.columns))}; choose with {TEXT_FLAG} (twice for pairs)"
        )
    return others


def row_texts(table: Table, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One tuple a row: the text, or the two texts of a pair.

    Raises:
        DataError: a field that is not a text.
    """
    cells = [table.column(name, flag=TEXT_FLAG) for name in columns]
    return [
        tuple(_text(cell, number, name, table.source) for cell, name in zip(row, columns, strict=True))
        for number, row in enumerate(zip(*cells, strict=True), 1)
    ]


def row_words(table: Table, column: str) -> list[tuple[str, ...]]:
    """One tuple a row: the words of the sentence.

    Raises:
        DataError: a field that is not a list of words, or an empty one.
    """
    rows: list[tuple[str, ...]] = []
    for number, cell in enumerate(table.column(column, flag=TEXT_FLAG), 1):
        if not isinstance(cell, list) or not cell:
            raise DataError(
                f"column {column!r} in row {number} of {table.source} holds no list of words: "
                f"every row needs at least one; choose the column with {TEXT_FLAG}"
            )
        rows.append(tuple(_text(word, number, column, table.source) for word in cell))
    return rows


def holds_words(cells: Sequence[Cell]) -> bool:
    """Whether the first field is a list: then the column holds sentences split into words."""
    return bool(cells) and isinstance(cells[0], list)


def _text(cell: Cell, row: int, column: str, source: str) -> str:
    if not isinstance(cell, str):
        held = "empty" if cell is None else f"{type(cell).__name__} {cell!r:.40}"
        raise DataError(f"column {column!r} in row {row} of {source} is {held}, not a text: choose with {TEXT_FLAG}")
    if not cell.isascii() and any("\ud800" <= character <= "\udfff" for character in cell):
        raise DataError(f"column {column!r} in row {row} of {source} has half a surrogate pair: mend its encoding")
    return cell
