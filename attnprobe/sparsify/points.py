"""The points of a sweep: which masks a command makes, in which order. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnprobe.sparsify.methods import METHODS
from attnprobe.sparsify.options import SparsifyOptions


@dataclass(frozen=True, kw_only=True)
class Point:
    """One row of the trade-off.

    Attributes:
        method: a key of :data:`~attnprobe.sparsify.methods.METHODS`, or ``dense``.
        granularity: of the gates; ``pattern`` for fixed patterns, empty for ``dense``.
        diagonal: ``free``, ``keep``, ``drop``; empty for ``dense``.
        train: what is trained: ``none``, ``gates``, ``weights`` (under a fixed mask, or dense) or ``all``.
        target: cell sparsity asked for; None for ``dense`` and under ``--lambda``.
        seed: of everything that is drawn for the point.
        draw: number of the draw of a random mask, from 0.
    """

    method: str
    granularity: str = ""
    diagonal: str = ""
    train: str = "none"
    target: float | None = None
    seed: int = 0
    draw: int | None = None

    @property
    def kind(self) -> str:
        """``dense``, or the kind of the method."""
        return METHODS[self.method].kind if self.method in METHODS else "dense"

    @property
    def name(self) -> str:
        """A name that tells the points of a run apart, fit for files."""
        parts = [
            self.method,
            self.granularity if self.kind not in ("pattern", "dense") else "",
            self.diagonal if self.diagonal != "free" else "",
            self.train if self.train != "none" else "",
            "" if self.target is None else f"{self.target:.6g}",
            f"s{self.seed}" if self.kind == "learnt" or self.train != "none" else "",
            "" if self.draw is None else f"d{self.draw}",
        ]
        return "-".join(part for part in parts if part)


def plan_points(options: SparsifyOptions, seed: int) -> list[Point]:
    """All points: the dense model first, then what costs nothing to make, then what is trained.

    Args:
        options: of the run.
        seed: where the options name no seeds.
    """
    seeds = options.seed_numbers or (seed,)
    points = [Point(method="dense", seed=seeds[0]), *_controls(options, seeds[:1], "none")]
    if options.train == "all":  # what tuning alone does
        points += [
            Point(method="dense", train="weights", seed=s) for s in (seeds if options.tune_controls else seeds[:1])
        ]
    if options.tune_controls:
        points += _controls(options, seeds, "weights")
    return points + list(_learnt(options, seeds))


def _targets(options: SparsifyOptions) -> tuple[float | None, ...]:
    return (None,) if options.lambda_ is not None or options.paper_form else options.targets


def _learnt(options: SparsifyOptions, seeds: tuple[int, ...]) -> Iterator[Point]:
    for method in (name for name in options.methods if METHODS[name].kind == "learnt"):
        for diagonal in options.diagonal:
            for target in _targets(options):
                for seed in seeds:
                    yield Point(
                        method=method,
                        granularity=options.granularity,
                        diagonal=diagonal,
                        train=options.train,
                        target=target,
                        seed=seed,
                    )


def _controls(options: SparsifyOptions, seeds: tuple[int, ...], train: str) -> Iterator[Point]:
    """Controls stand at the targets, also where a price takes the place of targets for learnt masks."""
    for method in (name for name in options.methods if METHODS[name].kind != "learnt"):
        kind = METHODS[method].kind
        draws: tuple[int | None, ...] = tuple(range(options.draws)) if kind == "random" and train == "none" else (None,)
        for diagonal in options.diagonal:
            for target in options.targets:
                for seed in seeds:
                    for draw in draws:
                        yield Point(
                            method=method,
                            granularity="pattern" if kind == "pattern" else options.granularity,
                            diagonal=diagonal,
                            train=train,
                            target=target,
                            seed=seed,
                            draw=draw,
                        )
