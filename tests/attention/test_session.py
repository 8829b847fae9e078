"""What a session promises beyond one family: how gates combine, what observers see, which calls are reached."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from attnprobe.attention import BACKENDS, AttentionCall, attach
from attnprobe.errors import UnsupportedModelError
from tests.attention.attached import Attached, random_gate
from tests.helpers.families import ENCODER, TOKENS, Inputs, family, run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

bert = pytest.mark.parametrize(
    "attached", [pytest.param((family("bert"), backend), id=backend) for backend in BACKENDS], indirect=True
)
BERT_INPUTS: Inputs = family("bert").inputs()


def other_gate(call: AttentionCall) -> Tensor:
    """Another boolean gate."""
    return random_gate(call, seed=31)


def soft_gate(call: AttentionCall) -> Tensor:
    """Factors between 0.5 and 1.5, one a cell."""
    generator = torch.Generator().manual_seed(call.site.index)
    return 0.5 + torch.rand(call.shape, generator=generator)


@bert
def test_boolean_gates_remove_what_any_of_them_removes(attached: Attached) -> None:
    with attached.session.gate(random_gate), attached.session.gate(other_gate):
        both = attached.per_token()
    with attached.session.gate(lambda call: random_gate(call) & other_gate(call)):
        assert_identical(attached.per_token(), both)
    with attached.session.gate(random_gate):
        assert_differs(attached.per_token(), both)


@bert
def test_float_gates_multiply_with_each_other_and_with_booleans(attached: Attached) -> None:
    with attached.session.gate(soft_gate), attached.session.gate(soft_gate), attached.session.gate(random_gate):
        three = attached.per_token()
    with attached.session.gate(lambda call: soft_gate(call).square() * random_gate(call)):
        assert_near(attached.per_token(), three)
    with attached.session.gate(lambda call: soft_gate(call) * random_gate(call)):
        assert_differs(attached.per_token(), three)


@bert
def test_a_gate_of_none_is_all_ones(attached: Attached) -> None:
    with attached.session.gate(lambda _: None):
        assert_identical(attached.per_token(), attached.per_token())
        assert_near(attached.per_token(), attached.own["last_hidden_state"])


@bert
def test_gates_end_with_their_block_even_when_it_raises(attached: Attached) -> None:
    dense = attached.per_token()
    seen: list[Tensor] = []

    def broken_pass() -> None:
        with attached.session.gate(random_gate), attached.session.observe(lambda _, p: seen.append(p)):
            assert_differs(attached.per_token(), dense)
            raise KeyError

    with pytest.raises(KeyError):
        broken_pass()
    assert len(seen) == 3
    assert_identical(attached.per_token(), dense)
    assert len(seen) == 3


@bert
def test_without_renormalising_rows_lose_what_the_gate_takes(attached: Attached) -> None:
    dense = attached.probabilities()[0]
    gates: list[Tensor] = []

    def source(call: AttentionCall) -> Tensor:
        gates.append(soft_gate(call))
        return gates[-1]

    with attached.session.gate(source, renormalise=False):
        plain = attached.probabilities()[0]
        plain_output = attached.per_token()
    assert_near(plain, dense * gates[0])
    with attached.session.gate(source):
        renormalised = attached.probabilities()[0]
        assert_differs(attached.per_token(), plain_output)
    assert_near(renormalised, plain / plain.sum(-1, keepdim=True))
    with attached.session.gate(random_gate, renormalise=False):  # a boolean gate always is
        sums = attached.probabilities()[0].sum(-1).transpose(1, 2)[BERT_INPUTS["attention_mask"].bool()]
    assert_near(sums, torch.ones_like(sums))


@bert
def test_a_mask_with_a_row_a_query_is_a_gate(attached: Attached) -> None:
    """Booleans and integers, (batch, 1, queries, keys), which transformers' eager attention gets wrong."""
    length = BERT_INPUTS["input_ids"].shape[1]
    keep = torch.ones(length, length, dtype=torch.bool).tril(1)
    valid = BERT_INPUTS["attention_mask"].bool()[:, None, None, :] & keep
    with attached.session.gate(lambda _: keep):
        gated = attached.per_token()
    for mask in (valid, valid.long()):
        output = run(attached.model, BERT_INPUTS | {"attention_mask": mask})["last_hidden_state"]
        assert_identical(output[BERT_INPUTS["attention_mask"].bool()], gated)
    assert_differs(gated, attached.own["last_hidden_state"])


@bert
def test_an_observers_probabilities_are_in_the_graph(attached: Attached) -> None:
    """The loss has a derivative for every cell that a query may attend to, at every site."""
    seen: list[Tensor] = []
    with attached.session.observe(lambda _, probabilities: seen.append(probabilities)):
        loss = attached.model(**BERT_INPUTS)["last_hidden_state"][0].square().sum()
    for gradient in torch.autograd.grad(loss, seen):
        assert gradient[0].abs().min() > 0
        assert not gradient[1:].any()  # the other rows of the batch


