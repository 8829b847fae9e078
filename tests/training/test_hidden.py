"""How far the states that a model hands to its head are from another's."""

from __future__ import annotations

import torch

from attnprobe.training.hidden import LastStates, hidden_distance
from tests.helpers.probing import batch_of, tiny_bert
from tests.helpers.tolerance import assert_identical, assert_near


def test_the_distance_is_relative_and_knows_no_padding() -> None:
    ours = torch.tensor([[[3.0, 1.0], [0.0, 2.0], [9.0, 9.0]]], dtype=torch.float64, requires_grad=True)
    dense = torch.tensor([[[1.0, 1.0], [0.0, 4.0], [7.0, 7.0]]], dtype=torch.float64, requires_grad=True)
    found = hidden_distance(ours, dense, torch.tensor([[1, 1, 0]]))
    assert_near(found.detach(), torch.tensor((4.0 + 4.0) / (2.0 + 16.0), dtype=torch.float64))
    found.backward()
    assert dense.grad is None
    assert ours.grad is not None
    assert_near(ours.grad, 2 * torch.tensor([[[2.0, 0.0], [0.0, -2.0], [0.0, 0.0]]], dtype=torch.float64) / 18)


def test_half_precision_is_compared_in_single() -> None:
    states = torch.full((1, 2, 2), 300.0, dtype=torch.float16)
    assert float(hidden_distance(states, states + 1, torch.ones(1, 2))) > 0


def test_the_states_are_those_before_the_head() -> None:
    model, inputs = tiny_bert(), batch_of().inputs
    last = LastStates()
    with last.of(model), torch.no_grad():
        model(**inputs)
        assert last.states is not None
        assert_identical(last.states, model.bert(**inputs).last_hidden_state)
    assert last.states is None
