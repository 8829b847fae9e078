"""Passes resumed at a site: bit for bit the whole pass, for every family that has blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnprobe.attention import BACKENDS, AttentionCall, Site
from attnprobe.attention.blocks import find_blocks
from tests.attention.attached import Attached, random_gate
from tests.helpers.families import FAMILIES, run
from tests.helpers.tolerance import assert_differs, assert_identical

each_backend = pytest.mark.parametrize(
    "attached",
    [pytest.param((family, backend), id=f"{family.name}-{backend}") for family in FAMILIES for backend in BACKENDS],
    indirect=True,
)


@each_backend
def test_a_resumed_pass_is_the_whole_pass(attached: Attached) -> None:
    """With a gate at the site where it resumes, for every site; and nothing below is computed again."""
    model, inputs, blocks = attached.model, attached.inputs, attached.session.blocks
    assert (blocks is not None) == attached.family.blocks
    if blocks is None:
        return
    assert list(blocks.of_site) == list(range(attached.family.sites))
    with blocks.recorded() as states:
        dense = run(model, inputs)
    assert len(states) == len(blocks.modules)
    for site in range(attached.family.sites):
        computed: list[int] = []

        def gate(call: AttentionCall, site: int = site, computed: list[int] = computed) -> Tensor | None:
            computed.append(call.site.index)
            return random_gate(call) if call.site.index == site else None

        with attached.session.gate(gate):
            whole = run(model, inputs)
            computed.clear()
            with blocks.resumed(site, states):
                resumed = run(model, inputs)
        assert computed == list(range(site, attached.family.sites))
        for name, expected in whole.items():
            assert_identical(resumed[name], expected)
        assert_differs(resumed[attached.family.output], dense[attached.family.output])
    for name, output in run(model, inputs).items():
        assert_identical(output, dense[name])


def _model(**lists: int) -> nn.Module:
    """A module with named lists of layers, each of which holds an ``attention``."""
    model = nn.Module()
    for name, number in lists.items():
        layers = [nn.Module() for _ in range(number)]
        for layer in layers:
            layer.add_module("attention", nn.Identity())
        model.add_module(name, nn.ModuleList(layers))
    return model


def _sites(model: nn.Module, *names: str) -> list[Site]:
    return [
        Site(
            index=index,
            name=name,
            module=model.get_submodule(name),
            application=0,
            heads=1,
            kv_heads=1,
            head_dim=1,
            causal=False,
        )
        for index, name in enumerate(names)
    ]


def test_blocks_are_the_items_of_the_one_list_that_holds_every_site() -> None:
    model = _model(layers=3)
    blocks = find_blocks(model, _sites(model, *(f"layers.{i}.attention" for i in range(3))))
    assert blocks is not None
    assert blocks.modules == tuple(model.get_submodule("layers").children())
    assert blocks.of_site == (0, 1, 2)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("first.0.attention", "second.0.attention"), id="two lists"),
        pytest.param(("second.0.attention", "second.0.attention"), id="shared module"),
        pytest.param(("first.0.attention",), id="a block without a site"),
        pytest.param(("first.1.attention", "first.0.attention"), id="not in order"),
        pytest.param(("alone",), id="no list"),
    ],
)
def test_there_are_none_where_layers_have_another_form(names: tuple[str, ...]) -> None:
    model = _model(first=2, second=1)
    model.add_module("alone", nn.Linear(2, 2, dtype=torch.float32))
    assert find_blocks(model, _sites(model, *names)) is None
