"""HTML reports, made from run folders alone: one file that opens offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnprobe.errors import RunFolderError
from attnprobe.report.importance import importance_page
from attnprobe.report.page import Page, write_page
from attnprobe.report.summary import finding, finding_of
from attnprobe.report.tables import Run, read_info, read_run

__all__ = ["finding", "headline", "write_report"]

PAGES: dict[str, Callable[[Run], Page]] = {"importance": importance_page}
"""The command that made a run folder -> what its page says."""


def write_report(run_dir: Path) -> Path:
    """Build `report.html` of a run folder from its run.json and tables, and return its path.

    Raises: RunFolderError for a folder that is no run folder, is broken, or cannot be written.
    """
    command = str(read_info(run_dir).get("command"))
    if command not in PAGES:
        raise RunFolderError(
            f"a report needs a run of {', '.join(PAGES)}, {run_dir} is a run of {command}: give another run folder"
        )
    return write_page(run_dir / "report.html", PAGES[command](read_run(run_dir)))


def headline(run_dir: Path) -> str:
    """The finding of a run folder: the first line of its report.

    Raises: RunFolderError for a folder that is no run folder, or is broken.
    """
    run = read_run(run_dir)
    return finding_of(run.effects, loss_unit=run.loss_unit)
