"""Losses, divergences, predictions with known answers; probes of fidelity by their mean square."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from attnprobe.data.batches import Batch
from attnprobe.importance import integrated_gradients, taylor
from attnprobe.importance.options import ImportanceOptions
from attnprobe.metrics import METRICS
from attnprobe.objectives import (
    CausalLM,
    EmbeddingFidelity,
    MaskedLM,
    Objective,
    Prepared,
    RegressionFidelity,
    RegressionTask,
    SequenceFidelity,
    SequenceTask,
    SpanTask,
    TokenFidelity,
    TokenTask,
)
from tests.helpers.probing import MASK, ROWS, Setting, batch_of, probing, series
from tests.helpers.probing import assert_close as close

LABELS, WIDTH = 3, 5
HALVES = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], dtype=torch.float64))
EVEN = torch.zeros(2, LABELS, dtype=torch.float64)


def batch(labels: Tensor | None, *, lengths: tuple[int, ...] = (5, 3), first: int = 0) -> Batch:
    """Rows of ids 10, 11, ... between two special tokens."""
    width = max(lengths)
    token = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
    ids = (torch.arange(width).expand(len(lengths), -1) + 10) * token
    special = torch.zeros_like(token, dtype=torch.bool)
    for row, length in enumerate(lengths):
        special[row, [0, length - 1]] = True
    return Batch(
        indices=torch.arange(first, first + len(lengths)),
        inputs={"input_ids": ids, "attention_mask": token},
        labels=labels,
        special=special,
        segments=None,
    )


def test_cross_entropy_kl_and_class() -> None:
    objective = SequenceTask(("accuracy",))
    prepared = objective.prepare(batch(torch.tensor([0, 1]))).with_dense(HALVES)
    close(objective.loss(HALVES, prepared), [math.log(2), math.log(8)])
    close(objective.divergence(HALVES, prepared), [0.0, 0.0])
    by_hand = [
        0.5 * math.log(0.5 * 3) + 2 * 0.25 * math.log(0.25 * 3),
        2 * 0.125 * math.log(0.125 * 3) + 0.75 * math.log(0.75 * 3),
    ]
    close(objective.divergence(EVEN, prepared), by_hand)
    assert objective.predictions(HALVES, prepared).tolist() == [[0], [2]]
    assert objective.references(prepared).tolist() == [0, 1]
    assert objective.output(HALVES.bfloat16(), prepared).dtype == torch.float32
    assert objective.output(HALVES, prepared).dtype == torch.float64


def test_squared_error() -> None:
    objective = RegressionTask(("pearson",))
    prepared = objective.prepare(batch(torch.tensor([1.5, -2.0]))).with_dense(torch.tensor([[1.0], [3.0]]))
    output = torch.tensor([[2.0], [1.0]])
    assert objective.loss(output, prepared).tolist() == [0.25, 9.0]
    assert objective.divergence(output, prepared).tolist() == [1.0, 4.0]
    assert objective.predictions(output, prepared).tolist() == [[2.0], [1.0]]


def test_token_losses_are_means_over_an_examples_labelled_tokens() -> None:
    labels = torch.tensor([[-100, 0, 1, -100, -100], [-100, 2, -100, -100, -100], [-100] * 5])
    objective = TokenTask()
    prepared = objective.prepare(batch(labels, lengths=(5, 3, 5)))
    result = torch.zeros(3, 5, LABELS, dtype=torch.float64)
    result[0, 1], result[0, 2], result[1, 1] = HALVES[0], HALVES[1], HALVES[1]
    output = objective.output(result, prepared)
    assert output.shape == (3, LABELS)
    loss = objective.loss(output, prepared)
    close(loss, [(math.log(2) + math.log(8)) / 2, -math.log(0.75), math.nan])
    prepared = prepared.with_dense(output)
    close(objective.divergence(output, prepared), [0.0, 0.0, math.nan])
    assert objective.predictions(output, prepared).tolist() == [[1, 2], [1, 1], [0, 0]]
    assert objective.references(prepared).tolist() == [0, 0, 0]
    assert METRICS["token_accuracy"].compute(np.array([[1, 2], [1, 1], [0, 0]]), np.zeros(3)) == pytest.approx(2 / 3)


def test_spans_are_counted_for_each_example() -> None:
    tags = ("O", "B-PER", "I-PER")
    gold = torch.tensor([[-100, 1, 2, 0, 1], [-100, 0, 0, -100, -100]])
    found = torch.tensor([[0, 1, 2, 0, 0], [0, 0, 1, 0, 0]])
    objective = SpanTask(tags)
    prepared = objective.prepare(batch(gold))
    result = torch.nn.functional.one_hot(found, LABELS).double()
    counts = objective.predictions(objective.output(result, prepared), prepared)
    assert counts.tolist() == [[1, 1, 2], [0, 1, 0]]  # right, predicted, true
    assert METRICS[objective.metrics[0]].compute(counts.numpy(), np.zeros(2)) == pytest.approx(2 * 1 / (2 + 2))


def test_rows_are_taken_in_the_order_given_and_as_often() -> None:
    labels = torch.tensor([[-100, 0, 1, -100, -100], [-100, 2, -100, -100, -100]])
    by_token = TokenTask()
    prepared = by_token.prepare(batch(labels)).with_dense(torch.arange(9.0).reshape(3, 3))
    chosen = by_token.rows(prepared, torch.tensor([1, 0, 1]))
    assert chosen.labels is not None
    assert chosen.dense is not None
    assert chosen.labels.tolist() == labels[[1, 0, 1]].tolist()
    assert chosen.dense[:, 0].tolist() == [6.0, 0.0, 3.0, 6.0]
    assert chosen.inputs["input_ids"].tolist() == prepared.inputs["input_ids"][[1, 0, 1]].tolist()
    by_row = SequenceTask(("accuracy",))
    prepared = by_row.prepare(batch(torch.tensor([0, 1]))).with_dense(HALVES)
    assert by_row.rows(prepared, torch.tensor([1, 1])).dense is not None
    assert torch.equal(by_row.rows(prepared, torch.tensor([1, 1])).dense, HALVES[[1, 1]])  # type: ignore[arg-type]
    assert by_row.rows(by_row.prepare(batch(None)), torch.tensor([1])).labels is None


def test_next_token_labels_leave_out_padding_and_the_last_token() -> None:
    prepared = CausalLM().prepare(batch(None))
    assert prepared.labels is not None
    assert prepared.labels.tolist() == [[11, 12, 13, 14, -100], [11, 12, -100, -100, -100]]
    assert prepared.inputs["input_ids"].tolist()[0] == [10, 11, 12, 13, 14]


def test_masked_tokens_depend_on_seed_and_example_alone() -> None:
    objective = MaskedLM(mask_id=1, seed=3, share=0.3)
    lengths = (13, 7, 11, 3, 2)
    together = objective.prepare(batch(None, lengths=lengths))
    assert together.labels is not None
    for number, length in enumerate(lengths):
        alone = objective.prepare(batch(None, lengths=(length,), first=number))
        assert alone.labels is not None
        assert together.labels[number, :length].tolist() == alone.labels[0].tolist()
        ids, masked = alone.inputs["input_ids"][0], alone.labels[0] != -100
        ordinary = length - 2
        assert int(masked.sum()) == (max(1, round(0.3 * ordinary)) if ordinary else 0)
        assert not masked[[0, -1]].any()
        assert (ids[masked] == 1).all()
        assert (ids[~masked] == batch(None, lengths=(length,)).inputs["input_ids"][0][~masked]).all()
        assert (alone.labels[0][masked] >= 10).all()
    again = MaskedLM(mask_id=1, seed=3, share=0.3).prepare(batch(None, lengths=lengths))
    other = MaskedLM(mask_id=1, seed=4, share=0.3).prepare(batch(None, lengths=lengths))
    assert again.labels is not None
    assert other.labels is not None
    assert torch.equal(again.labels, together.labels)
    assert not torch.equal(other.labels, together.labels)


def test_embeddings_are_compared_pooled_or_token_by_token() -> None:
    result = torch.zeros(2, 5, WIDTH, dtype=torch.float64)
    result[..., 0] = 2.0
    turned = result.clone()
    turned[0, 1, 1] = 2.0  # one of five tokens by 45 degrees
    turned[1, 3:, 1] = 99.0  # padding alone: must count for nothing
    cosine = 1 / math.sqrt(2)
    expected = {"tokens": (1 - cosine) / 5, "cls": 0.0, "mean": 1 - 2 / math.hypot(2, 0.4)}
    for pooling, distance in expected.items():
        objective = EmbeddingFidelity(pooling)
        prepared = objective.prepare(batch(None))
        prepared = prepared.with_dense(objective.output(result, prepared))
        output = objective.output(turned, prepared)
        close(objective.loss(output, prepared), [distance, 0.0], atol=1e-9)
        close(objective.predictions(output, prepared)[:, 0], [1 - distance, 1.0])
        assert (objective.divergence(objective.output(result * 1.7, prepared), prepared) >= 0).all()


def test_fidelity_is_scored_against_the_dense_prediction() -> None:
    sequence = SequenceFidelity()
    prepared = sequence.prepare(batch(None)).with_dense(HALVES)
    assert sequence.references(prepared).tolist() == [0, 2]
    assert sequence.metrics == ("agreement",)
    close(sequence.loss(EVEN, prepared), sequence.divergence(EVEN, prepared))
    regression = RegressionFidelity()
    prepared = regression.prepare(batch(None)).with_dense(torch.tensor([[1.0], [2.0]]))
    assert regression.references(prepared).tolist() == [1.0, 2.0]
    assert regression.loss(torch.tensor([[3.0], [2.0]]), prepared).tolist() == [4.0, 0.0]
    token = TokenFidelity()
    prepared = token.prepare(batch(None))
    assert prepared.labels is not None
    assert (prepared.labels != -100).tolist() == [[False, True, True, True, False], [False, True, False, False, False]]
    prepared = prepared.with_dense(HALVES[[0, 0, 1, 1]])
    counts = token.predictions(HALVES[[0, 1, 1, 1]], prepared)
    assert counts.tolist() == [[2, 3], [1, 1]]


_FIDELITIES: dict[str, tuple[Objective, tuple[int, ...]]] = {
    "sequence": (SequenceFidelity(), (LABELS,)),
    "token": (TokenFidelity(), (5, LABELS)),
    "regression": (RegressionFidelity(), (1,)),
    "mean": (EmbeddingFidelity("mean"), (5, WIDTH)),
    "cls": (EmbeddingFidelity("cls"), (5, WIDTH)),
    "tokens": (EmbeddingFidelity("tokens"), (5, WIDTH)),
}


@pytest.mark.parametrize("name", _FIDELITIES)
def test_the_mean_effect_of_probes_is_the_divergence(name: str) -> None:
    """Over many draws, for a small change of the model's result, within 5 standard errors and third order."""
    objective, shape = _FIDELITIES[name]
    random = torch.Generator().manual_seed(17)
    result = torch.randn(2, *shape, generator=random, dtype=torch.float64)
    change = 1e-3 * torch.randn(2, *shape, generator=random, dtype=torch.float64)
    prepared = objective.prepare(batch(None))
    prepared = prepared.with_dense(objective.output(result, prepared))
    true = objective.divergence(objective.output(result + change, prepared), prepared).numpy()
    draws, effects = 1500, []
    for _ in range(draws):
        leaf = result.clone().requires_grad_()
        probed = objective.probe(objective.output(leaf, prepared), prepared, random)
        assert probed.shape == (2,)
        (slope,) = torch.autograd.grad(probed.sum(), leaf)
        first_order = (slope * change).flatten(1).sum(1)
        effects.append(objective.effect(first_order.numpy()))
    mean, error = np.mean(effects, axis=0), np.std(effects, axis=0) / math.sqrt(draws)
    assert (true > 0).all()
    assert (np.abs(mean - true) <= 5 * error + 0.02 * true).all()
    assert (error < 0.15 * true).all()