@pytest.mark.parametrize("backend", BACKENDS)
def test_observers_see_probabilities_before_dropout(backend: str) -> None:
    """In train mode: the model's own eager attention would return them after it, zeroed and scaled."""
    dropout = {"attention_probs_dropout_prob": 0.9, "hidden_dropout_prob": 0.0}
    model = transformers.BertModel(transformers.BertConfig(**ENCODER, **dropout))
    seen: list[Tensor] = []
    with attach(model.eval(), backend=backend) as session:
        dense = run(model, BERT_INPUTS)["last_hidden_state"]
        with session.observe(lambda _, probabilities: seen.append(probabilities)):
            run(model, BERT_INPUTS)
            model.train()
            outputs = [run(model, BERT_INPUTS)["last_hidden_state"] for _ in range(2)]
        unobserved = run(model, BERT_INPUTS)["last_hidden_state"]
    sites = len(session.sites)
    assert len(seen) == 3 * sites
    assert_identical(seen[sites], seen[0])  # the first site: its input is the same in train mode
    for probabilities in seen:
        assert_near(probabilities.sum(-1), torch.ones(probabilities.shape[:3]))
    assert_differs(outputs[0], dense)
    assert_differs(outputs[1], outputs[0])
    assert_differs(unobserved, dense)


def test_a_shared_layer_is_one_module_and_many_sites() -> None:
    """ALBERT: gates tell its applications apart, pass after pass."""
    with attach(family("albert").model()) as session:
        assert session.shared
        assert {site.module for site in session.sites} == {session.sites[0].module}
        assert [site.application for site in session.sites] == [0, 1, 2]
        seen: list[int] = []
        with session.gate(lambda call: seen.append(call.site.application)):
            for _ in range(2):
                run(session.model, BERT_INPUTS)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_after_a_pass_that_broke_off_applications_are_counted_anew() -> None:
    def break_off(call: AttentionCall) -> None:
        if call.site.index == 1:
            raise KeyError

    with attach(family("albert").model()) as session:
        dense = run(session.model, BERT_INPUTS)["last_hidden_state"]
        gated = []
        for _ in range(2):
            with session.gate(lambda call: random_gate(call) if call.site.index == 0 else None):
                gated.append(run(session.model, BERT_INPUTS)["last_hidden_state"])
            with pytest.raises(KeyError), session.gate(break_off):
                run(session.model, BERT_INPUTS)
    assert_identical(gated[1], gated[0])
    assert_differs(gated[0], dense)


def test_a_shared_layer_under_gradient_checkpointing_is_refused_in_train_mode() -> None:
    """transformers itself refuses ALBERT's; here its flag stands for that of any model with shared layers."""
    with attach(family("albert").model()) as session:
        model = session.model
        model.encoder.gradient_checkpointing = True
        assert run(model, BERT_INPUTS)
        model.train()
        with pytest.raises(UnsupportedModelError, match="switch gradient checkpointing off"):
            run(model, BERT_INPUTS)
        model.encoder.gradient_checkpointing = False
        assert run(model, BERT_INPUTS)


@pytest.mark.parametrize("name", ["distilbert", "llama-8/2"])
def test_layers_of_their_own_are_recomputed_under_their_gates(name: str) -> None:
    """Gradient checkpointing calls every site twice, the second time in reverse order: the gradients are the same."""
    row = family(name)
    gradients, calls = [], []
    for checkpointing in (False, True):
        model = row.model().train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        seen: list[int] = []

        def gate(call: AttentionCall, seen: list[int] = seen) -> Tensor:
            seen.append(call.site.index)
            return random_gate(call)

        with attach(model) as session, session.gate(gate):
            if checkpointing:
                _checkpoint_gradients(model)
            model(**row.inputs())[row.output].square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        calls.append(seen)
    assert calls == [[0, 1, 2], [0, 1, 2, 2, 1, 0]]
    for plain, recomputed in zip(*gradients, strict=True):
        assert_near(recomputed, plain)


def _checkpoint_gradients(model: PreTrainedModel) -> None:
    """Under the name that the installed transformers has for it."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_enable")()


def test_gates_reach_an_encoder_decoders_encoder_only() -> None:
    """Its decoder's self-attention and the attention across run ungated, and count as no sites."""
    row = family("bart")
    with attach(row.model()) as session:
        assert all(".encoder." in site.name for site in session.sites)
        seen: list[int] = []

        def close_none(call: AttentionCall) -> Tensor:
            seen.append(call.site.index)
            return torch.ones(call.shape, dtype=torch.bool)

        with session.gate(close_none):
            run(session.model, row.inputs())
        assert seen == [0, 1, 2]


def test_a_long_batch_is_not_bound_to_the_length_that_found_the_sites() -> None:
    row = family("t5-encoder")
    inputs = row.inputs(rows=(29, 11))
    model = row.model()
    model.set_attn_implementation("eager")
    own = run(model, inputs)[row.output]
    with attach(model) as session:
        assert_identical(run(model, inputs)[row.output], own)
        with session.gate(random_gate):
            assert_differs(run(model, inputs)[row.output], own)


def test_sites_of_a_model_that_pads_with_no_token_are_found() -> None:
    """GPT-2 as it is saved: no padding id."""
    config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=3, **{**TOKENS, "pad_token_id": None})
    with attach(transformers.GPT2LMHeadModel(config).eval()) as session:
        assert len(session.sites) == 2
