"""The report of `attnprobe finetune`: its finding, its notes, and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprobe.report.finetune_metric import metric_section
from attnprobe.report.finetune_rates import rates_section
from attnprobe.report.finetune_study import LEVEL, REFERENCES, Arm, Finetune, Group, arms_of, labelled, quoted
from attnprobe.report.groups import metric_name
from attnprobe.report.identity import alerts, checkpoint_name, subtitle
from attnprobe.report.learning import LOSSES, learning_section, logs_of
from attnprobe.report.numbers import compact, count, estimate, join
from attnprobe.report.page import Page, Section
from attnprobe.report.provenance import provenance_section
from attnprobe.report.tables import real, text
from attnprobe.report.tradeoff.means import average
from attnprobe.report.tradeoff.sentences import percent

OPTIONAL = ("comparisons.csv", "rates.csv", "training.csv")
"""Files that a page can do without."""
MOST_NAMED = 3
"""Methods that a sentence names; of more it gives their number."""


def finetune_finding(run: Finetune) -> str:
    """The first line of a run's report: the best method, whether any beats the references, what the dearest costs."""
    arm = next((arm for arm in arms_of(run) if arm.best), None)
    if arm is None or (best := arm.best) is None:
        return "No training was measured, so no finding can be given."
    seeds = len(best.rows)
    metric, value = metric_name(run.rows), estimate(*best.value)
    over = f" over {seeds} seeds" if seeds > 1 else ""
    if len(arm.groups) == 1:
        return f"With {best.said} as the only method, {metric} is {value}{over}, so nothing can be compared."
    mean = "mean " if seeds > 1 else ""
    first = f"With {arm.label.lower()}, {best.said} has the best {mean}{metric}, {value}{over}; {_verdict(arm)}."
    return f"{first} {_cost(arm)}".strip()


def finetune_page(run: Finetune) -> Page:
    """The page of a run."""
    arms = arms_of(run)
    built: list[Section | None] = [
        metric_section(run, arms),
        rates_section(run.rates, labelled(arms)),
        learning_section(
            run.training,
            labelled(arms),
            LOSSES | {"reward": "reward"},
            more="Where masks are rewarded, so is the reward.",
        ),
        provenance_section(run),
    ]
    missing = [name for name in OPTIONAL if not (run.path / name).exists()]
    return Page(
        title=f"Dropout of attention while fine-tuning {checkpoint_name(run)}",
        subtitle=subtitle(run),
        finding=finetune_finding(run),
        notes=[note for note in _notes(run, arms) if note],
        alerts=alerts(run, missing),
        sections=[section for section in built if section is not None],
    )


def _verdict(arm: Arm) -> str:
    """Which methods are better than the references by a difference that counts."""
    if not arm.references:
        return "no method was compared with another, so no difference is settled"
    beaten: dict[tuple[str, ...], list[str]] = {}
    for reference in arm.references:
        winners = tuple(group.said for group in arm.beyond(reference, better=True))
        beaten.setdefault(winners, []).append(quoted(reference))
    clauses = [
        f"{_several(winners)} {'beat' if len(winners) > 1 else 'beats'} {join(names, 'and' if winners else 'or')}"
        for winners, names in beaten.items()
    ]
    return f"{', and '.join(clauses)} with a corrected p below {LEVEL:g}"


def _cost(arm: Arm) -> str:
    """What the dearest method costs in time."""
    dearest = arm.dearest
    if dearest is None or arm.none is None or not math.isfinite(arm.none.of("seconds_per_step")):
        return ""
    if dearest is arm.none:
        return f"No method takes longer a step than {dearest.said}."
    times = compact(arm.relative(dearest, "seconds_per_step"))
    return f"The dearest, {dearest.said}, takes {times} times as long a step as {arm.none.said}."


def _notes(run: Finetune, arms: Sequence[Arm]) -> list[str]:
    """What the finding leaves out."""
    notes = []
    for arm in arms:
        under = f"With {arm.label.lower()}, "
        if arm is not arms[0] and len(arm.groups) > 1:
            best = arm.best
            ahead = f"{best.said} is best, {estimate(*best.value)}; " if best else ""
            notes.append(f"{under}{ahead}{_verdict(arm)}.")
        for reference in arm.references:
            worse = [group.said for group in arm.beyond(reference, better=False)]
            if worse:
                verb = "are" if len(worse) > 1 else "is"
                notes.append(f"{under}{_several(worse)} {verb} worse than {quoted(reference)}, beyond chance.")
        absent = [quoted(name) for name in REFERENCES if name not in {group.dropout for group in arm.groups}]
        if absent and len(arm.groups) > 1:
            notes.append(f"{under}{join(absent)} {'were' if len(absent) > 1 else 'was'} not trained.")
    groups = [group for arm in arms for group in arm.groups]
    if groups and all(len(group.rows) == 1 for group in groups):
        notes.append("With one seed a method, intervals and p-values know of the examples alone.")
    unmeasured = [label for label, group in labelled(arms) if not math.isfinite(group.value[0])]
    notes.append(f"Not measured: {'; '.join(unmeasured)}." if unmeasured else "")
    return [*notes, _learnt_from(groups), *_duels(run, arms)]


def _learnt_from(groups: Sequence[Group]) -> str:
    """Which methods learnt from fewer rows than others."""
    of_size: dict[float, list[str]] = {}
    for group in groups:
        if math.isfinite(group.of("trained_on")):
            of_size.setdefault(group.of("trained_on"), []).append(group.said)
    fewer = sorted(of_size)[:-1]
    said = [f"{_several(list(dict.fromkeys(of_size[size])))} learnt from {count(size)} rows" for size in fewer]
    return f"{join(said)}, the others from {count(max(of_size))}." if said else ""


def _duels(run: Finetune, arms: Sequence[Arm]) -> list[str]:
    """How often the one of two nets that has masks was the better one."""
    logs = logs_of(run.training)
    notes = []
    for label, group in labelled(arms):
        entries = [entry for row in group.rows for entry in logs.get(text(row["training"]), [])]
        won = [winner for entry in entries if math.isfinite(winner := real(entry.get("winner")))]
        if won:
            share = f"{percent(average(won), 0)} of {len(won)} contests logged"
            notes.append(f"{quoted(label)}: the net with masks beat the one without in {share}.")
    return notes


def _several(names: Sequence[str]) -> str:
    """Methods by name where they are few, else their number."""
    if not names:
        return "no method"
    return f"{len(names)} methods" if len(names) > MOST_NAMED else join(names)
