"""Heads in another order: the function stays, the attention of head i is that of head order[i]."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, attach
from attnprobe.errors import UnsupportedModelError, UsageError
from attnprobe.residual.heads import group_order, reorder_heads
from tests.helpers.families import FAMILIES, Family, family, run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

PLACED = ("t5-encoder",)
"""Families whose heads differ in more than their weights: position biases by head."""


def shuffled(heads: int, kv_heads: int) -> list[int]:
    """Another order of the heads, that keeps groups together: groups turned, and heads turned within."""
    size = heads // kv_heads
    groups = [*range(1, kv_heads), 0]
    return [group * size + (at + 1) % size for group in groups for at in range(size)]


@pytest.mark.parametrize("of", [of for of in FAMILIES if of.name not in PLACED], ids=lambda of: of.name)
def test_the_function_stays_and_heads_move(of: Family) -> None:
    model = of.model(torch.float64)
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in of.inputs().items()}
    with attach(model) as session:
        if session.shared:
            pytest.skip("shared layers have one order of heads")
        order = shuffled(of.heads, of.kv_heads)
        rows: list[Tensor] = []

        def observe(call: AttentionCall, probabilities: Tensor) -> None:
            if call.site.index == 1:
                rows.append(probabilities)

        with session.observe(observe):
            before = run(model, inputs)[of.output]
            reorder_heads(model, session.sites[1], order)
            after = run(model, inputs)[of.output]
    assert_near(after, before)
    assert_near(rows[1], rows[0][:, order])
    assert_differs(rows[1], rows[0])


def test_an_order_and_its_inverse_are_nothing() -> None:
    of = family("llama-8/2")
    model = of.model()
    order = shuffled(8, 2)
    with attach(model) as session:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        reorder_heads(model, session.sites[0], order)
        inverse = [order.index(head) for head in range(8)]
        reorder_heads(model, session.sites[0], inverse)
    for name, tensor in model.state_dict().items():
        assert_identical(tensor, before[name])


def test_orders_that_are_none() -> None:
    with attach(family("llama-8/2").model()) as session:
        site = session.sites[0]
        assert group_order([4, 5, 6, 7, 3, 2, 1, 0], site) == [1, 0]
        with pytest.raises(UsageError, match="names each once"):
            group_order([0, 0, 1, 2, 3, 4, 5, 6], site)
        with pytest.raises(UsageError, match="move together, 4 at a time"):
            group_order([0, 4, 1, 5, 2, 6, 3, 7], site)


def test_weights_of_an_unknown_form() -> None:
    model = family("bert").model()
    with attach(model) as session:
        site = session.sites[0]
        projection = site.module.query
        del site.module.query
        try:
            with pytest.raises(UnsupportedModelError, match="BertSelfAttention keeps the weights of its heads"):
                reorder_heads(model, site, [2, 0, 1])
        finally:
            site.module.query = projection
