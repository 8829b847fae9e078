"""The score stream against RealFormer built by hand in float64, over families, paddings, caches and half precision."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnprobe.attention import AttentionCall, AttentionSession, attach
from attnprobe.errors import CheckpointError, UnsupportedModelError, UsageError
from attnprobe.residual.gates import ResidualGates
from attnprobe.residual.stream import VARIANTS, Residual, carried, residual
from tests.helpers.families import FAMILIES, PAD, Family, family, run
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near
from tests.references import realformer

GATES: dict[str, Callable[[int, int], Tensor]] = {
    "all open": lambda sites, heads: torch.ones(sites - 1, heads),
    "by head": lambda sites, heads: torch.linspace(-0.3, 1.2, (sites - 1) * heads).view(sites - 1, heads),
}
every_family = pytest.mark.parametrize("of", FAMILIES, ids=lambda of: of.name)
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def by_head(session: AttentionSession) -> Callable[[], Tensor]:
    """Gates that all differ."""
    return lambda: GATES["by head"](len(session.sites), session.sites[0].heads)


@every_variant
@pytest.mark.parametrize("gates", GATES)
def test_bert_is_the_one_built_by_hand(variant: str, gates: str) -> None:
    of = family("bert")
    model, inputs = of.model(torch.float64), of.inputs()
    inputs.pop("position_ids")
    g = GATES[gates](of.sites, of.heads)
    weights = realformer.weights_of(model)
    ids, mask = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy()
    expected = torch.from_numpy(
        realformer.bert(weights, ids, mask, heads=of.heads, gates=g.double().numpy(), variant=variant)
    )
    with attach(model) as session, residual(session, Residual(variant=variant, gates=g)):
        found = of.per_token(model, inputs)
    real = inputs["attention_mask"].bool()
    assert_near(found[real], expected[real])
    assert_differs(of.per_token(model, inputs)[real], expected[real])


@every_variant
@pytest.mark.parametrize("gates", GATES)
def test_gpt2_is_the_one_built_by_hand(variant: str, gates: str) -> None:
    """In one pass, and token by token with a cache."""
    of = family("gpt2")
    model = of.model(torch.float64)
    ids = of.inputs()["input_ids"][:1]
    g = GATES[gates](of.sites, of.heads)
    expected = torch.from_numpy(
        realformer.gpt2(
            realformer.weights_of(model), ids[0].numpy(), heads=of.heads, gates=g.double().numpy(), variant=variant
        )
    )
    with attach(model) as session, residual(session, Residual(variant=variant, gates=g)), torch.no_grad():
        whole = model(input_ids=ids).logits[0]
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        cache, steps = None, []
        for token in ids[0]:
            output = model(input_ids=token.view(1, 1), **{name: cache}, use_cache=True)
            cache = output.past_key_values
            steps.append(output.logits[0, -1])
    assert_near(whole, expected)
    assert_near(torch.stack(steps), expected)


@every_family
@every_variant
def test_gates_of_zero_are_the_checkpoint_bit_for_bit(of: Family, variant: str) -> None:
    model, inputs = of.model(), of.inputs()
    with attach(model) as session:
        plain = of.per_token(model, inputs)
        gates = ResidualGates(sites=len(session.sites), heads=session.sites[0].heads)
        with carried(session, variant, gates.effective):
            assert_identical(of.per_token(model, inputs), plain)
        with carried(session, variant, by_head(session)):
            assert_differs(of.per_token(model, inputs), plain)
        assert_identical(of.per_token(model, inputs), plain)


@every_family
def test_rows_of_a_batch_are_the_rows_one_by_one(of: Family) -> None:
    if of.pixels:
        pytest.skip("images have no padding")
    model, inputs = of.model(), of.inputs()
    with attach(model) as session, carried(session, "sum", by_head(session)):
        together = of.per_token(model, inputs)
        for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
            alone = of.per_token(model, of.inputs(rows=(length,), first=row))
            assert_near(together[row, :length], alone[0], 1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama-8/2"])
def test_padding_sides_agree(name: str) -> None:
    of = family(name)
    model, right, left = of.model(), of.inputs(), of.inputs("left")
    with attach(model) as session, carried(session, "mean", by_head(session)):
        on_right, on_left = of.per_token(model, right), of.per_token(model, left)
    assert_near(on_left[left["attention_mask"].bool()], on_right[right["attention_mask"].bool()], 1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama-8/2", "qwen2"])
def test_generation_with_a_cache_is_the_one_without(name: str) -> None:
    of = family(name)
    model, inputs = of.model(), of.inputs("left")
    asked = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": PAD, "eos_token_id": None}
    with attach(model) as session, carried(session, "sum", lambda: GATES["all open"](of.sites, of.heads)):
        cached, whole = (
            model.generate(
                **asked,
                **options,
                use_cache=use_cache,
                output_logits=True,
                return_dict_in_generate=True,
            )
            for use_cache in (True, False)
        )
    assert_identical(cached.sequences, whole.sequences)
    assert_near(torch.stack(cached.logits), torch.stack(whole.logits), 1e-5)


@every_variant
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_has_numbers_everywhere(variant: str, dtype: torch.dtype) -> None:
    """With padding, rows that see nothing, and scores far beyond what half precision could add up."""
    of = family("bert")
    inputs = of.inputs("left")
    inputs["attention_mask"][2] = 0
    expected, found = (_pushed(of, inputs, of_type, variant) for of_type in (torch.float32, dtype))
    assert found.isfinite().all()
    real = inputs["attention_mask"].bool()
    assert_near(found[real], expected[real], 0.1)


def _pushed(of: Family, inputs: dict[str, Tensor], dtype: torch.dtype, variant: str) -> Tensor:
    model = of.model(dtype)
    gates = torch.full((of.sites - 1, of.heads), 1.0)
    with attach(model) as session, residual(session, Residual(variant=variant, gates=gates)):
        return of.per_token(model, inputs).float()


def test_half_precision_scores_add_up_in_float32() -> None:
    of = family("bert")
    model, inputs, seen = of.model(torch.bfloat16), of.inputs(), []

    class Spy:
        """Adds up, and looks."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __call__(self, call: AttentionCall, scores: Tensor) -> Tensor:
            counted: Tensor = self.inner(call, scores)
            seen.append((scores.dtype, counted.dtype))
            return counted

    from attnprobe.residual.stream import Stream

    with attach(model) as session, session.carry(Spy(Stream("sum", by_head(session)))):
        of.per_token(model, inputs)
    assert seen == [(torch.bfloat16, torch.float32)] * of.sites


