"""Put the heads of a site into another order without changing what the model computes.

Head h of a site owns rows of W_q, W_k, W_v (and their biases) and columns of W_o. Moved together, they change nothing.
Under grouped-query attention the rows of W_k and W_v belong to groups of heads, and groups move whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnprobe.architectures import PROJECTIONS, Projections
from attnprobe.attention import Site
from attnprobe.errors import UnsupportedModelError, UsageError


@torch.no_grad()
def reorder_heads(model: nn.Module, site: Site, order: Sequence[int]) -> None:
    """Make head ``order[i]`` of a site head ``i``, in place.

    Args:
        model: that the site is of.
        site: none of shared layers: its module's weights are its own.
        order: a permutation of the heads that keeps the groups of a key head together.

    Raises:
        UnsupportedModelError: the weights of the site's heads can't be told apart.
        UsageError: an order that is none, or that takes groups apart.
    """
    groups = group_order(order, site)
    found = _projections(model, site)
    value_dim = _weight(_module(model, site, found.output)).shape[1] // site.heads
    if found.layout == "by_head":
        width = len(_weight(_module(model, site, found.query))) // site.heads
        _take_rows(_module(model, site, found.query), _spread(order, width))
    elif found.layout == "thirds":
        fused = _module(model, site, found.query)
        parts = [(list(order), site.head_dim), (groups, site.head_dim), (groups, value_dim)]
        starts = [0, site.heads * site.head_dim, (site.heads + site.kv_heads) * site.head_dim]
        rows = [start + _spread(heads, width) for start, (heads, width) in zip(starts, parts, strict=True)]
        _take_rows(fused, torch.cat(rows))
    else:
        _take_rows(_module(model, site, found.query), _spread(order, site.head_dim))
        _take_rows(_module(model, site, found.key), _spread(groups, site.head_dim))
        _take_rows(_module(model, site, found.value), _spread(groups, value_dim))
    _take(_weight(_module(model, site, found.output)), 1, _spread(order, value_dim))


def group_order(order: Sequence[int], site: Site) -> list[int]:
    """The order of the key heads that an order of the query heads means. Raises: UsageError."""
    size = site.heads // site.kv_heads
    groups = [head // size for head in order[::size]]
    if sorted(order) != list(range(site.heads)):
        raise UsageError(f"an order of {site.heads} heads names each once, not {list(order)}")
    if any(head // size != groups[at // size] for at, head in enumerate(order)):
        raise UsageError(f"heads that share keys move together, {size} at a time; {list(order)} takes them apart")
    return groups


def _projections(model: nn.Module, site: Site) -> Projections:
    for candidate in PROJECTIONS:
        names = (candidate.query, candidate.key, candidate.value, candidate.output)
        if all(_find(model, site, name) is not None for name in names):
            return candidate
    raise UnsupportedModelError(
        f"{type(site.module).__name__} keeps the weights of its heads in a form that is not known here, so they can't "
        "be put in another order; leave the alignment out"
    )


def _find(model: nn.Module, site: Site, name: str) -> nn.Module | None:
    above = site.name.rpartition(".")[0] if name.startswith("^") else site.name
    path = f"{above}.{name.removeprefix('^')}".lstrip(".")
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def _module(model: nn.Module, site: Site, name: str) -> nn.Module:
    found = _find(model, site, name)
    assert found is not None
    return found


def _weight(module: nn.Module) -> Tensor:
    """A projection's weight as (out, in), which GPT-2 stores the other way round: a view."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight if isinstance(module, nn.Linear) else weight.T


def _spread(heads: Sequence[int], width: int) -> Tensor:
    """The rows of heads of so many rows each, in order."""
    return (torch.tensor(heads).unsqueeze(1) * width + torch.arange(width)).flatten()


def _take_rows(module: nn.Module, index: Tensor) -> None:
    _take(_weight(module), 0, index)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        _take(bias, 0, index)


def _take(tensor: Tensor, axis: int, index: Tensor) -> None:
    tensor.copy_(tensor.index_select(axis, index.to(tensor.device)))
