"""HTML reports, made from run folders alone: one file that opens offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnprobe.errors import RunFolderError
from attnprobe.report.finetune import finetune_finding, finetune_page
from attnprobe.report.finetune_study import read_finetune
from attnprobe.report.importance import importance_page
from attnprobe.report.page import Page, write_page
from attnprobe.report.retrofit import read_retrofit, retrofit_finding, retrofit_page
from attnprobe.report.summary import finding, finding_of
from attnprobe.report.tables import read_info, read_run
from attnprobe.report.tradeoff.merging import FORMATS, merge_runs
from attnprobe.report.tradeoff.page import sweep_finding, sweep_page
from attnprobe.report.tradeoff.points import read_sweep

__all__ = ["FORMATS", "finding", "headline", "merge_runs", "write_report"]


def _importance_finding(run_dir: Path) -> str:
    run = read_run(run_dir)
    return finding_of(run.effects, loss_unit=run.loss_unit)


PAGES: dict[str, Callable[[Path], Page]] = {
    "importance": lambda run_dir: importance_page(read_run(run_dir)),
    "sparsify": lambda run_dir: sweep_page(read_sweep(run_dir)),
    "retrofit": lambda run_dir: retrofit_page(read_retrofit(run_dir)),
    "finetune": lambda run_dir: finetune_page(read_finetune(run_dir)),
}
"""The command that made a run folder -> what its page says."""

FINDINGS: dict[str, Callable[[Path], str]] = {
    "importance": _importance_finding,
    "sparsify": lambda run_dir: sweep_finding(read_sweep(run_dir)),
    "retrofit": lambda run_dir: retrofit_finding(read_retrofit(run_dir)),
    "finetune": lambda run_dir: finetune_finding(read_finetune(run_dir)),
}
"""The command that made a run folder -> the first line of its page."""


def write_report(run_dir: Path) -> Path:
    """Build `report.html` of a run folder from its run.json and tables, and return its path.

    Raises: RunFolderError for a folder that is no run folder, is broken, or cannot be written.
    """
    return write_page(run_dir / "report.html", PAGES[_command(run_dir)](run_dir))


def headline(run_dir: Path) -> str:
    """The finding of a run folder: the first line of its report.

    Raises: RunFolderError for a folder that is no run folder, or is broken.
    """
    return FINDINGS[_command(run_dir)](run_dir)


def _command(run_dir: Path) -> str:
    command = str(read_info(run_dir).get("command"))
    if command not in PAGES:
        raise RunFolderError(
            f"a report needs a run of {', '.join(PAGES)}, {run_dir} is a run of {command}: give another run folder"
        )
    return command