def test_gradients_reach_gates_and_the_scores_below() -> None:
    """Against finite differences in float64."""
    of = family("bert")
    model, inputs = of.model(torch.float64), of.inputs()
    direction = torch.randn(of.per_token(model, inputs).shape, generator=torch.Generator().manual_seed(1)).double()
    gates = GATES["by head"](of.sites, of.heads).double().requires_grad_()
    weight = dict(model.named_parameters())["encoder.layer.0.attention.self.query.weight"]

    def loss() -> Tensor:
        output: Tensor = model(**inputs).last_hidden_state
        return (output * direction * inputs["attention_mask"].unsqueeze(2)).sum()

    for variant in VARIANTS:
        with attach(model) as session, carried(session, variant, lambda: gates):
            gates.grad = weight.grad = None
            loss().backward()
            for parameter, place in ((gates, (1, 2)), (gates, (0, 0)), (weight, (3, 5))):
                assert parameter.grad is not None
                assert float(parameter.grad[place]) == pytest.approx(_slope(loss, parameter, place), rel=1e-5)


def _slope(loss: Callable[[], Tensor], parameter: Tensor, place: tuple[int, int], step: float = 1e-5) -> float:
    values = []
    with torch.no_grad():
        for change in (step, -2 * step):
            parameter[place] += change
            values.append(float(loss()))
        parameter[place] += step
    return (values[0] - values[1]) / (2 * step)


