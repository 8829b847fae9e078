"""One attention call of every backend, against the cell-by-cell reference in float64; and rows where nothing is kept.

Sizes are distinct primes as far as groups of heads allow, so that swapped axes fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnprobe.attention import BACKENDS, AttentionCall, Gating, Site
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near
from tests.references.attention import attend

BATCH, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 5, 7, 3, 11
EMPTY = (1, 3)
"""(row of the batch, query) that no key is valid for."""

each_backend = pytest.mark.parametrize("backend", BACKENDS)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one comparison has beside queries, keys, values and validity."""

    name: str
    heads: int = 3
    kv_heads: int = 3
    bias: bool = False
    softcap: float | None = None
    hard: bool = False
    soft: bool = False
    renormalise: bool = True


CASES = (
    Case(name="plain"),
    Case(name="groups", heads=6, kv_heads=3),
    Case(name="one group", heads=5, kv_heads=1),
    Case(name="bias", bias=True),
    Case(name="softcap", softcap=1.3),
    Case(name="hard gate", hard=True),
    Case(name="soft gate", soft=True),
    Case(name="soft gate, not renormalised", soft=True, renormalise=False),
    Case(name="hard and soft gate", hard=True, soft=True),
    Case(name="hard and soft gate, not renormalised", hard=True, soft=True, renormalise=False),
    Case(name="everything", heads=6, kv_heads=2, bias=True, softcap=1.3, hard=True, soft=True),
)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _draw(case: Case, dtype: torch.dtype = torch.float64) -> tuple[AttentionCall, Gating]:
    """A random call, with one query that has no valid key."""
    generator = torch.Generator().manual_seed(11)
    random = partial(torch.randn, generator=generator, dtype=torch.float64)
    uniform = partial(torch.rand, generator=generator, dtype=torch.float64)
    valid = uniform(BATCH, 1, QUERIES, KEYS) < 0.7
    valid[..., 0] = True
    valid[EMPTY[0], :, EMPTY[1]] = False
    site = Site(
        index=0,
        name="",
        module=nn.Identity(),
        application=0,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=HEAD_DIM,
        causal=False,
    )
    call = AttentionCall(
        site=site,
        query=random(BATCH, case.heads, QUERIES, HEAD_DIM).to(dtype),
        key=random(BATCH, case.kv_heads, KEYS, HEAD_DIM).to(dtype),
        value=random(BATCH, case.kv_heads, KEYS, VALUE_DIM).to(dtype),
        valid=valid,
        scaling=0.37,
        bias=random(1, case.heads, QUERIES, KEYS).to(dtype) if case.bias else None,
        softcap=case.softcap,
        dropout=0.0,
    )
    gating = Gating(
        closed_or_open=uniform(BATCH, case.heads, QUERIES, KEYS) < 0.6 if case.hard else None,
        soft=(uniform(BATCH, case.heads, 1, KEYS) - 0.2).clamp_min(0).to(dtype) if case.soft else None,
        renormalise=case.renormalise,
    )
    return call, gating


def _reference(call: AttentionCall, gating: Gating) -> tuple[Tensor, Tensor]:
    hard, soft = gating.closed_or_open, gating.soft
    return attend(
        call.query,
        call.key,
        call.value,
        scaling=call.scaling,
        keep=(call.valid if hard is None else call.valid & hard).expand(call.shape),
        gate=None if soft is None else soft.expand(call.shape),
        renormalise=gating.renormalise,
        bias=None if call.bias is None else call.bias.expand(call.shape),
        softcap=call.softcap,
    )


@each_backend
@each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_outputs_are_the_references(backend: str, case: Case, dtype: torch.dtype) -> None:
    call, gating = _draw(case, dtype)
    expected, _ = _reference(call, gating)
    output, _ = BACKENDS[backend](call, gating, [])
    assert output.dtype == dtype
    assert_near(output, expected)
    assert not output[EMPTY[0], :, EMPTY[1]].any()
    assert_differs(output.flip(1), expected)


@each_backend
@each_case
def test_observers_are_shown_the_references_probabilities(backend: str, case: Case) -> None:
    """And a backend that forms none gives the same output for them."""
    call, gating = _draw(case)
    expected, probabilities = _reference(call, gating)
    seen: list[tuple[AttentionCall, Tensor]] = []
    output, _ = BACKENDS[backend](call, gating, [lambda *shown: seen.append(shown)])
    [(shown_call, shown)] = seen
    assert shown_call is call
    assert_near(shown, probabilities)
    assert_near(output, expected)


