"""Masks in a running model: the same as taking the cells away, whoever calls it, and nothing left behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnprobe.attention import AttentionCall, AttentionSession, attach
from attnprobe.errors import CheckpointError, DataError, UnsupportedModelError
from attnprobe.export.attaching import attached
from attnprobe.export.format import Applied
from attnprobe.masks.applying import PassReader, applied, of_queries
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask, Mask, PatternMask
from attnprobe.masks.tokens import TokenRules
from tests.helpers import families
from tests.helpers.families import family
from tests.helpers.probing import CLS, HEADS, ROWS, SEP, SITES, batch_of, tiny_bert
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near
from tests.importance.setting import reference
from tests.references.attention import attend

RULES = TokenRules(cls_id=CLS, sep_id=SEP, causal=False)
OFFSET = Granularity(name="offset", length=7, segment_aware=True)
STAR = PatternMask(name="star", parameters={"reach": 0}, diagonal="drop")
FAMILY_RULES = TokenRules(cls_id=families.CLS, sep_id=families.SEP, causal=False)
CAUSAL = TokenRules(cls_id=None, sep_id=None, causal=True)


def random_mask(granularity: Granularity = OFFSET, *, sites: int = SITES, heads: int = HEADS) -> GateMask:
    gates = torch.rand(sites, heads, granularity.gates, generator=torch.Generator().manual_seed(1)) < 0.5
    return GateMask(granularity=granularity, gates=gates)


def all_open(granularity: Granularity = OFFSET) -> GateMask:
    return replace(random_mask(granularity), gates=torch.ones(SITES, HEADS, granularity.gates, dtype=torch.bool))


def removed(mask: Mask) -> list[list[tuple[int, int, int, int]]]:
    """The places (site, head, query, key) that a mask takes from each row of the tiny batch."""
    inputs = batch_of().inputs
    at = RULES.positions(inputs["input_ids"], inputs["attention_mask"])
    keep = torch.stack([mask.keep(at, site).expand(-1, HEADS, -1, -1) for site in range(SITES)])
    return [
        [(s, h, i, j) for s, h, i, j in (~keep[:, number]).nonzero().tolist() if max(i, j) < len(row.ids)]
        for number, row in enumerate(ROWS)
    ]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**batch_of().inputs).logits
    return found


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "mask", [random_mask(), STAR, PatternMask(name="window", parameters={})], ids=lambda m: m.describe()["kind"]
)
def test_masking_is_taking_the_cells_away(mask: Mask, backend: str) -> None:
    """In every row as if it stood alone, at every site and head."""
    with attach(tiny_bert(), backend=backend) as session, applied(session, mask, RULES):
        masked = logits(session.model)
    for number, (row, places) in enumerate(zip(ROWS, removed(mask), strict=True)):
        alone = reference().run(row.ids, row.types, removed=places).logits
        assert_near(masked[number], alone, 1e-10)
    dense = torch.stack([reference().run(row.ids, row.types).logits for row in ROWS])
    assert_differs(masked, dense)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_open_gates_are_the_checkpoint_bit_for_bit(dtype: torch.dtype, backend: str) -> None:
    with attach(tiny_bert(dtype), backend=backend) as session:
        dense = logits(session.model)
        for granularity in (OFFSET, Granularity(name="cell", length=7), Granularity(name="head", length=7)):
            with applied(session, all_open(granularity), RULES):
                assert_identical(logits(session.model), dense)
        with applied(session, random_mask(), RULES):
            assert not torch.equal(logits(session.model), dense)
        assert_identical(logits(session.model), dense)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_float_gates_of_zero_and_one_are_masking(dtype: torch.dtype) -> None:
    mask = random_mask()
    reader = PassReader(RULES)
    with attach(tiny_bert(dtype)) as session:
        with applied(session, mask, RULES):
            masked = logits(session.model)
        floats = lambda call: mask.keep(reader.positions(call), call.site.index).to(dtype)  # noqa: E731
        with reader.reading(session), session.gate(floats):
            assert_near(logits(session.model), masked)
        with session.gate(lambda call: torch.ones(call.shape, dtype=dtype)):
            ones = logits(session.model)
        assert_near(ones, logits(session.model))
        assert_differs(ones, masked)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_row_without_a_cell_gives_nothing(backend: str) -> None:
    """A lone query's output is 0 at the site, its head's too; the others' are what the formula says."""
    mask = replace(all_open(Granularity(name="cell", length=7)), diagonal="free")
    gates = mask.gates.clone()
    gates[1, 0, 14:21] = False  # the third token of the second site's first head
    gates[0, 2] = False  # a whole head
    mask = replace(mask, gates=gates)
    calls: list[AttentionCall] = []
    outputs: list[Tensor] = []
    model = tiny_bert()

    with attach(model, backend=backend) as session, applied(session, mask, RULES):
        hooks = [site.module.register_forward_hook(lambda _, __, out: outputs.append(out[0])) for site in session.sites]
        with session.gate(calls.append):
            logits(model)
        for hook in hooks:
            hook.remove()
    inputs = batch_of().inputs
    at = RULES.positions(inputs["input_ids"], inputs["attention_mask"])
    for site, (call, output) in enumerate(zip(calls, outputs, strict=True)):
        keep = (mask.keep(at, site) & call.valid).expand(call.shape)
        expected, _ = attend(call.query, call.key, call.value, scaling=call.scaling, keep=keep)
        found = output.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        assert_near(found, expected, 1e-12)
    second = outputs[1].unflatten(-1, (HEADS, -1))
    assert not second[:4, 2, 0].any()
    assert second[:4, 2, 1:].all()
    assert second[:4, 1].all()
    assert not outputs[0].unflatten(-1, (HEADS, -1))[:, :, 2].any()


