"""Float gates in a running model: outputs and gradients against a slow float64 model and its central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnprobe.attention import AttentionSession, attach, backends
from attnprobe.masks.gates import Gates
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.sparsity import count_gates
from attnprobe.masks.tokens import TokenRules
from attnprobe.objectives import SequenceTask
from attnprobe.sparsify.learner import Learner, gated
from tests.helpers import families
from tests.helpers.families import family
from tests.helpers.probing import CLS, HEADS, ROWS, SEP, SITES, Row, batch_of, tiny_bert
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near
from tests.importance.setting import reference as model_reference
from tests.references import masks as reference
from tests.references.importance import cross_entropy
from tests.references.masks import Text

CHOSEN = ROWS[1:3]
RULES = TokenRules(cls_id=CLS, sep_id=SEP, causal=False)
INPUTS = batch_of(CHOSEN).inputs
LABELS = torch.tensor([row.label for row in CHOSEN])
BLOCK = Granularity(name="block", length=8, block_size=4)
OFFSET = Granularity(name="offset", length=7, segment_aware=True)
STEP = 1e-4
SMALL_STEP = 1e-7
"""Where little of a row is kept, an opening gate moves it fast."""
TEMPERATURE, SMOOTHNESS = 0.5, 0.7


def make(granularity: Granularity, *, relaxation: str, diagonal: str = "free", share: str = "none") -> Gates:
    """Gates half open on average, in no order."""
    at = RULES.positions(INPUTS["input_ids"], INPUTS["attention_mask"])
    gates = Gates(
        granularity,
        count_gates(granularity, [at], diagonal=diagonal),
        sites=SITES,
        heads=HEADS,
        diagonal=diagonal,
        share=share,
        relaxation=relaxation,
        smoothness=SMOOTHNESS,
    )
    gates.temperature = TEMPERATURE
    with torch.no_grad():
        gates.logits.copy_(torch.randn(gates.logits.shape, generator=torch.Generator().manual_seed(3)))
    return gates


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, ...]], Tensor]:
    """The same noise in every draw."""

    def fixed(shape: tuple[int, ...], *_: Any) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(9))

    monkeypatch.setattr("attnprobe.masks.gates.logistic_noise", fixed)
    return fixed


@contextmanager
def under(
    session: AttentionSession, gates: Gates, values: Tensor, rules: TokenRules = RULES, *, paper_form: bool = False
) -> Iterator[None]:
    """Put drawn values, (sites, heads, gates seen + 2), in force as a training does."""
    learner = Learner(
        session.model,
        gates,
        objective=SequenceTask(("accuracy",)),
        dense=None,
        train_weights=False,
        distill=0.0,
        price=None,
        paper_form=paper_form,
    )
    learner.values = values
    with gated(session, learner, rules):
        yield


def loss_under(gates: Gates, values: Tensor) -> Tensor:
    """The mean cross-entropy of the tiny batch."""
    with attach(tiny_bert()) as session, under(session, gates, values):
        return functional.cross_entropy(session.model(**INPUTS).logits, LABELS)


Places = Mapping[tuple[int, int, int], float]
"""A gate's value by site, head and number among all gates."""


def reference_logits(row: Row, gates: Gates, values: Places) -> Tensor:
    """The slow model's output of one row, each cell's probability times its gate, rows renormalised."""
    text, n = Text(ids=row.ids, cls=CLS, sep=SEP), len(row.ids)
    factors = torch.ones(SITES, HEADS, n, n, dtype=torch.float64)
    for i, j in text.cells():
        number = reference.gate(text, i, j, **gates.granularity.as_dict())
        for site in range(SITES):
            for head in range(HEADS):
                if i == j and gates.diagonal != "free":
                    factors[site, head, i, j] = float(gates.diagonal == "keep")
                else:
                    factors[site, head, i, j] = values[site, head, number]
    return model_reference().run(row.ids, row.types, factors=factors).logits


def reference_loss(gates: Gates, values: Places) -> float:
    losses = [float(cross_entropy(reference_logits(row, gates, values), row.label)) for row in CHOSEN]
    return sum(losses) / len(losses)


