"""What every probe is given: the attached model, the objective, the layout, the options."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run's fixed parts.

    Attributes:
        session: the attached model.
        objective: what its output is scored by.
        layout: the figures.
        options: of the probes.
        map_length: tokens that average attention maps show.
    """

    session: AttentionSession
    objective: Objective
    layout: Layout
    options: ImportanceOptions
    map_length: int

    def forward(self, prepared: Prepared) -> Tensor:
        """The scored output of one pass, under whatever interventions are in force."""
        return scored_output(self.session.model, self.objective, prepared)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One batch, ready to be probed.

    Attributes:
        prepared: the batch as the objective scores it, knowing the dense output.
        cells: its cells by class and offset.
        generator: random numbers that depend on seed, method and batch alone, so that a resumed run draws the same.
    """

    prepared: Prepared
    cells: Cells
    generator: torch.Generator


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a probe found in one batch.

    Attributes:
        per_example: by ``level/series``, float32 (examples, *axes of the level); NaN = n/a.
        sums: running sums over all batches, by name.
    """

    per_example: Arrays
    sums: Arrays | None = None
