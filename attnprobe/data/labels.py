"""Labels as a file writes them, turned into the numbers of a checkpoint's head.

A class may be written as an integer or as a word. Words are looked up among the head's names, then among the corpus's.
Integers are the corpus's own; when head and corpus know the same names in a different order (MNLI heads do), they are
translated by name.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnprobe.data.table import Cell
from attnprobe.errors import DataError

logger = logging.getLogger(__name__)

#: What stands for a row without a class.
UNLABELLED = -1
#: What stands for a token that is not scored, as torch's cross-entropy has it.
IGNORED = -100

#: A field and the number of its row, counted from 1.
NumberedCell = tuple[int, Cell]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a trained head calls its outputs.

    Attributes:
        width: how many outputs it has.
        ids: the output of each name; empty when the checkpoint only says LABEL_0, LABEL_1, ...
    """

    width: int
    ids: Mapping[str, int]

    @classmethod
    def of(cls, label2id: Mapping[str, int] | None, width: int) -> Head:
        """Read a checkpoint's mapping, which says nothing when its names are the placeholders."""
        ids = dict(label2id or {})
        placeholders = all(re.fullmatch(r"LABEL_\d+", name) for name in ids)
        return cls(width=width, ids={} if placeholders else ids)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of the outputs; () unless every output has one."""
        by_id = {index: name for name, index in self.ids.items()}
        return tuple(by_id[i] for i in range(self.width)) if set(by_id) >= set(range(self.width)) else ()

    def find(self, name: str) -> int | None:
        """The output of that name, or of the one name that differs from it in writing only; None if there is none."""
        if name in self.ids:
            return self.ids[name]
        alike = [index for other, index in self.ids.items() if _key(other) == _key(name)]
        return alike[0] if len(alike) == 1 else None


@dataclass(frozen=True, kw_only=True)
class LabelReader:
    """Turns the fields of a column into labels.

    Attributes:
        head: whose outputs the labels become.
        source: what is read, for messages.
        names: what the corpus calls its classes 0, 1, ...; () when unknown.
        missing: what stands for "no label", beside nothing and, for classes, -1 and -100.
    """

    head: Head
    source: str
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def classes(self, cells: Sequence[Cell]) -> list[int]:
        """The head's output for every field, -1 where there is no label.

        Raises:
            DataError: a label that is NaN, not whole, unknown to the head, or beyond its width.
        """
        return self._classes(list(enumerate(cells, 1)))

    def word_classes(self, texts: Sequence[tuple[str, ...]], cells: Sequence[Cell]) -> list[list[int]]:
        """The head's output for every word, from lists of labels; -100 where there is none.

        Raises:
            DataError: as `classes`, or a row whose words and labels differ in number.
        """
        flat: list[NumberedCell] = []
        for row, (words, tags) in enumerate(zip(texts, cells, strict=True), 1):
            if not isinstance(tags, list) or len(tags) != len(words):
                held = f"{len(tags)} labels" if isinstance(tags, list) else f"no list of labels ({tags!r:.40})"
                raise DataError(f"row {row} of {self.source} has {len(words)} words and {held}: every word needs one")
            flat.extend((row, tag) for tag in tags)
        ids = iter(self._classes(flat))
        return [[IGNORED if (label := next(ids)) == UNLABELLED else label for _ in words] for words in texts]

    def values(self, cells: Sequence[Cell]) -> list[float]:
        """The number in every field, NaN where there is none.

        Raises:
            DataError: a label that is not a finite number.
        """
        return [self._value(row, cell) for row, cell in enumerate(cells, 1)]

    def _value(self, row: int, cell: Cell) -> float:
        if _absent(cell) or str(cell) in self.missing:
            return math.nan
        number = _number(cell)
        if number is None or not math.isfinite(number):
            raise DataError(f"{self._label(cell, row)} is not a number: every label must be finite")
        return number

    def _classes(self, cells: Sequence[NumberedCell]) -> list[int]:
        found = [(row, self._class(row, cell)) for row, cell in cells]
        first_rows: dict[int | str, int] = {}
        for row, value in found:
            if value is not None:
                first_rows.setdefault(value, row)
        outputs = self._outputs(first_rows)
        return [UNLABELLED if value is None else outputs[value] for _, value in found]

    def _class(self, row: int, cell: Cell) -> int | str | None:
        """A whole number, a word, or None for no label."""
        if _absent(cell) or str(cell) in self.missing:
            return None
        number = _number(cell)
        if number is None:
            if isinstance(cell, str):
                return cell.strip()
            raise DataError(f"{self._label(cell, row)} is neither a whole number nor a word: choose another column")
        if not number.is_integer():
            raise DataError(
                f"{self._label(cell, row)} is not a class: classes are whole numbers from 0, or words; "
                "mend the label or choose another column"
            )
        return None if number in (UNLABELLED, IGNORED) else int(number)

    def _outputs(self, first_rows: Mapping[int | str, int]) -> dict[int | str, int]:
        """The head's output for each distinct label; `first_rows` has the row where each is met first."""
        by_name = {value: self.head.find(str(value)) for value in first_rows}
        outputs = {value: output for value, output in by_name.items() if output is not None}
        if len(outputs) < len(first_rows):
            of_corpus = self._corpus_outputs()
            corpus_ids = {_key(name): index for index, name in enumerate(self.names)}
            for value, row in first_rows.items():
                index = value if isinstance(value, int) else corpus_ids.get(_key(value))
                if index is not None:
                    outputs[value] = of_corpus.get(index, index)
                elif value not in outputs:
                    raise DataError(f"{self._label(value, row)} {self._why_unknown()}")
        for value, output in outputs.items():
            if not 0 <= output < self.head.width:
                raise DataError(
                    f"{self._label(value, first_rows[value])} does not fit the checkpoint's head, "
                    f"whose classes are 0 to {self.head.width - 1}: use a checkpoint trained for these labels"
                )
        return outputs

    def _corpus_outputs(self) -> dict[int, int]:
        """The head's output for the corpus's integers, by name; empty when either has no names or they share none."""
        outputs = {i: output for i, name in enumerate(self.names) if (output := self.head.find(name)) is not None}
        ours, theirs = ", ".join(self.names), ", ".join(self.head.ids)
        if outputs and len(outputs) < len(self.names):
            raise DataError(
                f"the labels of {self.source} are {ours}, the classes of the checkpoint's head {theirs}: "
                "the two must agree; use a checkpoint trained for these labels"
            )
        if ours and theirs and not outputs:
            logger.warning("the labels of %s (%s) are taken for the head's classes (%s)", self.source, ours, theirs)
        return outputs

    def _why_unknown(self) -> str:
        known = tuple(self.head.ids) or self.names
        if known:
            return f"is not one of the classes of the checkpoint's head ({', '.join(known)}): rename the labels"
        return "is a word, but the checkpoint's head names no classes: write integers, or set id2label in config.json"

    def _label(self, value: Cell, row: int) -> str:
        return f"label {value!r:.40} in row {row} of {self.source}"


