"""Learned gates: a step's loss and slope against a slow reference, means against sums over cells, known answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from attnprobe.data.batches import Batch
from attnprobe.importance import learned
from attnprobe.importance.cells import Cells
from attnprobe.importance.context import Context, Item, Items, Measurement
from attnprobe.importance.options import ImportanceOptions
from attnprobe.objectives import CausalLM, EmbeddingFidelity, Objective, Prepared, SequenceFidelity, SequenceTask
from tests.helpers.probing import (
    HEADS,
    ROWS,
    SITES,
    VOCABULARY,
    Row,
    Setting,
    batch_of,
    probing,
    series,
    tiny_bert,
)
from tests.helpers.probing import assert_close as close
from tests.importance.setting import MEASURED, cells_of, dense, reference
from tests.references.importance import cross_entropy, kl, offset_cells

LONGEST = max(len(row.ids) for row in ROWS)


def random_gates(sites: int = SITES, *, length: int = LONGEST, seed: int = 0) -> Tensor:
    drawn = torch.rand(sites, HEADS, length**2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 0.05 + 0.9 * drawn


def factors(gates: Tensor, row: Row, *, include_special: bool = True) -> Tensor:
    """What the reference multiplies the probabilities of a row with: (sites, heads, queries, keys)."""
    n = len(row.ids)
    table = torch.ones(SITES, HEADS, n, n, dtype=torch.float64)
    measured = [cell for cells in cells_of(row, include_special=include_special).values() for cell in cells]
    for site in range(SITES):
        for head in range(HEADS):
            for i, j in measured:
                table[site, head, i, j] = gates[site if len(gates) > 1 else 0, head, i * LONGEST + j]
    return table


def expected_loss(gates: Tensor, price: float, *, include_special: bool = True) -> float:
    """Mean loss of the rows, and the price of the mean gate, cell by cell."""
    losses, bought = [], []
    for row in ROWS:
        table = factors(gates, row, include_special=include_special)
        logits = reference().run(row.ids, row.types, factors=table, renormalise=False).logits
        losses.append(float(cross_entropy(logits, row.label)))
        cells = {cell for cells in cells_of(row, include_special=include_special).values() for cell in cells}
        bought += [float(table[s, h, i, j]) for s in range(SITES) for h in range(HEADS) for i, j in cells]
    return sum(losses) / len(losses) + price * sum(bought) / len(bought)


def loss_of(context: Context, item: Item, gates: Tensor, price: float) -> Tensor:
    loss = learned.loss_under(context, item, gates, price)
    assert loss is not None
    return loss


def gates_of(context: Context, items: list[Item], *, seed: int = 0) -> NDArray[Any]:
    supply = Items(number=len(items), make=items.__getitem__)
    return learned.fit(context, supply, torch.Generator().manual_seed(seed))["gates"]


def rows_of(context: Context, item: Item, rows: Tensor) -> Item:
    """Some rows of a batch as a batch."""
    cells = Cells(item.cells.at.rows(rows), context.layout)
    return replace(item, prepared=context.objective.rows(item.prepared, rows), cells=cells)


@pytest.mark.parametrize("sites", [SITES, 1])
def test_loss_of_a_step(sites: int) -> None:
    gates = random_gates(sites)
    with probing(Setting()) as (context, item), torch.no_grad():
        close(loss_of(context, item, gates, 0.7), expected_loss(gates, 0.7))
        assert float(loss_of(context, item, gates, 0.7)) != pytest.approx(expected_loss(gates, 0.0))


@pytest.mark.parametrize("sites", [SITES, 1])
def test_slope_of_a_step(sites: int) -> None:
    """By finite differences of the reference: of gates of one cell, of many, and of none."""
    gates, step = random_gates(sites).requires_grad_(), 1e-5
    with probing(Setting()) as (context, item):
        (slope,) = torch.autograd.grad(loss_of(context, item, gates, 0.7), gates)
    for site, head, i, j in [(0, 1, 0, 0), (sites - 1, 2, 0, 1), (0, 0, 4, 2), (sites - 1, 1, 6, 5)]:
        sides = []
        for change in (step, -step):
            moved = gates.detach().clone()
            moved[site, head, i * LONGEST + j] += change
            sides.append(expected_loss(moved, 0.7))
        close(slope[site, head, i * LONGEST + j], (sides[0] - sides[1]) / (2 * step), rtol=1e-4, atol=1e-8)
    assert slope.abs().min() > 0


def test_cells_that_are_not_measured_are_left_alone() -> None:
    gates = random_gates()
    with probing(Setting(include_special=False)) as (context, item), torch.no_grad():
        close(loss_of(context, item, gates, 0.7), expected_loss(gates, 0.7, include_special=False))
        learnt = gates_of(context, [item])
    inner = np.zeros((LONGEST, LONGEST), dtype=bool)
    for row in ROWS:
        for cells in cells_of(row, include_special=False).values():
            for i, j in cells:
                inner[i, j] = True
    moved = learnt.reshape(SITES, HEADS, LONGEST, LONGEST) != 0.5
    assert not moved[:, :, ~inner].any()
    assert moved[:, :, inner].all()


def test_the_worth_of_attention_is_how_far_the_output_moves_without_it() -> None:
    with probing(Setting(options=ImportanceOptions(learned_steps=3))) as (context, item):
        found = learned._worth(context, Items(number=1, make=[item].__getitem__), [0, 0, 0])
    moved = []
    for row in ROWS:
        nothing = torch.zeros(SITES, HEADS, len(row.ids), len(row.ids), dtype=torch.float64)
        closed = reference().run(row.ids, row.types, factors=nothing, renormalise=False).logits
        moved.append(kl(dense(row).logits, closed))
    close(found, np.mean(moved))


@contextmanager
def measured(gates: Tensor, setting: Setting | None = None) -> Iterator[tuple[Context, Measurement]]:
    with probing(setting or Setting()) as (context, item):
        fitted = replace(context, fitted={"learned": {"gates": gates.float().numpy()}})
        yield context, learned.measure(fitted, item)


def test_every_level_against_sums_over_cells() -> None:
    gates = random_gates()
    with measured(gates) as (context, found):
        pass
    for number, row in enumerate(ROWS):
        table = factors(gates, row)
        everything = MEASURED[row]

        def mean(cells: list[tuple[int, int]], site: int, head: int, table: Tensor = table) -> float:
            return sum(float(table[site, head, i, j]) for i, j in cells) / len(cells) if cells else np.nan

        def by_head(cells: list[tuple[int, int]], mean: Any = mean) -> NDArray[Any]:
            return np.array([[mean(cells, site, head) for head in range(HEADS)] for site in range(SITES)])

        for place, name in enumerate(context.layout.classes):
            cells = cells_of(row)[name]
            others = [cell for cell in everything if cell not in cells] if cells else []
            for kind, chosen in (("gate", cells), ("others", others)):
                close(series(found, f"class_head/{kind}")[number, place], by_head(chosen))
                close(series(found, f"class_site/{kind}")[number, place], by_head(chosen).mean(1))
                close(series(found, f"class/{kind}")[number, place], by_head(chosen).mean())
        for place, offset in enumerate(context.layout.offsets):
            cells = offset_cells(everything, offset)
            others = [cell for cell in everything if cell not in cells] if cells else []
            close(series(found, "offset/gate")[number, place], by_head(cells).mean())
            close(series(found, "offset/others")[number, place], by_head(others).mean())
        close(series(found, "head/gate")[number], by_head(everything))
        close(series(found, "site/gate")[number], by_head(everything).mean(1))


def test_shared_gates_say_nothing_on_sites() -> None:
    gates = random_gates(1)
    with measured(gates) as (_, found):
        assert {name.partition("/")[0] for name in found.per_example} == {"class", "offset"}
    with measured(gates.expand(SITES, -1, -1)) as (_, same):
        for name, values in found.per_example.items():
            close(values, same.per_example[name])


def shallow(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """One site only: of its rows the classifier reads [CLS]'s, and nothing else can matter."""
    model: Any = tiny_bert(dtype)
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    model.config.num_hidden_layers = 1
    return model