@each_case
def test_each_part_of_a_case_matters(case: Case) -> None:
    """Without it the reference gives something else: the comparisons above can fail."""
    call, gating = _draw(case)
    expected, _ = _reference(call, gating)
    without: dict[str, tuple[AttentionCall, Gating]] = {
        "bias": (replace(call, bias=None), gating),
        "softcap": (replace(call, softcap=None), gating),
        "hard": (call, replace(gating, closed_or_open=None)),
        "soft": (call, replace(gating, soft=None)),
    }
    for part, (other_call, other_gating) in without.items():
        if getattr(case, part):
            assert_differs(_reference(other_call, other_gating)[0], expected)
    if case.soft:
        assert_differs(_reference(call, replace(gating, renormalise=not case.renormalise))[0], expected)


@each_backend
@each_case
def test_gradients_are_those_of_finite_differences(backend: str, case: Case) -> None:
    """Of queries, keys, values and soft gates, in float64; a query without keys among them."""
    call, gating = _draw(case)
    soft = [] if gating.soft is None else [gating.soft + 0.1]  # away from the kink where a whole row is closed

    def compute(query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
        gated = replace(gating, soft=gates[0] if gates else None)
        return BACKENDS[backend](replace(call, query=query, key=key, value=value), gated, [])[0]

    leaves = [x.clone().requires_grad_() for x in (call.query, call.key, call.value, *soft)]
    assert torch.autograd.gradcheck(compute, leaves, fast_mode=True)


@each_backend
@pytest.mark.parametrize("how", ["valid", "hard", "soft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_where_nothing_is_kept_the_output_is_zero_and_gradients_are_finite(
    backend: str, how: str, dtype: torch.dtype
) -> None:
    """All queries of the first row of the batch are closed; values are large, as where gradients overflow."""
    call, _ = _draw(Case(name="plain"), dtype)
    query, key, value = (x.clone().requires_grad_() for x in (call.query, call.key, 30 * call.value))
    call = replace(call, query=query, key=key, value=value)
    kept = torch.ones(BATCH, 1, 1, 1, dtype=torch.bool)
    kept[0] = False
    soft = kept.to(dtype).requires_grad_()
    if how == "valid":
        call, gating = replace(call, valid=call.valid & kept), Gating()
    elif how == "hard":
        gating = Gating(closed_or_open=kept)
    else:
        gating = Gating(soft=soft)
    output, _ = BACKENDS[backend](call, gating, [])
    assert not output[0].any()
    assert output[1].any()
    leaves = [query, key, value, soft] if how == "soft" else [query, key, value]
    gradients = torch.autograd.grad(output.float().square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    for gradient in gradients[:3]:
        assert not gradient[0].any()
        assert gradient[1].any()


@pytest.mark.parametrize("bias", [False, True])
def test_the_fused_kernel_is_never_given_a_row_without_keys(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it answers by NaN or by 0, as the version and the device have it."""
    kernel = functional.scaled_dot_product_attention
    masks: list[Tensor] = []

    def watched(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return kernel(query, key, value, attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    call, gating = _draw(Case(name="hard gate", hard=True, bias=bias))
    BACKENDS["sdpa"](call, gating, [])
    [mask] = masks
    assert (mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1).all()


@each_backend
def test_a_closed_soft_gate_still_has_a_gradient(backend: str) -> None:
    """What closing cells by booleans has not: opening a little would change the output."""
    call, _ = _draw(Case(name="plain"))
    soft = torch.ones(BATCH, 3, QUERIES, KEYS, dtype=torch.float64)
    soft[..., 2] = 0.0
    soft.requires_grad_()
    output, _ = BACKENDS[backend](call, Gating(soft=soft), [])
    [gradient] = torch.autograd.grad(output.sum(), [soft])
    open_to = call.valid.expand(call.shape)[..., 2]
    assert gradient[..., 2][open_to].abs().min() > 0
    assert not gradient[..., 2][~open_to].any()


@each_backend
def test_dropout_is_of_the_weights_not_of_what_is_observed(backend: str) -> None:
    """p = 0 changes nothing, p = 1 leaves nothing, and what is kept at p = 0.5 is doubled."""
    call, _ = _draw(Case(name="plain"))
    dense, _ = BACKENDS[backend](call, Gating(), [])
    seen: list[Tensor] = []
    for p in (0.5, 1.0):
        dropped = replace(call, dropout=p)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            output, _ = BACKENDS[backend](dropped, Gating(), [])
            BACKENDS[backend](dropped, Gating(), [lambda _, shown: seen.append(shown)])
        assert_differs(output, dense)
        assert_near(seen[-1].sum(-1)[1, :, 0], torch.ones(3, dtype=torch.float64))
        assert output.any() == (p < 1)
    identity = torch.eye(KEYS, dtype=torch.float64).expand(BATCH, 3, KEYS, KEYS)
    weights, _ = BACKENDS[backend](replace(call, value=identity, dropout=0.5), Gating(), [])
    undropped, _ = BACKENDS[backend](replace(call, value=identity), Gating(), [])
    kept = weights > 0
    assert 0 < kept.sum() < (undropped > 0).sum()
    assert_near(weights[kept], 2 * undropped[kept])
    assert_identical(undropped > 0, call.valid.expand_as(undropped))