def test_the_probe_of_a_task_is_its_loss() -> None:
    objective = SequenceTask(("accuracy",))
    prepared = objective.prepare(batch(torch.tensor([0, 1])))
    probed = objective.probe(HALVES, prepared, torch.Generator())
    close(probed, objective.loss(HALVES, prepared))
    assert objective.effect(np.array([-0.5])).tolist() == [-0.5]


def test_examples_without_a_scored_token_are_unknown_to_every_gradient_method() -> None:
    """[CLS] [SEP] has no ordinary token to compare: n/a, and nothing to the others."""
    objective = TokenFidelity()
    options = ImportanceOptions(n_steps=3)
    model = Setting().model
    assert ROWS[4].ids[1:] == (3,)

    class ByToken(TokenFidelity):
        """Reads a classifier's one row of logits as every token's."""

        def output(self, result: Tensor, prepared: Prepared) -> Tensor:
            return super().output(result.unsqueeze(1).expand(-1, prepared.inputs["input_ids"].shape[1], -1), prepared)

    assert objective.kind == "fidelity"
    for method in (taylor, integrated_gradients):
        with probing(Setting(model=model, objective=ByToken(), options=options)) as (context, item):
            found = method.measure(context, item)
        with probing(Setting(model=model, objective=ByToken(), options=options, batch=batch_of(ROWS[:4]))) as (
            context,
            item,
        ):
            without = method.measure(context, item)
        for level in ("class", "class_site", "class_head", "head", "site", "offset"):
            values = series(found, f"{level}/loss")
            assert np.isnan(values[4]).all()
            assert np.isfinite(values[0]).any()
            if method is integrated_gradients:  # the other's draws depend on the batch
                close(values[:4], series(without, f"{level}/loss"), atol=1e-6)


def test_the_mask_is_an_ordinary_id_of_the_batch_helper() -> None:
    prepared = MaskedLM(mask_id=MASK, seed=0).prepare(batch_of())
    assert prepared.labels is not None
    assert (prepared.labels[4] == -100).all()
    assert (prepared.inputs["input_ids"] == MASK).sum() == (prepared.labels != -100).sum() == 4
