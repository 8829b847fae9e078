"""What a run is of, in words: the checkpoint's name, a page's subtitle, and its alerts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from attnprobe.report.tables import Record

MEASURED_BY: dict[str, str] = {
    "task": "loss of the task",
    "masked_lm": "masked language-model loss",
    "causal_lm": "language-model loss",
    "fidelity": "fidelity to the dense model (label-free)",
}


def checkpoint_name(run: Record) -> str:
    """The checkpoint's name: a hub id as it is, of a path its last part."""
    return short_name(str(run.part("checkpoint").get("name") or "the checkpoint"))


def short_name(name: str) -> str:
    """A hub id as it is, of a path its last part."""
    return PurePath(name).name if name.startswith((".", "/", "~")) else name


def subtitle(run: Record) -> str:
    """Family and size of the model, the data, what it was measured by."""
    data, checkpoint, objective = run.part("data"), run.part("checkpoint"), run.part("objective")
    kind = str(objective.get("kind"))
    parts = [
        str(checkpoint.get("family") or ""),
        f"{checkpoint.get('sites')} sites of {checkpoint.get('heads')} heads" if "sites" in checkpoint else "",
        f"{data.get('examples')} examples of {data.get('source')}" if "source" in data else "",
        f"measured by the {MEASURED_BY[kind]}" if kind in MEASURED_BY else "",
    ]
    return ", ".join(part for part in parts if part)


def alerts(run: Record, missing: Sequence[str]) -> list[str]:
    """What must not be overlooked: a run that is not complete, files that it did not leave, its own warnings."""
    status = str(run.info.get("status"))
    found = [] if status == "complete" else [f"This run is not complete (status: {status}); finish it with --resume."]
    if missing:
        found.append(f"This run left no {', '.join(missing)}, so the sections made from them are missing.")
    warnings = run.info.get("warnings")
    return found + ([str(warning) for warning in warnings] if isinstance(warnings, list) else [])
