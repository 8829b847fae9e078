"""What every probe is given: the attached model, the objective, the layout, the options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.attention import AttentionSession
from attnprobe.importance.cells import Cells
from attnprobe.importance.layout import Layout
from attnprobe.importance.options import ImportanceOptions
from attnprobe.objectives import Objective, Prepared

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
        return self.objective.output(first_output(self.session.model, prepared.inputs), prepared)


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


def first_output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """A model's first output: logits, or hidden states (batch, tokens, width)."""
    accepted = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in accepted else {}
    taken = {name: tensor for name, tensor in inputs.items() if name in accepted}
    output: Tensor = model(**taken, **options, return_dict=True)[0]
    return output


def to_numpy(values: Tensor) -> NDArray[np.float32]:
    """A tensor of any dtype and device as float32 in numpy (which has no bfloat16)."""
    array: NDArray[np.float32] = values.detach().to("cpu", torch.float32).numpy()
    return array
