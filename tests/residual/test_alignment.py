"""Alignment of heads: likeness by hand, the assignment against all permutations, what is found, what is refused."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnprobe.attention import AttentionCall, Site, attach
from attnprobe.errors import UnsupportedModelError
from attnprobe.residual.alignment import align, collect, matched
from attnprobe.residual.heads import reorder_heads
from tests.helpers.families import Family, family, run
from tests.helpers.tolerance import assert_identical, assert_near
from tests.residual.test_heads import shuffled


def site(heads: int, kv_heads: int) -> Site:
    return Site(
        index=1,
        name="",
        module=torch.nn.Identity(),
        application=0,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=2,
        causal=False,
    )


def by_hand(of: Family) -> NDArray[np.float64]:
    """Correlations from every single score, valid cells alone."""
    model, inputs = of.model(torch.float64), of.inputs()
    scores: list[Tensor] = []
    valid: list[Tensor] = []

    def note(call: AttentionCall, given: Tensor) -> Tensor:
        scores.append(given.clone())
        valid.append(call.valid.expand(given.shape))
        return given

    with attach(model) as session, session.carry(note):
        run(model, inputs)
    rows: list[list[list[float]]] = [[[] for _ in range(of.heads)] for _ in scores]
    for number, (given, seen) in enumerate(zip(scores, valid, strict=True)):
        for head in range(of.heads):
            for b in range(given.shape[0]):
                for i in range(given.shape[2]):
                    row = given[b, head, i][seen[b, head, i]]
                    if len(row):
                        rows[number][head] += (row - row.mean()).tolist()
    c = np.array(rows)
    return np.array(
        [[[a @ b / np.sqrt((a @ a) * (b @ b)) for b in above] for a in below] for below, above in pairwise(c)]
    )


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_likeness_is_the_correlation_of_all_valid_scores(name: str) -> None:
    of = family(name)
    model = of.model(torch.float64)
    inputs = of.inputs()
    with attach(model) as session:
        found = collect(session, [inputs])
        again = collect(session, [{key: tensor[row : row + 1] for key, tensor in inputs.items()} for row in range(3)])
    np.testing.assert_allclose(found, by_hand(of), atol=1e-5)
    np.testing.assert_allclose(again, found, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 5), (6, 2), (6, 3), (4, 1)])
def test_the_assignment_is_the_best_of_all(heads: int, kv_heads: int) -> None:
    likeness = np.random.default_rng(heads).normal(size=(heads, heads))
    size = heads // kv_heads
    allowed = [
        order
        for order in permutations(range(heads))
        if all(order[at] // size == order[at - at % size] // size for at in range(heads))
    ]
    best = max(allowed, key=lambda order: likeness[range(heads), order].sum())
    assert matched(likeness, site(heads, kv_heads)) == list(best)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-8/2"])
def test_layers_that_are_one_but_for_their_order_are_put_in_order(name: str) -> None:
    """All layers get the first one's attention weights, each in another order: alignment finds more likeness."""
    of = family(name)
    model, inputs = of.model(torch.float64), of.inputs()
    with attach(model) as session:
        first, *others = session.sites
        for other in others:
            other.module.load_state_dict(first.module.state_dict())
        plain = run(model, inputs)[of.output]
        for turns, other in enumerate(others, 1):
            for _ in range(turns):
                reorder_heads(model, other, shuffled(of.heads, of.kv_heads))
        found = align(session, [inputs])
        aligned = run(model, inputs)[of.output]
        again = collect(session, [inputs])
    assert_near(aligned, plain)
    own = np.arange(of.heads)
    np.testing.assert_allclose(again[:, own, own].mean(1), found.after, atol=1e-6)
    assert (found.after >= found.before).all()
    assert (found.after > found.before + 0.01).any()
    assert found.orders[0].tolist() == list(range(of.heads))


def test_shared_layers_are_aligned_already() -> None:
    of = family("albert")
    with attach(of.model()) as session, pytest.raises(UnsupportedModelError, match="one order already"):
        align(session, [of.inputs()])


def test_heads_with_a_place_stay_where_they_are() -> None:
    of = family("t5-encoder")
    model = of.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with attach(model) as session, pytest.raises(UnsupportedModelError, match="position biases by head"):
        align(session, [of.inputs()])
    for name, tensor in model.state_dict().items():
        assert_identical(tensor, before[name])