def by_class(setting: Setting) -> tuple[dict[str, float], NDArray[Any]]:
    """Mean gate of each class over the rows, after a fit on one batch; and the gates."""
    with probing(setting) as (context, item):
        gates = gates_of(context, [item])
        found = learned.measure(replace(context, fitted={"learned": {"gates": gates}}), item)
        figures = series(found, "class/gate")
    has = np.isfinite(figures).any(0)
    means = np.nanmean(figures[:, has], axis=0)
    return dict(zip(np.array(context.layout.classes)[has].tolist(), means.tolist(), strict=True)), gates


@pytest.mark.parametrize("objective", [SequenceTask(("accuracy",)), SequenceFidelity()], ids=["task", "fidelity"])
def test_the_one_row_that_matters_stays_open(objective: Objective) -> None:
    options = ImportanceOptions(learned_steps=20)
    model = shallow()
    with probing(Setting(model=model)) as (_, item):
        assert item.prepared.dense is not None
        batch = replace(item.prepared.batch, labels=item.prepared.dense.argmax(-1))  # labels that the model can tell
    means, _ = by_class(Setting(model=model, batch=batch, objective=objective, options=options))
    touched = {"cls_query", "diagonal", "cls", "special", "window"}  # [CLS] to itself is in its row
    rest = [value for name, value in means.items() if name not in touched]
    assert max(rest) - min(rest) < 0.01  # nothing but their price moved them
    assert max(rest) < 0.1
    assert means["cls_query"] > max(rest) + 0.2
    assert means["diagonal"] > max(rest) + 0.02


