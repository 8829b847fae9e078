"""Data sets by name; `datasets` itself is replaced, so that nothing is asked of a network."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attnprobe.data.hub import read_hub
from attnprobe.errors import DataError, MissingDependencyError, UsageError


class FakeSplit:
    """As much of a `datasets.Dataset` as is used."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, object]) -> None:
        self.columns, self.features = columns, features
        self.column_names = list(columns)
        self.num_rows = len(next(iter(columns.values())))

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def select(self, rows: range) -> FakeSplit:
        return FakeSplit({name: [cells[i] for i in rows] for name, cells in self.columns.items()}, self.features)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What the fake `datasets` was asked for."""
    calls: list[tuple[str, str | None]] = []

    def load_dataset(name: str, config: str | None) -> dict[str, FakeSplit]:
        calls.append((name, config))
        if name == "none":
            raise ConnectionError("Couldn't reach 'none'\nand so on")
        features = {
            "text": object(),
            "label": SimpleNamespace(names=["neg", "pos"]),
            "tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-X"])),
        }
        return {
            split: FakeSplit({"text": [split, "b", "c"], "label": [0, 1, 1], "tags": [[0], [1], [0]]}, features)
            for split in ("train", "test", "validation")
        }

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_splits_and_names(asked: list[tuple[str, str | None]]) -> None:
    table = read_hub("nyu-mll/glue", "sst2", None, training=False)
    assert asked == [("nyu-mll/glue", "sst2")]
    assert table.columns["text"] == ["validation", "b", "c"]
    assert table.label_names == {"label": ("neg", "pos"), "tags": ("O", "B-X")}
    assert table.source == "nyu-mll/glue/sst2 (validation)"
    assert read_hub("a", None, None, training=True).columns["text"][0] == "train"
    assert read_hub("a", None, "test", training=False).columns["text"][0] == "test"


def test_limit(asked: list[tuple[str, str | None]]) -> None:
    assert len(read_hub("a", None, None, training=True, limit=2)) == 2
    assert len(read_hub("a", None, None, training=True, limit=9)) == 3
    assert len(asked) == 2


@pytest.mark.usefixtures("asked")
def test_errors_are_one_line() -> None:
    with pytest.raises(DataError, match="a has no split 'dev': choose one of train, test, validation with --split"):
        read_hub("a", None, "dev", training=False)
    with pytest.raises(DataError) as raised:
        read_hub("none", None, None, training=False)
    assert str(raised.value) == (
        "none cannot be read (Couldn't reach 'none'): check the name and the network, or give a file"
    )


@pytest.mark.parametrize("name", ["./data", "/tmp/data", "..", "a/b/c", "~/x", ""])
def test_paths_are_not_asked_of_the_hub(name: str, asked: list[tuple[str, str | None]]) -> None:
    with pytest.raises(UsageError, match="is not the name of a data set: files are given with --eval-file"):
        read_hub(name, None, None, training=False)
    assert not asked


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package datasets: pip install 'attnprobe\[hub\]'"):
        read_hub("a", None, None, training=False)
