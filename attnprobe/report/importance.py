"""The report of `attnprobe importance`."""

from __future__ import annotations

from attnprobe.report.heads import entropy_section, map_section
from attnprobe.report.identity import alerts, checkpoint_name, subtitle
from attnprobe.report.page import Page, Section
from attnprobe.report.provenance import provenance_section
from attnprobe.report.sections import (
    agreement_section,
    class_section,
    class_site_section,
    head_section,
    offset_section,
)
from attnprobe.report.summary import finding_of, notes
from attnprobe.report.tables import Run

SECTIONS = (
    class_section,
    head_section,
    class_site_section,
    offset_section,
    map_section,
    entropy_section,
    agreement_section,
    provenance_section,
)


def importance_page(run: Run) -> Page:
    """The page of a run; a section whose table the run did not leave is left out, and an alert names the table."""
    built: list[Section | None] = [section(run) for section in SECTIONS]
    return Page(
        title=f"Which attention {checkpoint_name(run)} needs",
        subtitle=subtitle(run),
        finding=finding_of(run.effects, loss_unit=run.loss_unit),
        notes=notes(run),
        alerts=_alerts(run),
        sections=[section for section in built if section is not None],
    )


def _alerts(run: Run) -> list[str]:
    tables = {
        "offsets.csv": run.offsets.empty,
        "agreement.csv": run.agreement.empty,
        "heads.csv": run.heads.empty,
        "maps.npz": run.maps is None,
    }
    return alerts(run, [name for name, is_missing in tables.items() if is_missing])