def class_names(cells: Sequence[Cell], missing: Sequence[str]) -> tuple[str, ...]:
    """Names of the classes that occur in a column: words in order, `O` first among tags; LABEL_0, ... for numbers.

    Args:
        cells: fields, or lists of them.
        missing: what stands for "no label", beside nothing and -1 and -100.
    """
    fields = [field for cell in cells for field in (cell if isinstance(cell, list) else [cell])]
    known = [field for field in fields if not _absent(field) and str(field) not in missing]
    numbers = [_number(field) for field in known]
    if all(number is not None for number in numbers):
        largest = max((int(number) for number in numbers if number is not None and math.isfinite(number)), default=-1)
        return tuple(f"LABEL_{index}" for index in range(largest + 1))
    return tuple(sorted({str(field).strip() for field in known}, key=lambda name: (name != "O", name)))


def holds_fractions(cells: Sequence[Cell]) -> bool:
    """Whether all labels are numbers and some are not whole: then they are values, not classes."""
    numbers = [_number(cell) for cell in cells if not _absent(cell)]
    return all(n is not None for n in numbers) and any(
        n is not None and math.isfinite(n) and not n.is_integer() for n in numbers
    )


def _absent(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _number(cell: Cell) -> float | None:
    """The number that a field is or spells; None for a word."""
    if not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def _key(name: str) -> str:
    """Names that differ in case, blanks, hyphens and underscores alone are the same."""
    return re.sub(r"[\s_-]+", "-", name.strip()).casefold()
