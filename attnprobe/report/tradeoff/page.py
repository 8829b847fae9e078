"""The report of `attnprobe sparsify`."""

from __future__ import annotations

from attnprobe.report.identity import alerts, checkpoint_name, subtitle
from attnprobe.report.page import Page, Section
from attnprobe.report.provenance import provenance_section
from attnprobe.report.tradeoff.curves import curves_chart
from attnprobe.report.tradeoff.gallery import gallery_section
from attnprobe.report.tradeoff.kept import kept_section
from attnprobe.report.tradeoff.points import Sweep
from attnprobe.report.tradeoff.rows import comparison_section, target_section
from attnprobe.report.tradeoff.sentences import finding, notes
from attnprobe.report.tradeoff.study import Study, study_of
from attnprobe.report.tradeoff.training import training_section

OPTIONAL = ("kept.csv", "training.csv", "masks.npz")
"""Files that a page can do without."""


def study_of_run(sweep: Sweep) -> Study:
    """The study of one run."""
    return study_of(checkpoint_name(sweep), sweep.points, max_drop=sweep.max_drop, reason=sweep.reason)


def sweep_finding(sweep: Sweep) -> str:
    """The first line of a run's report."""
    return finding(study_of_run(sweep))


def sweep_page(sweep: Sweep) -> Page:
    """The page of a run; a section whose table the run did not leave is left out, and an alert names the table."""
    study = study_of_run(sweep)
    built: list[Section | None] = [
        _curves(study),
        comparison_section(study),
        target_section(study),
        gallery_section(sweep, study),
        kept_section(sweep, study),
        training_section(sweep, study),
        provenance_section(sweep),
    ]
    missing = [name for name in OPTIONAL if not (sweep.path / name).exists()]
    return Page(
        title=f"How much attention {checkpoint_name(sweep)} can do without",
        subtitle=subtitle(sweep),
        finding=finding(study),
        notes=notes(study),
        alerts=alerts(sweep, missing),
        sections=[section for section in built if section is not None],
    )


def _curves(study: Study) -> Section | None:
    chart = curves_chart(study, "curves")
    return Section(key="tradeoff", title="What sparsity costs", text=[], blocks=[chart]) if chart else None
