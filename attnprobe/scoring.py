"""From a prepared batch through the model to the output that an objective scores."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.objectives import Objective, Prepared


def first_output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """A model's first output: logits, or hidden states (batch, tokens, width)."""
    accepted = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in accepted else {}
    taken = {name: tensor for name, tensor in inputs.items() if name in accepted}
    output: Tensor = model(**taken, **options, return_dict=True)[0]
    return output


def scored_output(model: Any, objective: Objective, prepared: Prepared) -> Tensor:
    """The scored output of one pass, under whatever interventions are in force."""
    return objective.output(first_output(model, prepared.inputs), prepared)


def to_numpy(values: Tensor) -> NDArray[np.float32]:
    """A tensor of any dtype and device as float32 in numpy (which has no bfloat16)."""
    array: NDArray[np.float32] = values.detach().to("cpu", torch.float32).numpy()
    return array
