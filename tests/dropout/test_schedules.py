"""Schedules: their lines, their file, and what is no schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnprobe.dropout.schedules import Schedule
from attnprobe.errors import DataError

SCHEDULE = Schedule(method="attendout", progress=(0.2, 0.6, 1.0), rates=((0.0, 0.4), (0.2, 0.0), (0.3, 1.0)))
GOOD: dict[str, Any] = {"schema": 1, "method": "attendout", "progress": [0.5, 1.0], "rates": [[0.1, 0.2], [0.3, 0.4]]}


@pytest.mark.parametrize(
    ("progress", "rates"),
    [(0.0, [0.0, 0.4]), (0.2, [0.0, 0.4]), (0.4, [0.1, 0.2]), (0.7, [0.225, 0.25]), (1.0, [0.3, 1.0])],
)
def test_rates_lie_on_straight_lines(progress: float, rates: list[float]) -> None:
    assert SCHEDULE.at(progress) == pytest.approx(rates)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    SCHEDULE.write(tmp_path / "schedule.json")
    assert Schedule.read(tmp_path / "schedule.json", sites=2) == SCHEDULE
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "is no schedule of version 1"),
        ({"progress": "early"}, "lacks its `progress` and `rates` in numbers"),
        ({"rates": [[0.1, "much"], [0.3, 0.4]]}, "lacks its `progress` and `rates` in numbers"),
        ({"progress": [1.0]}, "must have the rates of all sites for each time"),
        ({"rates": [[0.1], [0.3]]}, "has rates for 1 sites, the checkpoint has 2"),
        ({"rates": [[0.1, 1.2], [0.3, 0.4]]}, "has rates that are not from 0 to 1"),
        ({"progress": [1.0, 0.5]}, "must have times that increase from 0 to 1"),
    ],
)
def test_what_is_no_schedule_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(DataError, match=said):
        Schedule.read(path, sites=2)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; give linear, curriculum, or a schedule\.json"):
        Schedule.read(tmp_path / "absent.json", sites=2)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="can't be read as JSON"):
        Schedule.read(tmp_path / "broken.json", sites=2)
