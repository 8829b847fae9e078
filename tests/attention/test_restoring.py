"""On leaving, a model is bit for bit what it was: its weights, its modes, its configurations, its hooks."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from attnprobe.attention import BACKENDS, attach, find_sites
from attnprobe.errors import UsageError
from tests.attention.attached import random_gate
from tests.attention.snapshot import assert_unchanged, hooks, snapshot
from tests.helpers.families import FAMILIES, Family, family, run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
@pytest.mark.parametrize("raising", [False, True], ids=["left", "raised"])
def test_everything_is_restored(family: Family, raising: bool) -> None:
    """After gates, observers, reused blocks and a backward pass; also when the body raises amid them."""
    model, inputs = family.model(), family.inputs()
    own = run(model, inputs)
    model.train()
    frozen, mode = list(model.parameters())[::2], list(model.modules())[::3]
    for parameter in frozen:
        parameter.requires_grad_(False)
    for module in mode:
        module.training = False
    before = snapshot(model)
    implementation = model.config._attn_implementation
    for backend in BACKENDS:
        try:
            with attach(model, backend=backend) as session:
                assert model.config._attn_implementation != implementation
                assert hooks(model) > 0
                with session.gate(random_gate), session.observe(lambda *_: None):
                    assert_differs(run(model, inputs)[family.output], own[family.output])
                    if session.blocks is not None:
                        with session.blocks.recorded() as states:
                            run(model, inputs)
                        with session.blocks.resumed(1, states):
                            run(model, inputs)
                            _raise_if(raising)
                    _raise_if(raising)
        except KeyError:
            assert raising
        assert_unchanged(model, before)
    model.eval()
    for name, output in run(model, inputs).items():
        assert_identical(output, own[name])


def test_a_snapshot_notices_changes() -> None:
    """Or else it would prove nothing."""
    for change in (
        lambda model: model.pooler.eval(),
        lambda model: model.pooler.requires_grad_(False),
        lambda model: model.pooler.dense.bias.data.add_(1),
        lambda model: setattr(model.config, "_attn_implementation_internal", "sdpa_paged"),
        lambda model: model.pooler.register_forward_hook(lambda *_: None),
        lambda model: setattr(model.pooler, "forward", lambda *_: None),
        lambda model: setattr(model.pooler, "activation", torch.nn.ReLU()),
    ):
        model = family("bert").model().train()
        before = snapshot(model)
        assert_unchanged(model, before)
        change(model)
        with pytest.raises(AssertionError):
            assert_unchanged(model, before)


def test_find_sites_leaves_the_model_detached() -> None:
    model = family("bert").model()
    before = snapshot(model)
    assert len(find_sites(model)) == 3
    assert_unchanged(model, before)


def test_a_forward_of_an_instances_own_is_put_back() -> None:
    """Accelerate's hooks replace ``forward`` on the instance."""
    model, inputs = family("bert").model(), family("bert").inputs()
    layer = model.encoder.layer[0]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    before = snapshot(model)
    with attach(model) as session:
        assert session.blocks is not None
        with session.blocks.recorded() as states:
            run(model, inputs)
        with session.blocks.resumed(2, states):
            assert snapshot(model).modules != before.modules
            run(model, inputs)
    assert_unchanged(model, before)


def test_attaching_again_or_within_is_refused_and_harmless() -> None:
    model = family("bert").model()
    before = snapshot(model)
    with attach(model):
        for part in (model, model.encoder.layer[0]):
            with pytest.raises(UsageError, match="attached already; leave the first `attach` before the second"):
                attach(part).__enter__()
        assert run(model, family("bert").inputs())
    assert_unchanged(model, before)
    with attach(model, backend="sdpa") as session:
        assert len(session.sites) == 3


def test_two_models_can_be_attached_at_once() -> None:
    one, other = family("bert").model(), family("gpt2").model()
    with attach(one) as first, attach(other) as second:
        with first.gate(random_gate):
            gated = run(other, family("gpt2").inputs())
        assert {site.module for site in first.sites}.isdisjoint(site.module for site in second.sites)
    assert_near(gated["logits"], run(other, family("gpt2").inputs())["logits"])


def test_a_copy_made_inside_has_to_be_attached_itself() -> None:
    """A copy's modules are known to no session: an error, and never a pass without control."""
    model = family("bert").model()
    with attach(model):
        twin = copy.deepcopy(model)
        with pytest.raises(NotImplementedError, match="outside of an attached model"):
            run(twin, family("bert").inputs())


def test_an_unknown_backend_is_refused() -> None:
    model = family("bert").model()
    with pytest.raises(UsageError, match="backend must be one of eager, sdpa, not 'flash'"):
        attach(model, backend="flash").__enter__()


def test_importing_registers_nothing_with_transformers() -> None:
    """In a fresh interpreter, since attaching, which other tests do, registers the function under its name."""
    program = """
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
tables = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)
before = [dict(table.items()) for table in tables]
import attnprobe.attention
assert [dict(table.items()) for table in tables] == before and "attnprobe" not in before[0]
attnprobe.attention.session.switched
import transformers, torch
with attnprobe.attention.attach(transformers.BertModel(transformers.BertConfig(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=11))):
    assert all("attnprobe" in table.keys() for table in tables)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


def _raise_if(raising: bool) -> None:
    if raising:
        raise KeyError
