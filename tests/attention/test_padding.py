"""What a token may not know: padding, the other rows of its batch, which side padding is on, and the future."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnprobe.attention import BACKENDS
from attnprobe.data.positions import class_map, locate, partition
from tests.attention.attached import Attached
from tests.helpers.families import CLS, ROWS, SEP, TEXT_FAMILIES, Inputs
from tests.helpers.tolerance import assert_differs, assert_identical, assert_near

pytestmark = pytest.mark.parametrize(
    "attached",
    [
        pytest.param((family, backend), id=f"{family.name}-{backend}")
        for family in TEXT_FAMILIES
        for backend in BACKENDS
    ],
    indirect=True,
)

CLOSED = ("cls_key", "first_key", "sep_key", "previous", "neighbour")
"""Classes that the gate of these tests closes."""


def test_padding_has_no_influence(attached: Attached) -> None:
    """Another token under the padding changes nothing; seen through the mask, it does.

    Causal attention never looks right: there the padding is on the left.
    """
    inputs = attached.family.inputs("left" if attached.family.causal else "right")
    padding = inputs["attention_mask"] == 0
    dense = attached.outputs(inputs)
    changed = inputs | {"input_ids": inputs["input_ids"].masked_fill(padding, 9)}
    for name, output in attached.outputs(changed).items():
        assert_identical(output, dense[name])
    unmasked = changed | {"attention_mask": torch.ones_like(padding).long()}
    seen = attached.outputs(unmasked)[attached.family.output].reshape(*padding.shape, -1)[~padding]
    assert_differs(seen, dense[attached.family.output])


def test_a_later_token_has_influence_only_where_attention_is_not_causal(attached: Attached) -> None:
    inputs = attached.family.inputs(rows=ROWS[:1])
    dense = attached.per_token(inputs)
    ids = inputs["input_ids"].clone()
    ids[0, -2] = 9
    changed = attached.per_token(inputs | {"input_ids": ids})
    earlier, from_there_on = slice(0, -2), slice(-2, None)
    if attached.family.causal:
        assert_identical(changed[earlier], dense[earlier])
    else:
        assert_differs(changed[earlier], dense[earlier])
    assert_differs(changed[from_there_on], dense[from_there_on])


def test_a_ragged_batch_gives_what_its_rows_give_one_by_one(attached: Attached) -> None:
    batch = torch.split(attached.per_token(), list(ROWS))
    for row, length in enumerate(ROWS):
        alone = attached.per_token(attached.family.inputs(rows=(length,), first=row))
        assert_near(batch[row], alone, 1e-5)
    assert_differs(batch[1][:3], batch[2])  # the rows are not alike


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated by class"])
def test_left_and_right_padding_agree(attached: Attached, gated: bool) -> None:
    """The outputs of real tokens; where a model knows only columns, the cells that the gate closes."""
    left, right = attached.family.inputs("left"), attached.family.inputs("right")
    if attached.family.positions == "columns":
        assert_identical(_cells(left, attached.family.causal), _cells(right, attached.family.causal))
        assert_differs(attached.per_token(left), attached.per_token(right))  # no gate could mend that
        return
    outputs = {}
    for side, inputs in {"left": left, "right": right}.items():
        gate = _class_gate(inputs, attached.family.causal)
        with attached.session.gate(lambda _, gate=gate: gate if gated else None):  # type: ignore[misc]
            outputs[side] = attached.per_token(inputs)
    assert_near(outputs["left"], outputs["right"], 1e-5)
    if gated:
        assert_differs(outputs["left"], attached.per_token(left))


def _classes(inputs: Inputs, causal: bool) -> Tensor:
    ids = inputs["input_ids"]
    special = (ids == CLS) | (ids == SEP)
    return class_map(locate(inputs, special, None, cls_id=CLS, sep_id=SEP, causal=causal, window=3))


def _class_gate(inputs: Inputs, causal: bool) -> Tensor:
    """bool (batch, 1, queries, keys): False at the cells of the closed classes."""
    closed = torch.tensor([number for number, name in enumerate(partition(causal)) if name in CLOSED])
    return ~torch.isin(_classes(inputs, causal), closed).unsqueeze(1)


def _cells(inputs: Inputs, causal: bool) -> Tensor:
    """The class, and the gate, of the cells of real tokens, row after row: (cells, 2)."""
    token = inputs["attention_mask"].bool()
    real = token.unsqueeze(2) & token.unsqueeze(1)
    return torch.stack([_classes(inputs, causal)[real], _class_gate(inputs, causal)[:, 0][real].long()], dim=1)