def test_without_a_price_only_what_matters_moves() -> None:
    means, gates = by_class(Setting(model=shallow(), options=ImportanceOptions(learned_steps=5, learned_price=0.0)))
    first = gates[:, :, :LONGEST]
    assert (np.abs(first - 0.5) > 0.1).all()
    assert (gates[:, :, LONGEST:] == 0.5).all()
    assert means["next"] == means["sep_query"] == 0.5
    assert means["cls_query"] != 0.5


def test_a_higher_price_closes_more() -> None:
    found = [
        by_class(Setting(options=ImportanceOptions(learned_steps=20, learned_price=price)))[1].mean()
        for price in (0.0, 0.3, 3.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[2] + 0.1


def test_a_fidelity_is_learnt_from_closing() -> None:
    """Rows are not renormalised: gates of 1 are the checkpoint, gates of a half are not."""
    with probing(Setting(objective=SequenceFidelity())) as (context, item), torch.no_grad():
        whole, half = (torch.full((SITES, HEADS, LONGEST**2), level, dtype=torch.float64) for level in (1.0, 0.5))
        close(loss_of(context, item, whole, 0.0), 0.0, atol=1e-12)
        assert float(loss_of(context, item, half, 0.0)) > 0.01
        close(loss_of(context, item, whole, 0.3), 0.3)
        gates = gates_of(context, [item])
    assert gates.std() > 0.1


def test_a_seed_decides_the_order_of_batches() -> None:
    orders = [list(learned._order(3, 7, torch.Generator().manual_seed(seed))) for seed in (0, 1)]
    assert orders[0][:5] != orders[1][:5]
    for order in orders:
        assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
    with probing(Setting(options=ImportanceOptions(learned_steps=5))) as (context, whole):
        items = [rows_of(context, whole, torch.tensor([place])) for place in range(3)]
        first, again, other = (gates_of(context, items, seed=seed) for seed in (0, 0, 1))
    assert (first == again).all()
    assert not (first == other).all()


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_bert()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with probing(Setting(model=model, options=ImportanceOptions(learned_steps=3))) as (context, item):
        gates_of(context, [item])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def padded_left(batch: Batch) -> Batch:
    """The same rows, padded on the left, with the places that the model's position embeddings need told."""
    mask = batch.inputs["attention_mask"]
    width = mask.shape[1]
    moved = (torch.arange(width) + mask.sum(1, keepdim=True)) % width
    assert batch.segments is not None
    inputs = {name: tensor.gather(1, moved) for name, tensor in batch.inputs.items()}
    inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
    special, segments = batch.special.gather(1, moved), batch.segments.gather(1, moved)
    return replace(batch, inputs=inputs, special=special, segments=segments)


def test_both_sides_of_padding_give_the_same_gates() -> None:
    model: Any = tiny_bert()
    base = Setting(model=model.bert, objective=EmbeddingFidelity(), options=ImportanceOptions(learned_steps=3))
    right, left = (by_class(replace(base, batch=batch)) for batch in (batch_of(), padded_left(batch_of())))
    assert not torch.equal(padded_left(batch_of()).inputs["input_ids"], batch_of().inputs["input_ids"])
    close(left[1], right[1])
    close(list(left[0].values()), list(right[0].values()))


def test_a_causal_model_has_gates_of_earlier_keys_only() -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=HEADS * 4,
        n_layer=SITES,
        n_head=HEADS,
        n_positions=23,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).double().eval()
    means, gates = by_class(Setting(model=model, objective=CausalLM(), options=ImportanceOptions(learned_steps=3)))
    moved = gates.reshape(SITES, HEADS, LONGEST, LONGEST) != 0.5
    earlier = np.tri(LONGEST, dtype=bool)
    assert moved[:, :, earlier].all()
    assert not moved[:, :, ~earlier].any()
    assert "first_key" in means
    assert "next" not in means
    assert "first_query" not in means  # the first token has nothing before it


def test_half_precision() -> None:
    _, gates = by_class(Setting(model=tiny_bert(torch.bfloat16), options=ImportanceOptions(learned_steps=5)))
    assert gates.dtype == np.float32
    assert np.isfinite(gates).all()
    assert gates.std() > 0.05


def test_without_any_loss_there_are_no_figures() -> None:
    class Nothing(SequenceTask):
        def loss(self, output: Tensor, prepared: Prepared) -> Tensor:
            return super().loss(output, prepared) * torch.nan

    with probing(Setting(objective=Nothing(("accuracy",)))) as (context, item):
        gates = gates_of(context, [item])
        found = learned.measure(replace(context, fitted={"learned": {"gates": gates}}), item)
    assert all(np.isnan(values).all() for values in found.per_example.values())