def places(gates: Gates) -> list[tuple[int, int, int]]:
    """Where each number of a flattened (sites, heads, gates seen) belongs."""
    return [(site, head, int(number)) for site in range(SITES) for head in range(HEADS) for number in gates.seen]


def drawn(gates: Gates, relaxation: str, logits: list[float], noise: Tensor) -> dict[tuple[int, int, int], float]:
    return {
        place: reference.drawn(relaxation, alpha / TEMPERATURE, added, SMOOTHNESS)
        for place, alpha, added in zip(places(gates), logits, noise.flatten().tolist(), strict=True)
    }


CASES = {
    "block": (BLOCK, "free"),
    "block, diagonal kept": (BLOCK, "keep"),
    "offset": (OFFSET, "free"),
    "offset, diagonal dropped": (OFFSET, "drop"),
}


@pytest.mark.parametrize("relaxation", ["soft", "hard-concrete"])
@pytest.mark.parametrize(("granularity", "diagonal"), CASES.values(), ids=CASES)
def test_output_against_the_slow_model(
    granularity: Granularity, diagonal: str, relaxation: str, noise: Callable[[tuple[int, ...]], Tensor]
) -> None:
    gates = make(granularity, relaxation=relaxation, diagonal=diagonal)
    with attach(tiny_bert()) as session, torch.no_grad():
        with under(session, gates, gates.draw()):
            found = session.model(**INPUTS).logits
        dense = session.model(**INPUTS).logits
    logits = gates.logits.detach().flatten().double().tolist()
    values = drawn(gates, relaxation, logits, noise(tuple(gates.logits.shape)))
    for number, row in enumerate(CHOSEN):
        assert_near(found[number], reference_logits(row, gates, values), 1e-6)  # gates are drawn in float32
    assert_differs(found, dense)


