"""The importance methods: one line a method. Choices, labels and documentation derive from this table."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS: dict[str, tuple[str, ...]] = {
    "class": ("class",),
    "site": ("site",),
    "head": ("site", "head"),
    "class_site": ("class", "site"),
    "class_head": ("class", "site", "head"),
    "offset": ("offset",),
}
"""Axes of the figures of each level, in the order in which arrays hold them, after the examples."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One kind of figure that a method gives.

    Attributes:
        unit: what the figure is: ``share``, ``density``, ``loss`` (change of the loss), ``kl`` or ``gate``.
        value: name of the per-example series.
        control: name of the series beside it, or None.
        relative: whether the figure is the ratio of value and control (its control is then 1).
    """

    unit: str
    value: str
    control: str | None = None
    relative: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """An importance method.

    Attributes:
        module: its module in :mod:`attnprobe.importance`, with ``measure(context, item)``; one that has to learn from
            all the data first has ``fit(context, items, generator)`` too.
        summary: what it does, for help and documentation.
        series: the figures it gives, the primary one first.
        passes: rough cost of a batch in forward passes, for the progress bar.
        default: whether it is run when no methods are named.
    """

    module: str
    summary: str
    series: tuple[Series, ...]
    passes: int
    default: bool = True


METHODS: dict[str, Method] = {
    "mass": Method(
        module="mass",
        summary="share of attention probability, and its density against uniform attention",
        series=(
            Series(unit="share", value="share", control="uniform"),
            Series(unit="density", value="share", control="uniform", relative=True),
        ),
        passes=2,
    ),
    "ablation": Method(
        module="ablation",
        summary="remove the cells and run again: change of the loss and KL, beside matched random cells",
        series=(
            Series(unit="loss", value="loss", control="control_loss"),
            Series(unit="kl", value="kl", control="control_kl"),
        ),
        passes=200,
    ),
    "taylor": Method(
        module="taylor",
        summary="first-order effect of removing, row-exact, from one forward and backward pass",
        series=(Series(unit="loss", value="loss"),),
        passes=4,
    ),
    "integrated-gradients": Method(
        module="integrated_gradients",
        summary="captum's integrated gradients over all gates, from closed to open",
        series=(Series(unit="loss", value="loss"),),
        passes=128,
    ),
    "learned": Method(
        module="learned",
        summary="SparseBERT's analysis: a gate for every cell, learnt on the frozen model; how far it stays open",
        series=(Series(unit="gate", value="gate", control="others"),),
        passes=1,
        default=False,
    ),
}
