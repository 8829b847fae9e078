"""What every probe is given: the attached model, the objective, the layout, the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.attention import AttentionSession
from attnprobe.importance.cells import Cells
from attnprobe.importance.layout import Layout
from attnprobe.importance.options import ImportanceOptions
from attnprobe.objectives import Objective, Prepared
from attnprobe.scoring import scored_output

Arrays = dict[str, NDArray[Any]]

MAP_LENGTH = 64
"""The most tokens that average attention maps show."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run's fixed parts.

    Attributes:
        session: the attached model.
        objective: what its output is scored by.
        layout: the figures.
        options: of the probes.
        longest: tokens of the longest example.
        fitted: what methods have learnt from all the data before the first batch is measured, by method.
    """

    session: AttentionSession
    objective: Objective
    layout: Layout
    options: ImportanceOptions
    longest: int
    fitted: Mapping[str, Arrays] = field(default_factory=dict)

    @property
    def map_length(self) -> int:
        """Tokens that average attention maps show."""
        return min(self.longest, MAP_LENGTH)

    def forward(self, prepared: Prepared) -> Tensor:
        """The scored output of one pass, under whatever interventions are in force."""
        return scored_output(self.session.model, self.objective, prepared)

    def with_dense(self, prepared: Prepared) -> Prepared:
        """A prepared batch, knowing the output of a pass of its own: the dense model's, outside of interventions."""
        with torch.no_grad():
            return prepared.with_dense(self.forward(prepared))


@dataclass(frozen=True, kw_only=True)
class Item:
    """One batch, ready to be probed.

    Attributes:
        prepared: the batch as the objective scores it; for ``measure``, knowing the dense output.
        cells: its cells by class and offset.
        generator: random numbers that depend on seed, method and batch alone, so that a resumed run draws the same.
    """

    prepared: Prepared
    cells: Cells
    generator: torch.Generator


@dataclass(frozen=True, kw_only=True)
class Items:
    """All batches of a run, for a method that learns from them; each is made when it is asked for, and none is held.

    Attributes:
        number: how many.
        make: gives the batch of a number, from 0 on; not knowing the dense output, which costs a pass.
    """

    number: int
    make: Callable[[int], Item]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a probe found in one batch.

    Attributes:
        per_example: by ``level/series``, float32 (examples, *axes of the level); NaN = n/a.
        sums: running sums over all batches, by name.
    """

    per_example: Arrays
    sums: Arrays | None = None