@pytest.mark.parametrize("relaxation", ["soft", "hard-concrete"])
@pytest.mark.parametrize(("granularity", "diagonal"), CASES.values(), ids=CASES)
def test_gradient_of_the_logits_against_central_differences(
    granularity: Granularity, diagonal: str, relaxation: str, noise: Callable[[tuple[int, ...]], Tensor]
) -> None:
    """Of the whole chain, from logit to loss; a sample."""
    gates = make(granularity, relaxation=relaxation, diagonal=diagonal)
    loss_under(gates, gates.draw()).backward()
    assert gates.logits.grad is not None
    gradient = gates.logits.grad.flatten().double().tolist()
    start = gates.logits.detach().flatten().double().tolist()
    fixed = noise(tuple(gates.logits.shape))
    checked = range(0, len(start), max(1, len(start) // 6))
    differences = []
    for at in checked:
        sides = []
        for change in (STEP, -STEP):
            logits = [alpha + change * (number == at) for number, alpha in enumerate(start)]
            sides.append(reference_loss(gates, drawn(gates, relaxation, logits, fixed)))
        differences.append((sides[0] - sides[1]) / (2 * STEP))
    largest = max(abs(value) for value in differences)
    assert largest > 1e-4
    for at, expected in zip(checked, differences, strict=True):
        assert abs(gradient[at] - expected) < 1e-5 * max(1.0, largest), (places(gates)[at], gradient[at], expected)


def hard_values(gates: Gates) -> Tensor:
    """A third of the gates closed: (sites, heads, gates seen + 2), a leaf."""
    shape = (SITES, HEADS, len(gates.seen))
    open_ = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.67
    ends = torch.tensor([1.0, 0.0]).expand(SITES, HEADS, 2)
    return torch.cat([open_.float(), ends], dim=-1).double().requires_grad_()


def slopes(gates: Gates, values: Tensor, checked: list[int]) -> list[float]:
    """Central differences of the slow model's loss by single gates."""
    start = dict(zip(places(gates), values[..., :-2].detach().flatten().tolist(), strict=True))
    found = []
    for place in (places(gates)[at] for at in checked):
        sides = [reference_loss(gates, {**start, place: start[place] + change}) for change in (SMALL_STEP, -SMALL_STEP)]
        found.append((sides[0] - sides[1]) / (2 * SMALL_STEP))
    return found


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes as they are, however large."""
    monkeypatch.setattr(backends, "LEAST_TOTAL", 0.0)


def test_slopes_are_bounded_where_next_to_nothing_is_open() -> None:
    """The row's value is exact, the scores' gradient is that of its softmax, and the gates' slope is cut off."""
    scores = torch.tensor([[[[100.0, 0.0, 0.0]]]], requires_grad=True)
    gate = torch.tensor([[[[0.0, 1.0, 1.0]]]], requires_grad=True)
    valid = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    weights = backends._Renormalised.apply(scores, gate, valid)  # type: ignore[no-untyped-call]
    assert_identical(weights.detach(), torch.tensor([[[[0.0, 0.5, 0.5]]]]))
    (weights * torch.tensor([3.0, 1.0, 0.0])).sum().backward()
    assert scores.grad is not None
    assert gate.grad is not None
    assert_near(scores.grad, torch.tensor([[[[0.0, 0.25, -0.25]]]]))
    slope = (3.0 - 0.5) / backends.LEAST_TOTAL  # p is 1 there; unbounded it were 2.5 e^100 / 2
    assert_near(gate.grad / slope, torch.tensor([[[[1.0, 0.0, 0.0]]]]))


@pytest.mark.usefixtures("unbounded")
@pytest.mark.parametrize("granularity", [BLOCK, OFFSET], ids=["block", "offset"])
def test_a_closed_gate_has_a_slope(granularity: Granularity) -> None:
    """Finite, not zero, and what opening it a little does: rows are never empty, the diagonal is kept."""
    gates = make(granularity, relaxation="hard", diagonal="keep")
    values = hard_values(gates)
    loss_under(gates, values).backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
    closed = values[..., :-2].detach() == 0
    assert (values.grad[0, :, :-2][closed[0]] != 0).all()  # of the last site the classifier reads one row alone
    checked = closed.flatten().nonzero()[:, 0].tolist()[:8]
    assert values.grad[..., :-2].flatten()[checked].tolist() == pytest.approx(
        slopes(gates, values, checked), rel=1e-3, abs=1e-6
    )


def test_closing_with_a_large_number_leaves_no_slope() -> None:
    """Why the published form, -10000 (1 - M) on the scores, can't reopen a gate but by noise."""
    gates = make(BLOCK, relaxation="hard", diagonal="keep")
    values = hard_values(gates)
    with attach(tiny_bert()) as session, under(session, gates, values, paper_form=True):
        loss = functional.cross_entropy(session.model(**INPUTS).logits, LABELS)
    loss.backward()
    assert values.grad is not None
    closed = values[..., :-2].detach() == 0
    assert not values.grad[..., :-2][closed].any()
    assert_near(loss.detach(), loss_under(gates, values).detach())  # yet the loss is the same


@pytest.mark.usefixtures("unbounded")
@pytest.mark.parametrize("relaxation", ["hard", "straight-through"])
def test_gates_of_zero_and_one_have_a_slope(relaxation: str, noise: Callable[[tuple[int, ...]], Tensor]) -> None:
    """dL/dM where the gates are 0 and 1, times how fast the soft gate moves, or the logit over the temperature."""
    gates = make(BLOCK, relaxation=relaxation, diagonal="keep")
    values = gates.draw()
    assert values.detach().unique().tolist() == [0, 1]
    loss_under(gates, values).backward()
    assert gates.logits.grad is not None
    alpha = gates.logits.detach().double() / TEMPERATURE
    soft = torch.sigmoid((alpha + noise(tuple(alpha.shape))) / SMOOTHNESS).flatten()
    moving = soft * (1 - soft) / (SMOOTHNESS * TEMPERATURE)
    if relaxation == "straight-through":
        moving = torch.full_like(soft, 1 / TEMPERATURE)
    checked = list(range(0, soft.numel(), 3))
    expected = torch.tensor(slopes(gates, values, checked), dtype=torch.float64) * moving[checked]
    assert gates.logits.grad.flatten()[checked].tolist() == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("share", ["sites", "heads"])
def test_shared_gates_have_the_sum_of_the_slopes(share: str) -> None:
    """Where all that share are open alike."""
    axis = 0 if share == "sites" else 1
    shared = make(BLOCK, relaxation="soft", share=share)
    loss_under(shared, shared.draw()).backward()
    values = shared.draw().detach().double().requires_grad_()
    loss_under(shared, values).backward()
    assert shared.logits.grad is not None
    assert values.grad is not None
    own = shared.draw()[..., :-2].narrow(axis, 0, 1)
    moving = torch.autograd.grad(own.sum(), shared.logits)[0]
    each = values.grad[..., :-2]
    assert_near(shared.logits.grad.double(), each.sum(axis, keepdim=True) * moving, 1e-6)


def test_rows_that_are_empty_have_finite_slopes() -> None:
    """A head that is closed altogether gives 0, and can be opened again."""
    granularity = Granularity(name="head", length=7)
    gates = make(granularity, relaxation="hard")
    values = torch.ones(SITES, HEADS, 3, dtype=torch.float64)
    values[..., -1] = 0
    values[1, 2, 0] = 0
    values.requires_grad_()
    loss = loss_under(gates, values)
    loss.backward()
    assert values.grad is not None
    assert 1e-6 < abs(float(values.grad[1, 2, 0])) < 1e3  # as if the row were not divided by its sum
    open_heads = torch.ones(SITES, HEADS, dtype=torch.bool)
    open_heads[1, 2] = False
    slope = values.grad[..., 0][open_heads]
    assert_near(slope, torch.zeros_like(slope), 1e-12)  # a row's gates, all larger by the same, change nothing
    start = dict(zip(places(gates), values[..., 0].detach().flatten().tolist(), strict=True))
    assert_near(loss.detach(), torch.tensor(reference_loss(gates, start), dtype=torch.float64))


def test_frozen_weights_get_no_gradient() -> None:
    """And the gates' own is the same whether weights learn or not."""
    gradients = []
    for frozen in (True, False):
        gates = make(OFFSET, relaxation="soft")
        model = tiny_bert()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.requires_grad_(not frozen)
        with attach(model) as session, under(session, gates, gates.draw()):
            functional.cross_entropy(model(**INPUTS).logits, LABELS).backward()
        assert all((parameter.grad is None) == frozen for parameter in model.parameters())
        assert gates.logits.grad is not None
        gradients.append(gates.logits.grad)
        for name, tensor in model.state_dict().items():
            assert_identical(tensor, before[name])
    assert_near(gradients[0], gradients[1])


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama-8/2"])
@pytest.mark.parametrize("kind", ["cell", "offset"])
def test_both_padding_sides_give_equal_gradients(name: str, kind: str) -> None:
    row = family(name)
    rules = (
        TokenRules(cls_id=None, sep_id=None, causal=True)
        if row.causal
        else TokenRules(cls_id=families.CLS, sep_id=families.SEP, causal=False)
    )
    granularity = Granularity(name=kind, length=7, causal=row.causal)
    gradients = []
    for side in ("right", "left"):
        inputs = row.inputs(side)
        at = rules.positions(inputs["input_ids"], inputs["attention_mask"])
        counts = count_gates(granularity, [at], diagonal="free")
        gates = Gates(granularity, counts, sites=row.sites, heads=row.heads, relaxation="soft")
        with torch.no_grad():
            gates.logits.copy_(torch.randn(gates.logits.shape, generator=torch.Generator().manual_seed(3)))
        with attach(row.model()) as session, under(session, gates, gates.draw(), rules):
            output = session.model(**inputs)[row.output]
        output[inputs["attention_mask"].bool()].square().mean().backward()
        assert gates.logits.grad is not None
        gradients.append(gates.logits.grad)
    assert gradients[0].abs().max() > 1e-4
    assert_near(gradients[1] / gradients[0].abs().max(), gradients[0] / gradients[0].abs().max(), 1e-5)


def test_gates_of_a_half_precision_model_are_drawn_in_single() -> None:
    gates = make(OFFSET, relaxation="hard-concrete")
    for dtype in (torch.bfloat16, torch.float16):
        values = gates.draw()
        assert values.dtype == torch.float32
        with attach(tiny_bert(dtype)) as session, under(session, gates, values):
            logits = session.model(**INPUTS).logits
        assert logits.dtype == dtype
        functional.cross_entropy(logits.float(), LABELS).backward()
        assert gates.logits.grad is not None
        assert gates.logits.grad.isfinite().all()
        assert gates.logits.grad.any()