def test_gates_and_probes_work_beside_it() -> None:
    """Closing cells changes no score that is handed on, and observers see the residual model's probabilities."""
    of = family("bert")
    model, inputs = of.model(), of.inputs()
    with attach(model) as session, carried(session, "sum", by_head(session)):
        rows: list[Tensor] = []
        with session.observe(lambda _, probabilities: rows.append(probabilities)):
            whole = run(model, inputs)["last_hidden_state"]
        assert len(rows) == of.sites
        sums = torch.stack(rows).sum(-1)
        assert_near(sums, torch.ones_like(sums), 1e-5)
        with session.gate(lambda call: call.query.new_ones(call.shape)):
            assert_near(run(model, inputs)["last_hidden_state"], whole)


def test_there_are_no_blocks_meanwhile() -> None:
    of = family("bert")
    with attach(of.model()) as session:
        blocks = session.blocks
        assert blocks is not None
        with carried(session, "sum", by_head(session)):
            assert session.blocks is None
        assert session.blocks is blocks


def test_a_second_stream_is_refused() -> None:
    refused = pytest.raises(UsageError, match="the model's attention is residual already")
    with attach(family("bert").model()) as session, carried(session, "sum", by_head(session)), refused:
        session.carry(lambda _, scores: scores).__enter__()


def test_gradient_checkpointing_is_refused_in_training_alone() -> None:
    of = family("bert")
    model, inputs = of.model(), of.inputs()
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_enable")()
    with attach(model) as session, carried(session, "sum", by_head(session)):
        assert run(model.eval(), inputs)["last_hidden_state"].isfinite().all()
        with pytest.raises(UnsupportedModelError, match="switch gradient checkpointing off"):
            model.train()(**inputs)


def test_one_site_is_too_few() -> None:
    import transformers

    from tests.helpers.families import ENCODER

    model = transformers.BertModel(transformers.BertConfig(**{**ENCODER, "num_hidden_layers": 1})).eval()
    with attach(model) as session, pytest.raises(UnsupportedModelError, match="the model has one"):
        carried(session, "sum", lambda: torch.ones(0, 3)).__enter__()


def test_gates_of_another_model_are_refused() -> None:
    with attach(family("bert").model()) as session, pytest.raises(CheckpointError) as caught:
        residual(session, Residual(variant="sum", gates=torch.ones(5, 2))).__enter__()
    assert str(caught.value) == (
        "the residual attention is for 6 sites of 2 heads, the model has 3 of 3: it belongs to another model"
    )


def test_a_window_in_the_cache_is_refused() -> None:
    """Layers that keep fewer keys than others can't take in their scores."""
    of = family("gemma2")
    model = of.model()
    ids = of.inputs(rows=(7,))["input_ids"]
    window = model.config.sliding_window
    asked: dict[str, Any] = {"max_new_tokens": window + 2, "do_sample": False, "eos_token_id": None}
    refused = pytest.raises(UnsupportedModelError, match="all see the same queries and keys")
    with attach(model) as session, carried(session, "sum", by_head(session)), refused:
        model.generate(ids, pad_token_id=PAD, **asked)


def test_descriptions_go_there_and_back() -> None:
    gates = GATES["by head"](4, 3)
    again = Residual.of(Residual(variant="mean", gates=gates).describe())
    assert again.variant == "mean"
    assert_identical(again.gates, gates)
    assert not again.canonical
    assert Residual(variant="sum", gates=torch.ones(2, 2)).canonical


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"variant": "sum"},
        {"variant": "product", "gates": [[1.0]]},
        {"variant": "sum", "gates": [1.0, 2.0]},
        {"variant": "sum", "gates": [[float("nan")]]},
        {"variant": "sum", "gates": "ones"},
    ],
)
def test_malformed_descriptions(description: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="its residual attention is malformed"):
        Residual.of(description)


def test_numpy_and_torch_agree_on_a_row() -> None:
    """By hand: sum 0.5 + 0.25 * 4 = 1.5; mean 1.5 / (1 + 0.25 * 2) = 1."""
    for variant, expected in (("sum", 1.5), ("mean", 1.0)):
        seen, total, count = realformer.residual_row(np.array([0.5]), np.array([4.0]), 0.25, 2.0, variant)
        assert (float(seen[0]), float(total[0]), count) == (expected, 1.5, 1.5)