def on_side(model: PreTrainedModel, row: families.Family, side: families.Side, wrap: Callable[[], Any]) -> Tensor:
    """The outputs of the real tokens, (tokens, width)."""
    inputs = row.inputs(side)
    with wrap():
        output = row.per_token(model, inputs)
    return output[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("name", ["bert", "roberta", "t5-encoder", "bart", "gpt2", "llama-8/2"])
def test_the_same_on_either_side_of_the_padding(name: str) -> None:
    """Encoders that count positions, T5, an encoder-decoder's encoder, causal models with grouped keys."""
    row = family(name)
    rules = CAUSAL if row.causal else FAMILY_RULES
    granularity = Granularity(name="offset", length=5, causal=row.causal)
    mask = random_mask(granularity, sites=row.sites, heads=row.heads)
    with attach(row.model()) as session:
        wrap = lambda: applied(session, mask, rules)  # noqa: E731
        right = on_side(session.model, row, "right", wrap)
        assert_differs(right, on_side(session.model, row, "right", torch.no_grad))
        if row.positions != "columns":
            assert_near(on_side(session.model, row, "left", wrap), right, 1e-5)


def cache_name(model: PreTrainedModel) -> str:
    """Renamed within transformers 5."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@pytest.mark.parametrize("name", ["gpt2", "llama-8/1", "mistral"])
@pytest.mark.parametrize("mask", ["offset", "star"])
def test_with_a_cache_token_by_token(name: str, mask: str) -> None:
    """Each new token has the cells that it has in a pass over all of them; mistral's cache slides."""
    row = family(name)
    granularity = Granularity(name="offset", length=5, causal=True)
    kind = random_mask(granularity, sites=row.sites, heads=row.heads) if mask == "offset" else STAR
    ids = row.inputs(rows=(7,))["input_ids"]
    with attach(row.model()) as session, applied(session, kind, CAUSAL), torch.no_grad():
        model = session.model
        full = model(input_ids=ids).logits
        cache = None
        for first, last in ((0, 3), (3, 4), (4, 6), (6, 7)):
            seen = {"attention_mask": torch.ones(1, last, dtype=torch.int64)}
            step = model(input_ids=ids[:, first:last], use_cache=True, **{cache_name(model): cache}, **seen)
            cache = step.past_key_values
            assert_near(step.logits, full[:, first:last], 1e-5)


def test_any_call_of_the_model_is_read() -> None:
    """By keyword or position, the whole model or its body, without an attention mask."""
    model = tiny_bert()
    inputs = batch_of(ROWS[:1]).inputs
    ids, types = inputs["input_ids"], inputs["token_type_ids"]
    with attach(model) as session, applied(session, random_mask(), RULES), torch.no_grad():
        whole = model(**inputs).logits
        assert_identical(model(ids, inputs["attention_mask"], types).logits, whole)
        assert_identical(model(input_ids=ids, token_type_ids=types).logits, whole)
        body: Any = model.base_model
        pooled = body(input_ids=ids, token_type_ids=types).pooler_output
        assert_identical(model.classifier(pooled), whole)


def test_a_mask_comes_and_goes() -> None:
    """Restored bit for bit, also when a pass breaks off; masks of two kinds act together."""
    with attach(tiny_bert()) as session:
        hooks = len(session.model.base_model._forward_pre_hooks)
        dense = logits(session.model)
        with pytest.raises(KeyError), applied(session, random_mask(), RULES):
            raise KeyError
        assert_identical(logits(session.model), dense)
        assert len(session.model.base_model._forward_pre_hooks) == hooks
        with applied(session, random_mask(), RULES), applied(session, STAR, RULES):
            both = logits(session.model)
        with applied(session, STAR, RULES):
            assert_differs(logits(session.model), both)


def test_attached_under_a_mask_or_none() -> None:
    model = tiny_bert()
    with attached(model, None) as session:
        dense = logits(session.model)
    with attached(model, Applied(mask=STAR, rules=RULES), backend="sdpa") as session:
        assert session.backend == "sdpa"
        assert_differs(logits(model), dense)


def call_of(session: AttentionSession, reader: PassReader, **inputs: Any) -> list[Any]:
    """The positions that a reader tells at each site of a pass."""
    seen: list[Any] = []

    def look(call: AttentionCall) -> None:
        seen.append(reader.positions(call))

    with reader.reading(session), session.gate(look):
        session.model(**inputs)
    return seen


def test_positions_are_read_once_a_pass() -> None:
    reader = PassReader(RULES)
    inputs = batch_of().inputs
    with attach(tiny_bert()) as session:
        first, second = (call_of(session, reader, **inputs) for _ in range(2))
    assert len(first) == len(second) == SITES
    assert first[0] is first[1]
    assert first[0] is not second[0]
    assert_identical(first[0].token, inputs["attention_mask"].bool())
    made: list[int] = []
    make = lambda: torch.tensor(made.append(1) or len(made))  # type: ignore[func-returns-value]  # noqa: E731
    assert [int(reader.once("a", make)) for _ in range(3)] == [1, 1, 1]
    assert int(reader.once("b", make)) == 2
    reader.start(None, None)
    assert int(reader.once("a", make)) == 3


def test_of_queries_takes_the_last() -> None:
    query, key = torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 4, 3)
    with attach(tiny_bert()) as session:
        site = session.sites[0]
    nothing: dict[str, Any] = {"bias": None, "softcap": None, "dropout": 0.0, "scaling": 1.0, "valid": torch.ones(1)}
    call = AttentionCall(site=site, query=query, key=key, value=key, **nothing)
    assert of_queries(torch.arange(25).view(1, 5, 5), call).tolist() == [[[16, 17, 18, 19], [21, 22, 23, 24]]]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a mask a query": (
        {"attention_mask": torch.ones(1, 1, 7, 7)},
        DataError,
        r"^a masked model takes an attention_mask \(batch, tokens\), 1 for tokens and 0 for padding, not one of shape "
        r"\(1, 1, 7, 7\)$",
    ),
    "embeddings": (
        {"input_ids": None, "inputs_embeds": torch.zeros(1, 7, 33, dtype=torch.float64), "token_type_ids": None},
        DataError,
        r"^a masked model tells \[CLS\] and \[SEP\] by token id: call it with input_ids$",
    ),
}


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_passes_that_do_not_tell_their_tokens(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with attach(tiny_bert()) as session, applied(session, random_mask(), RULES):
        dense = batch_of(ROWS[:1]).inputs
        with pytest.raises(error, match=text):
            session.model(**{**dense, **changes})
        assert logits(session.model).isfinite().all()


def test_several_masks_are_no_mask() -> None:
    with pytest.raises(DataError, match=r"not several$"):
        PassReader(RULES).start(None, {"full_attention": torch.ones(1, 3)})  # type: ignore[arg-type]


def test_more_keys_than_tokens_are_refused() -> None:
    """A cache of fixed size holds keys that are no tokens yet."""
    with attach(family("gpt2").model()) as session, applied(session, STAR, CAUSAL):
        prefix = session.model(torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
        cache = {cache_name(session.model): prefix}
        with pytest.raises(UnsupportedModelError, match=r"^a masked model is given 4 keys for 1 tokens: a cache of"):
            session.model(torch.tensor([[8]]), attention_mask=torch.ones(1, 1).long(), **cache)


def test_masks_of_other_models_are_refused() -> None:
    with attach(tiny_bert()) as session:
        for sites, heads in ((SITES + 1, HEADS), (SITES, HEADS + 2)):
            other = random_mask(sites=sites, heads=heads)
            with pytest.raises(CheckpointError) as caught, applied(session, other, RULES):
                pass
            assert str(caught.value) == (
                f"the mask is for {sites} sites of {heads} heads, the model has 2 of 3: it belongs to another model"
            )
        with pytest.raises(CheckpointError) as caught, applied(session, STAR, CAUSAL):
            pass
        assert str(caught.value) == (
            "the mask is for causal attention, the model's is bidirectional: it belongs to another model"
        )
        session.sites = (session.sites[0], replace(session.sites[1], heads=5))
        with (
            pytest.raises(UnsupportedModelError, match=r"^masks need sites that are alike"),
            applied(session, STAR, RULES),
        ):
            pass


def test_rows_that_are_too_long_are_refused() -> None:
    mask = random_mask(Granularity(name="cell", length=6))
    with attach(tiny_bert()) as session, applied(session, mask, RULES):
        assert session.model(**batch_of(ROWS[1:]).inputs).logits.isfinite().all()
        with pytest.raises(DataError, match=r"^a mask by cell covers 6 tokens, and a row has 7"):
            logits(session.model)
