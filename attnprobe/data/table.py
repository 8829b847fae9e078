"""A table of named columns: what every reader hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnprobe.errors import DataError

#: A field as the file gives it: text, number, list of either, or None where there is nothing.
Cell = object


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of equal length, in the order of the file.

    Attributes:
        columns: the fields of each column, a row each.
        source: what was read, for people.
        label_names: for columns of integers whose names the source gives: the names of 0, 1, ...
    """

    columns: Mapping[str, Sequence[Cell]]
    source: str
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    def column(self, name: str, *, flag: str) -> Sequence[Cell]:
        """The fields of one column.

        Raises:
            DataError: there is none of that name; the message lists those that are there and the flag that chooses.
        """
        if name not in self.columns:
            raise DataError(
                f"no column {name!r} in {self.source}: "
                f"it has {', '.join(map(repr, self.columns)) or 'no columns'}; choose one with {flag}"
            )
        return self.columns[name]

    def head(self, rows: int) -> Table:
        """The first rows."""
        columns = {name: cells[:rows] for name, cells in self.columns.items()}
        return Table(columns=columns, source=self.source, label_names=self.label_names)
