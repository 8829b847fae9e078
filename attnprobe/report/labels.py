"""What classes, methods, units and files are called in a report: literal tables, read by every chart and sentence."""

from __future__ import annotations

from dataclasses import dataclass

PARTITION: dict[str, str] = {
    "diagonal": "the diagonal (a token to itself)",
    "cls_key": "[CLS] as key (others attend to it)",
    "cls_query": "[CLS] as query (its own row)",
    "first_key": "the first token as key (others attend to it)",
    "first_query": "the first token as query (its own row)",
    "sep_key": "[SEP] as key (others attend to it)",
    "sep_query": "[SEP] as query (its own row)",
    "previous": "the previous token (one back)",
    "next": "the next token (one ahead)",
    "neighbour": "the neighbourhood (two tokens off, up to the window)",
    "cross_segment": "the other text (across the two texts of a pair)",
    "other": "everything else (ordinary tokens further apart)",
}
"""The classes that partition the valid cells: name -> "short name (what it is)"."""

UNIONS: dict[str, str] = {
    "cls": "[CLS] (as key and as query)",
    "sep": "[SEP] (as key and as query)",
    "special": "special tokens ([CLS] and [SEP], as key and as query)",
    "window": "the window (diagonal, previous, next and neighbourhood)",
}
"""Unions of partition classes; shown apart, never ranked against the classes."""

METHODS: dict[str, str] = {
    "ablation": "ablation",
    "integrated-gradients": "integrated gradients",
    "taylor": "row-exact Taylor",
    "learned": "learned gates",
    "mass": "attention mass",
}
"""Methods in the order in which the finding prefers them."""

FILES: dict[str, str] = {
    "run.json": "arguments, versions, seed, hashes, status",
    "importance.csv": "one row a figure: classes, sites, heads, by every method",
    "offsets.csv": "importance against the distance of query and key",
    "agreement.csv": "rank correlation between the methods",
    "heads.csv": "entropy and divergence of every head",
    "maps.npz": "average attention of every head by token position",
    "tradeoff.csv": "one row a point: a method at a target, with its sparsity and what it costs",
    "kept.csv": "share of each class of positions that a head's mask keeps",
    "training.csv": "what was logged in training",
    "retrofit.csv": "one row a training: metric before and after, against its controls; what attention looks like",
    "sparsity.csv": "what masks cost that were learnt afterwards",
    "finetune.csv": "one row a training: metric, share dropped, time and memory",
    "comparisons.csv": "each dropout method against none and the usual one, with corrected p-values",
    "rates.csv": "share dropped at each site over the training",
    "schedule.json": "drop rates over the training as learnt, for `--schedule`",
    "masks.npz": "the masks of every point on one example",
    "model": "the exported model; its README.md says how to load it",
}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One method in one unit: how it is named, drawn and said.

    `axis` and `sentence` may hold `{unit}`, the unit of the objective's loss; `sentence` holds `{estimate}`.
    `signed` figures are centred at 0 and carry a sign; a `ratio` is read against 1, on a logarithmic axis.
    `control` is what stands beside a figure, `row_control` the same of a class that takes whole rows, `brief_control`
    either in one word.
    """

    method: str
    unit: str
    label: str
    axis: str
    sentence: str
    least: str = "matters least"
    most: str = "matters most"
    control: str = "as many random cells of the same rows"
    row_control: str = "as many rows of ordinary tokens"
    brief_control: str = "random"
    signed: bool = True
    ratio: bool = False


MEASURES: tuple[Measure, ...] = (
    Measure(
        method="ablation",
        unit="loss",
        label="Ablation: change of the loss",
        axis="change of the loss when removed ({unit})",
        sentence="removing it from every head changes the loss by {estimate}",
    ),
    Measure(
        method="ablation",
        unit="kl",
        label="Ablation: change of the output",
        axis="distance of the output from the dense one",
        sentence="removing it from every head moves the output by {estimate}",
        signed=False,
    ),
    Measure(
        method="integrated-gradients",
        unit="loss",
        label="Integrated gradients: share of the loss",
        axis="loss attributed to the cells ({unit})",
        sentence="the loss attributed to it is {estimate}",
    ),
    Measure(
        method="taylor",
        unit="loss",
        label="Row-exact Taylor: estimated change of the loss",
        axis="estimated change of the loss ({unit})",
        sentence="removing it from every head is estimated to change the loss by {estimate}",
    ),
    Measure(
        method="learned",
        unit="gate",
        label="Learned gates: how far they stay open",
        axis="mean gate (0: closed, 1: open)",
        sentence="its gates end at {estimate} on average (0: closed, 1: open)",
        least="is needed least",
        most="is needed most",
        control="all other cells",
        row_control="all other cells",
        brief_control="others",
        signed=False,
    ),
    Measure(
        method="mass",
        unit="density",
        label="Attention mass: density against uniform",
        axis="attention per cell, in multiples of uniform",
        sentence="it gets {estimate} times the attention of as many cells under uniform attention",
        least="gets the least attention for its size",
        most="gets the most attention for its size",
        control="uniform attention",
        row_control="uniform attention",
        brief_control="uniform",
        signed=False,
        ratio=True,
    ),
    Measure(
        method="mass",
        unit="share",
        label="Attention mass: share",
        axis="share of all attention",
        sentence="it gets {estimate} of all attention",
        least="gets the least attention",
        most="gets the most attention",
        control="uniform attention",
        row_control="uniform attention",
        brief_control="uniform",
        signed=False,
    ),
)
"""In the order of the selectors; for each method the first unit that was measured is the one the finding quotes."""


def measure_of(method: str, unit: str) -> Measure:
    """The measure of a method and unit; one is made up for a method that this table does not know."""
    for measure in MEASURES:
        if (measure.method, measure.unit) == (method, unit):
            return measure
    return Measure(
        method=method,
        unit=unit,
        label=f"{method_label(method).capitalize()}: {unit}",
        axis=f"{unit} by {method_label(method)}",
        sentence=f"its {unit} by {method_label(method)} is {{estimate}}",
    )


def method_label(method: str) -> str:
    """How a method is called in running text."""
    return METHODS.get(method, method)


def class_label(name: str) -> str:
    """The full label of a class, with what it is in brackets; an unknown name stands for itself."""
    return PARTITION.get(name) or UNIONS.get(name) or name


def class_name(name: str) -> str:
    """The label without its explanation, for sentences: "the diagonal"."""
    return class_label(name).partition(" (")[0]


def class_tick(name: str) -> str:
    """The label for axes and tables: "diagonal"."""
    return class_name(name).removeprefix("the ")
