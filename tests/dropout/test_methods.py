"""Every method at its extremes, its formula where it has one in numbers, and that nothing of it stays."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from attnprobe.attention import AttentionCall, attach
from attnprobe.dropout.base import Dropout, Step, bernoulli
from attnprobe.dropout.drophead import kept_heads
from attnprobe.dropout.methods import METHODS
from attnprobe.errors import UnsupportedModelError
from attnprobe.objectives import RegressionTask
from tests.dropout.stepping import again, method, output, stepping, weights
from tests.helpers.families import family, run
from tests.helpers.probing import HEADS, ROWS, SITES
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

IN_THE_PASS = ("weights", "scores", "dropkey", "drophead", "layerdrop", "attn-layerdrop", "scheduled", "attendout")
ON_SCORES = ("scores", "dropkey", "scheduled", "attendout")
IN_THE_LOSS = ("r-drop", "ad-drop", "asa")


@pytest.fixture
def step() -> Iterator[Step]:
    with stepping(progress=1.0) as made:
        yield made


def test_every_method_is_tested() -> None:
    assert {"none", *IN_THE_PASS, *IN_THE_LOSS} == set(METHODS)


@pytest.mark.parametrize("name", [name for name in IN_THE_PASS if name != "attendout"])
def test_a_rate_of_0_is_no_dropout_bit_for_bit(name: str, step: Step) -> None:
    plain = step.output().detach()
    assert_identical(output(method(name, step, rate=0.0), step), plain)
    assert_differs(output(method(name, step, rate=0.6), step), plain)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_of_it_stays(name: str, step: Step) -> None:
    made = method(name, step, rate=0.5)
    plain = step.output().detach()
    made.loss(again(step, epoch=1)).backward()
    assert_identical(step.output().detach(), plain)
    step.session.model.eval()
    assert_identical(step.output().detach(), plain)


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_has_a_finite_gradient_and_is_set_by_the_seed(name: str, step: Step) -> None:
    made = method(name, step, rate=0.5)
    losses = []
    for seed in (3, 3, 4):
        step.session.model.zero_grad()
        torch.manual_seed(seed)
        loss = made.loss(again(step, epoch=1))
        loss.backward()
        losses.append(loss.detach())
        gradients = [p.grad for p in step.session.model.parameters() if p.grad is not None]
        assert gradients
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert_identical(losses[0], losses[1])
    if name not in ("none", "r-drop", "asa"):  # these draw nothing where the model has no dropout
        assert losses[0] != losses[2]


@pytest.mark.parametrize("name", ["none", *IN_THE_PASS])
def test_the_models_own_dropout_gives_way_unless_it_is_kept(name: str, step: Step) -> None:
    """Own weights dropout of 1 leaves a site no weight at all."""
    made = method(name, step, rate=0.0)
    plain = output(made, step)
    for module in step.session.model.modules():
        if hasattr(module, "attention_head_size"):
            module.dropout.p = 0.9
    if made.keeps_own:
        assert_differs(output(made, step), plain)
    else:
        assert_identical(output(made, step), plain)


def test_weights_are_dropped_after_softmax_and_the_rest_grows(step: Step) -> None:
    """A rate of 1 leaves nothing of the values."""
    found = output(method("weights", step, rate=1.0), step)
    with step.session.gate(lambda _: torch.zeros(1, 1, 1, 1, dtype=torch.float64)):
        assert_near(found, step.output().detach())


@pytest.mark.parametrize("name", [*ON_SCORES, "attn-layerdrop"])
def test_a_rate_of_1_is_uniform_over_valid_keys(name: str, step: Step) -> None:
    made = method(name, step, rate=1.0)
    if name == "attendout":
        made.get_parameter("gnet.bias").data.fill_(-100.0)
    found = weights(step.session, made, step)
    real = step.prepared.inputs["attention_mask"].double()
    uniform = (real / real.sum(1, keepdim=True))[:, None, None].expand_as(found[0])
    sites = range(1) if name == "dropkey" else range(SITES)  # its last site drops half
    for site in sites:
        assert_near(found[site], uniform, 1e-7)
    assert_differs(weights(step.session, method(name, step, rate=0.0), step)[0], uniform)


def test_rows_that_keep_nothing_see_no_future() -> None:
    """A causal model: uniform over the keys up to the query."""
    of = family("gpt2")
    model = of.model(torch.float64)
    seen = []
    with (
        attach(model) as session,
        session.drop(lambda call: call.valid.new_zeros(1, 1, 1, 1)),
        session.observe(lambda _, p: seen.append(p)),
    ):
        run(model, {"input_ids": of.inputs()["input_ids"][:1]})
    tokens = seen[0].shape[-1]
    expected = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    assert_near(seen[0][0, 0], expected / expected.sum(1, keepdim=True))


@pytest.mark.parametrize("name", ON_SCORES)
def test_scores_are_dropped_before_softmax(name: str, step: Step) -> None:
    """Rows sum to 1; padding gets nothing; a row that keeps some is the plain one without the rest, scaled."""
    plain = weights(step.session, method("none", step), step)[0]
    found = weights(step.session, method(name, step, rate=0.4), step)[0]
    real = step.prepared.inputs["attention_mask"].bool()
    assert_near(found.sum(-1), torch.ones_like(found.sum(-1)))
    assert not found[~real[:, None, None].expand_as(found)].any()
    left = plain * (found > 0)
    uniform = real / real.sum(1, keepdim=True)
    expected = left / left.sum(-1, keepdim=True)
    nothing = ((found - uniform[:, None, None]).abs() < 1e-7).all(-1, keepdim=True)
    assert_near(found, torch.where(nothing, found, expected))
    assert float(nothing.float().mean()) < 0.2
    assert_differs(found, plain)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_cells_are_dropped_as_often_as_the_rate_says(rate: float, step: Step) -> None:
    calls: list[AttentionCall] = []
    with step.session.observe(lambda call, _: calls.append(call)):
        step.output()
    dropped = total = 0
    torch.manual_seed(0)
    for _ in range(200):
        kept = bernoulli(calls[0], rate)
        dropped, total = dropped + int((~kept).sum()), total + kept.numel()
    assert abs(dropped / total - rate) < 4 * math.sqrt(rate * (1 - rate) / total)


def test_rates_by_site(step: Step) -> None:
    assert method("none", step).rates(0.5) == [0.0] * SITES
    assert method("scores", step, rate=0.2).rates(0.5) == [0.2] * SITES
    assert method("dropkey", step, rate=0.2).rates(0.5) == [0.2, 0.1]
    assert method("scheduled", step, rate=0.2).rates(0.25) == [0.05] * SITES
    curriculum = method("scheduled", step, rate=0.2, schedule="curriculum").rates(0.1)
    assert curriculum == pytest.approx([0.2 * (1 - math.exp(-1))] * SITES)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_some_head_is_always_kept_and_the_kept_ones_make_up_for_the_rest(rate: float) -> None:
    torch.manual_seed(0)
    factors = kept_heads(500, HEADS, rate, torch.device("cpu"))[:, :, 0, 0]
    kept = (factors > 0).sum(1)
    assert_near(factors.sum(1), torch.full((500,), float(HEADS)))
    assert int(kept.min()) >= 1
    assert set(kept.tolist()) == {0.0: {HEADS}, 0.5: {1, 2, HEADS}, 1.0: {1}}[rate]
    if rate == 1.0:
        assert len(set(factors.argmax(1).tolist())) == HEADS


def test_a_dropped_layer_hands_on_its_input(step: Step) -> None:
    """All of them: what the embeddings give goes to the head, and no layer learns."""
    made = method("layerdrop", step, rate=1.0)
    model = step.session.model
    found = output(made, step)
    embedded = model.bert.embeddings(step.prepared.inputs["input_ids"], step.prepared.inputs["token_type_ids"])
    assert_near(found, model.classifier(model.bert.pooler(embedded)).detach())
    made.loss(step).backward()
    layers = list(model.bert.encoder.parameters())
    assert all(p.grad is None or not p.grad.any() for p in layers)
    method("layerdrop", step, rate=0.0).loss(step).backward()
    assert any(p.grad is not None and p.grad.any() for p in layers)


def test_layers_that_are_shared_cannot_be_dropped() -> None:
    with attach(family("albert").model()) as session:
        made = METHODS["layerdrop"].load()(sites=3, rate=0.1, options=None)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedModelError, match="layerdrop needs a model whose layers lie one after another"):
            made.prepare(session)


def test_two_passes_that_agree_cost_nothing_more(step: Step) -> None:
    plain = method("none", step).loss(step).detach()
    assert_near(method("r-drop", step, r_drop_weight=5.0).loss(step).detach(), plain)
    for module in step.session.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    torch.manual_seed(5)
    first = method("r-drop", step, r_drop_weight=0.0, seed=5)
    torch.manual_seed(5)
    without = first.loss(step).detach()
    torch.manual_seed(5)
    with_weight = method("r-drop", step, r_drop_weight=2.0)
    torch.manual_seed(5)
    assert with_weight.loss(step).detach() > without


def test_both_passes_are_drawn_together() -> None:
    """Squared difference of two values: 2 w (a - b) to the one, the opposite to the other."""
    from attnprobe.dropout.r_drop import symmetric_divergence

    a, b = (torch.tensor([[v]], requires_grad=True) for v in (3.0, 1.0))
    with stepping(ROWS[:1]) as made:
        symmetric_divergence(again(made, objective=RegressionTask(("pearson",))), a, b).backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (float(a.grad), float(b.grad)) == (4.0, -4.0)


def test_cells_of_high_attribution_are_dropped_in_every_second_epoch(step: Step) -> None:
    made = method("ad-drop", step, rate=1.0, ad_drop_region=0.3)
    plain = method("none", step).loss(step).detach()
    assert_identical(made.loss(again(step, epoch=0)).detach(), plain)
    assert made.rates(0.0) == [0.0] * SITES
    assert_differs(made.loss(again(step, epoch=1)).detach(), plain)
    lengths = step.prepared.inputs["attention_mask"].sum(1).tolist()
    region = sum(n * math.ceil(0.3 * n) for n in lengths) / sum(n * n for n in lengths)
    assert made.rates(0.0) == pytest.approx([region] * SITES)
    made = method("ad-drop", step, rate=0.0)
    assert_near(made.loss(again(step, epoch=1)).detach(), plain)


def test_the_adversary_climbs_and_the_model_descends(step: Step) -> None:
    """One backward pass: a step against the gradient makes D fall in the weights and rise in the adversary."""
    made = method("asa", step, asa_divergence=1.0, asa_size=0.0)
    made.get_parameter("bias").data.fill_(0.1)

    def divergence() -> float:
        with torch.no_grad():
            return float(made.loss(step) - step.loss(step.output()))

    made.loss(step).backward()
    before = divergence()
    assert before > 0
    learnt = made.get_parameter("bias").grad
    assert learnt is not None
    assert learnt.any()
    size = method("asa", step, asa_divergence=0.0, asa_size=1.0)
    size.get_parameter("bias").data.fill_(0.1)
    size.loss(step).backward()
    paid = size.get_parameter("bias").grad
    assert paid is not None
    assert bool((paid < 0).all())  # what it pays for makes it keep more
    assert_identical(
        method("asa", step, asa_divergence=0.0, asa_size=0.0).loss(step).detach(), step.loss(step.output())
    )


def test_an_adversary_begins_by_keeping_everything(step: Step) -> None:
    made = method("asa", step)
    made.loss(step)
    assert made.rates(0.0) == [0.0] * SITES


def test_padding_has_no_say(step: Step) -> None:
    """A row alone, without padding, is dropped at the same share as in a batch."""
    made: Dropout = method("attendout", step, rate=0.3)
    made.loss(step)
    assert all(0 < rate < 0.6 for rate in made.rates(0.0))
