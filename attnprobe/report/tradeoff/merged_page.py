"""The report of merged runs: a section for each checkpoint, data set and metric, and one for each run of importance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.identity import checkpoint_name
from attnprobe.report.numbers import estimate, number
from attnprobe.report.page import Block, Page, Section, Table
from attnprobe.report.provenance import command_line
from attnprobe.report.sections import class_tables
from attnprobe.report.summary import finding_of
from attnprobe.report.tables import Record, Run
from attnprobe.report.tradeoff.collecting import Merged, title
from attnprobe.report.tradeoff.curves import curves_chart
from attnprobe.report.tradeoff.kept import kept_chart
from attnprobe.report.tradeoff.rows import comparison_blocks, target_tables
from attnprobe.report.tradeoff.sentences import SLOTS, finding, inline, notes, percent, slots
from attnprobe.report.tradeoff.study import Study, comparisons


def merged_page(merged: Merged) -> Page:
    """The page of merged runs, made from their tables alone."""
    studies, importance = merged.studies, merged.importance
    sections = [_study_section(study, number_of) for number_of, study in enumerate(studies)]
    sections += [_importance_section(name, run, number_of) for number_of, (name, run) in enumerate(importance)]
    side_by_side = [_side_by_side(studies)] if len(studies) > 1 else []
    return Page(
        title=f"How much attention {studies[0].name if len(studies) == 1 else 'these models'} can do without",
        subtitle=_subtitle(merged),
        finding=_finding(studies),
        notes=notes(studies[0]) if len(studies) == 1 else [],
        alerts=_alerts(merged),
        sections=[*side_by_side, *sections, _runs_section(merged)],
    )


def _finding(studies: Sequence[Study]) -> str:
    if len(studies) == 1:
        return finding(studies[0])
    return " ".join(f"{study.name}: {finding(study)}" for study in studies)


def _subtitle(merged: Merged) -> str:
    counted = {"sparsify": len(merged.sweeps), "importance": len(merged.importance)}
    runs = [f"{many} {'run' if many == 1 else 'runs'} of {name}" for name, many in counted.items() if many]
    masks = sum(point.method != "dense" for study in merged.studies for point in study.points)
    return f"{' and '.join(runs)}, {masks} masks"


def _study_section(study: Study, number_of: int) -> Section:
    curves, kept = curves_chart(study, f"curves-{number_of}"), kept_chart(study, f"kept-{number_of}")
    blocks: list[Block] = [curves] if curves else []
    blocks += comparison_blocks(study, f"comparisons-{number_of}")
    blocks += target_tables(study)
    blocks += [kept] if kept else []
    return Section(
        key=f"study-{number_of}",
        title=f"{study.name}: {study.metric}",
        text=[finding(study), *notes(study)],
        blocks=blocks,
    )


def _side_by_side(studies: Sequence[Study]) -> Section:
    table = Table(
        caption="The best learnt mask of each, as its section says, beside dense and the strongest controls at equal "
        "or lower sparsity.",
        columns=[
            "",
            "Metric",
            "Dense",
            "Learnt mask",
            "Cell sparsity",
            "Learnt [95 %]",
            "Random",
            "Magnitude",
            "Pattern",
        ],
        rows=[_beside(study) for study in studies],
        text_columns=frozenset({1, 3}),
    )
    return Section(key="side-by-side", title="Side by side", text=[], blocks=[table])


def _beside(study: Study) -> list[str]:
    best = study.best
    chosen = slots(comparisons(study, best)) if best else {}
    controls = [chosen[slot].control.value if slot in chosen else math.nan for slot in SLOTS if slot != "taylor"]
    return [
        study.name,
        study.metric,
        number(study.dense.value, digits=3) if study.dense else "",
        inline(best.line) if best else "",
        percent(best.sparsity) if best else "",
        estimate(best.value, best.low, best.high) if best else "",
        *(number(value, digits=3) for value in controls),
    ]


def _importance_section(name: str, run: Run, number_of: int) -> Section:
    return Section(
        key=f"importance-{number_of}",
        title=f"Which attention {checkpoint_name(run)} needs",
        text=[f"{name}, a run of importance: {title(run)}.", finding_of(run.effects, loss_unit=run.loss_unit)],
        blocks=class_tables(run),
    )


def _runs_section(merged: Merged) -> Section:
    rows = [[named.name, *_facts(named.run)] for named in merged.runs]
    table = Table(
        caption="The runs that were merged; the tables of each hold every figure shown here.",
        columns=["Run", "Command", "Of", "Checkpoint", "Data", "Examples", "Seed", "Finished"],
        rows=rows,
        text_columns=frozenset({1, 2, 3, 4, 6, 7}),
    )
    commands = Table(
        caption="Their command lines.",
        columns=["Run", "Command line"],
        rows=[[named.name, command_line(named.run)] for named in merged.runs],
        text_columns=frozenset({1}),
    )
    return Section(key="runs", title="What was run", text=[], blocks=[table, commands])


def _facts(run: Record) -> list[str]:
    checkpoint, data = run.part("checkpoint"), run.part("data")
    return [
        str(run.info.get("command")),
        title(run),
        str(checkpoint.get("digest") or "")[:12],
        str(data.get("digest") or "")[:12],
        str(data.get("examples") or ""),
        str(run.info.get("seed", "")),
        str(run.info.get("finished") or ""),
    ]


def _alerts(merged: Merged) -> list[str]:
    found = []
    for named in merged.runs:
        warnings = named.run.info.get("warnings")
        found += [f"{named.name}: {warning}" for warning in warnings] if isinstance(warnings, list) else []
    return found
