"""All of a model that attaching could leave changed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from attnprobe.attention.session import _sessions
from tests.helpers.tolerance import assert_identical


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A model's state.

    Attributes:
        state: parameters and buffers, those that are not saved too, by name.
        requires_grad: by name of the parameter.
        configs: the attributes of every configuration that a module or another configuration holds.
        modules: for each module its class, mode, its own ``forward`` if it has one, its hooks, and what else it holds.
    """

    state: dict[str, Tensor]
    requires_grad: dict[str, bool]
    configs: list[dict[str, Any]]
    modules: dict[str, dict[str, Any]]


def snapshot(model: PreTrainedModel) -> Snapshot:
    """Take a copy of everything."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return Snapshot(
        state={name: tensor.detach().clone() for name, tensor in tensors.items()},
        requires_grad={name: parameter.requires_grad for name, parameter in model.named_parameters()},
        configs=[copy.deepcopy(_attributes(config)) for config in _configs(model)],
        modules={name: _own(module.__dict__) for name, module in model.named_modules()},
    )


def assert_unchanged(model: PreTrainedModel, before: Snapshot) -> None:
    """Everything is bit for bit what it was, and no session knows the model."""
    after = snapshot(model)
    assert after.state.keys() == before.state.keys()
    for name, tensor in before.state.items():
        assert_identical(after.state[name], tensor)
    assert after.requires_grad == before.requires_grad
    assert after.configs == before.configs
    assert after.modules == before.modules
    assert not any(module in _sessions for module in model.modules())


def hooks(model: PreTrainedModel) -> int:
    """Number of hooks on all modules."""
    return sum(
        len(held) for module in model.modules() for name, held in module.__dict__.items() if name.endswith("_hooks")
    )


def _attributes(config: Any) -> dict[str, Any]:
    """A configuration's attributes and its attention implementation; nested configurations are taken by themselves."""
    plain = {name: value for name, value in vars(config).items() if not hasattr(value, "to_dict")}
    return {**plain, "implementation": config._attn_implementation}


def _configs(model: PreTrainedModel) -> list[Any]:
    found: dict[int, Any] = {}
    waiting = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation"):
            found[id(config)] = config
            waiting.extend(value for value in vars(config).values() if hasattr(value, "to_dict"))
    return list(found.values())


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """A module's own attributes: plain values as they are, hooks by their keys, anything else by identity."""
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.endswith("_hooks"):
            kept[name] = list(value)
        elif value is None or isinstance(value, bool | int | float | str):
            kept[name] = value
        elif name not in ("_parameters", "_buffers", "_modules"):
            kept[name] = id(value)
    return kept
