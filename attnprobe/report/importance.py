"""The report of `attnprobe importance`."""

from __future__ import annotations

from pathlib import PurePath

from attnprobe.report.heads import entropy_section, map_section
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
        title=f"Which attention {_name(run)} needs",
        subtitle=_subtitle(run),
        finding=finding_of(run.effects, loss_unit=run.loss_unit),
        notes=notes(run),
        alerts=_alerts(run),
        sections=[section for section in built if section is not None],
    )


def _subtitle(run: Run) -> str:
    data, checkpoint, objective = run.part("data"), run.part("checkpoint"), run.part("objective")
    kinds = {
        "task": "loss of the task",
        "masked_lm": "masked language-model loss",
        "causal_lm": "language-model loss",
        "fidelity": "fidelity to the dense model (label-free)",
    }
    parts = [
        str(checkpoint.get("family") or ""),
        f"{checkpoint.get('sites')} sites of {checkpoint.get('heads')} heads" if "sites" in checkpoint else "",
        f"{data.get('examples')} examples of {data.get('source')}" if "source" in data else "",
        f"measured by the {kinds[kind]}" if (kind := str(objective.get("kind"))) in kinds else "",
    ]
    return ", ".join(part for part in parts if part)


def _alerts(run: Run) -> list[str]:
    status = str(run.info.get("status"))
    alerts = [] if status == "complete" else [f"This run is not complete (status: {status}); finish it with --resume."]
    tables = {
        "offsets.csv": run.offsets.empty,
        "agreement.csv": run.agreement.empty,
        "heads.csv": run.heads.empty,
        "maps.npz": run.maps is None,
    }
    missing = [name for name, is_missing in tables.items() if is_missing]
    if missing:
        alerts.append(f"This run left no {', '.join(missing)}, so the sections made from them are missing.")
    warnings = run.info.get("warnings")
    return alerts + ([str(warning) for warning in warnings] if isinstance(warnings, list) else [])


def _name(run: Run) -> str:
    """The checkpoint's name: a hub id as it is, of a path its last part."""
    name = str(run.part("checkpoint").get("name") or "the checkpoint")
    return PurePath(name).name if name.startswith((".", "/", "~")) else name
