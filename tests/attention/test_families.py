"""The family matrix: what must hold for every family, whatever it reads, under each backend."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attnprobe.attention import BACKENDS, AttentionCall, attach
from tests.attention.attached import Attached, random_gate, without_padding
from tests.helpers.families import FAMILIES, Family, run
from tests.helpers.tolerance import TOLERANCE, assert_differs, assert_identical, assert_near

MATRIX = [pytest.param((family, backend), id=f"{family.name}-{backend}") for family in FAMILIES for backend in BACKENDS]
each_backend = pytest.mark.parametrize("attached", MATRIX, indirect=True)
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_backend
def test_gives_what_the_models_own_eager_attention_gives(attached: Attached) -> None:
    outputs = attached.outputs()
    assert outputs.keys() == attached.own.keys()
    for name, expected in attached.own.items():
        if attached.session.backend == "eager":
            assert_identical(outputs[name], expected)
        else:
            assert_near(outputs[name], expected)


@each_backend
def test_sites_are_numbered_by_depth_and_know_their_heads(attached: Attached) -> None:
    sites, family = attached.session.sites, attached.family
    assert [site.index for site in sites] == list(range(family.sites))
    assert {(site.heads, site.kv_heads, site.causal) for site in sites} == {
        (family.heads, family.kv_heads, family.causal)
    }
    modules = dict(attached.model.named_modules())
    assert all(modules[site.name] is site.module for site in sites)


@each_backend
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=["bool", "float"])
def test_a_gate_of_ones_is_the_checkpoint(attached: Attached, dtype: torch.dtype) -> None:
    with attached.session.gate(lambda call: torch.ones(call.shape, dtype=dtype)):
        outputs = attached.outputs()
    for name, expected in attached.own.items():
        assert_near(outputs[name], expected)


@each_backend
def test_closing_any_one_head_changes_the_output(attached: Attached) -> None:
    dense = attached.per_token()
    closed = []
    for site in attached.session.sites:
        for head in range(site.heads):
            with attached.session.gate(lambda call, at=(site.index, head): _without_head(call, *at)):  # type: ignore[misc]
                closed.append(attached.per_token())
            assert_differs(closed[-1], dense)
    for one, other in pairwise(closed):
        assert_differs(one, other)


@each_backend
def test_a_gate_acts_on_its_site_and_what_is_above(attached: Attached) -> None:
    """Closing head 1 of site 1: its own probabilities and all of site 2 differ, nothing else does."""
    dense = attached.probabilities()
    with attached.session.gate(lambda call: _without_head(call, 1, 1)):
        gated = attached.probabilities()
    assert_identical(gated[0], dense[0])
    others = [head for head in range(attached.family.heads) if head != 1]
    assert_identical(gated[1][:, others], dense[1][:, others])
    assert not gated[1][:, 1].any()
    assert_differs(gated[2], dense[2])


@each_backend
def test_a_boolean_gate_equals_the_same_gate_in_floats(attached: Attached) -> None:
    with attached.session.gate(random_gate):
        hard = attached.per_token()
    with attached.session.gate(lambda call: random_gate(call).float()):
        soft = attached.per_token()
    assert_near(soft, hard)
    assert_differs(hard, attached.own[attached.family.output])


@each_backend
def test_probabilities_are_shown_of_valid_cells_only_and_sum_to_one(attached: Attached) -> None:
    padded = attached.inputs.get("attention_mask")
    for probabilities in attached.probabilities():
        queries = probabilities.shape[2]
        closed = torch.zeros(queries, queries, dtype=torch.bool)
        if attached.family.causal:
            closed = closed | torch.ones_like(closed).triu(1)
        real = torch.ones(len(probabilities), queries, dtype=torch.bool) if padded is None else padded.bool()
        closed = closed | ~real[:, None, None, :]
        assert not probabilities.masked_select(closed).any()
        sums = probabilities.sum(-1).transpose(1, 2)[real]
        assert_near(sums, torch.ones_like(sums))
        assert probabilities.max() > 2 * probabilities.mean()  # far from uniform, so that the tests can fail


@each_backend
def test_a_closed_row_gives_no_nan_forward_or_backward(attached: Attached) -> None:
    """Query 1 sees nothing, at every site: as booleans, and as floats that ask for a gradient."""
    soft = torch.ones(attached.family.heads, 1, 1, requires_grad=True)

    def close(call: AttentionCall) -> Tensor:
        return _without_row(call, 1)

    def close_softly(call: AttentionCall) -> Tensor:
        return soft * _without_row(call, 1).float()

    for source in (close, close_softly):
        attached.model.zero_grad()
        with attached.session.gate(source):
            output = attached.model(**attached.inputs)[attached.family.output]
        assert output.isfinite().all()
        output.square().sum().backward()
        gradients = [p.grad for p in attached.model.parameters() if p.grad is not None]
        assert gradients
        assert all(gradient.isfinite().all() for gradient in gradients)
    attached.model.zero_grad()
    assert soft.grad is not None
    assert soft.grad.isfinite().all()


@each_family
def test_backends_agree_under_a_random_gate(family: Family) -> None:
    model, inputs = family.model(), family.inputs()
    outputs, dense = {}, {}
    for backend in BACKENDS:
        with attach(model, backend=backend) as session:
            dense[backend] = without_padding(run(model, inputs), inputs)
            with session.gate(random_gate):
                outputs[backend] = without_padding(run(model, inputs), inputs)
    for backend in BACKENDS:
        for name, expected in outputs["eager"].items():
            assert_near(outputs[backend][name], expected)
        assert_differs(outputs[backend][family.output], dense[backend][family.output])


@each_family
def test_bfloat16_gives_what_the_models_own_eager_attention_gives(family: Family) -> None:
    """Exactly under eager; within the tolerance of each of its three layers under sdpa, whose order of sums differs."""
    model = family.model(torch.bfloat16)
    inputs = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in family.inputs().items()}
    model.set_attn_implementation("eager")
    own = without_padding(run(model, inputs), inputs)
    for backend in BACKENDS:
        with attach(model, backend=backend) as session:
            outputs = without_padding(run(model, inputs), inputs)
            with session.gate(random_gate):
                gated = without_padding(run(model, inputs), inputs)
        for name, expected in own.items():
            if backend == "eager":
                assert_identical(outputs[name], expected)
            else:
                assert_near(outputs[name], expected, family.sites * TOLERANCE[torch.bfloat16])
        assert outputs[family.output].dtype == torch.bfloat16
        assert_differs(gated[family.output], own[family.output])


def _without_head(call: AttentionCall, site: int, head: int) -> Tensor | None:
    if call.site.index != site:
        return None
    return (torch.arange(call.shape[1]) != head).reshape(1, -1, 1, 1)


def _without_row(call: AttentionCall, row: int) -> Tensor:
    return (torch.arange(call.shape[2]) != row).reshape(1, 1, -1, 1)
