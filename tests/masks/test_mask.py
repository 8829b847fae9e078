"""Masks: which cells they keep, what is stored of them, and what is refused when they come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from attnprobe.errors import CheckpointError, UsageError
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS, GateMask, JointMask, Mask, PatternMask, mask_from, spread
from tests.helpers.ragged import CAUSAL, TEXTS, own, positions_of
from tests.helpers.tolerance import assert_identical
from tests.masks.kept import HEADS, MASKS, OFFSET, SITES, gate_mask, kept
from tests.references.masks import Text

SIDES = pytest.mark.parametrize("side", ["right", "left"])


def require_equal(mask: Mask, texts: tuple[Text, ...], side: str) -> None:
    at = positions_of(texts, side=side, padding=2)
    for site in range(SITES):
        keep = mask.keep(at, site)
        assert keep.dtype == torch.bool
        assert keep.shape[1] in (1, HEADS)
        keep = keep.expand(-1, HEADS, -1, -1)
        for row, text in zip(keep, texts, strict=True):
            found = own(row, text, side).tolist()
            for head in range(HEADS):
                for i, j in text.cells():
                    assert found[head][i][j] == kept(mask, text, site, head, i, j), (text, site, head, i, j)


@SIDES
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_cell_against_the_reference(mask: Mask, side: str) -> None:
    require_equal(mask, TEXTS, side)


@SIDES
@pytest.mark.parametrize("diagonal", DIAGONALS)
def test_every_cell_of_causal_attention(diagonal: str, side: str) -> None:
    granularity = Granularity(name="offset", length=11, causal=True)
    require_equal(gate_mask(granularity, diagonal=diagonal), CAUSAL, side)
    require_equal(PatternMask(name="longformer", parameters={"globals": 1}, diagonal=diagonal), CAUSAL, side)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_the_last_queries_alone(mask: Mask) -> None:
    """With a cache the queries are the last tokens; under a sliding window so are the keys."""
    at = positions_of(TEXTS, side="left")
    full, cells = mask.keep(at, 1), mask.cells(at)
    for queries, keys in ((1, 13), (3, 13), (2, 5), (1, 1)):
        assert_identical(mask.keep(at, 1, cells[..., -queries:, -keys:]), full[..., -queries:, -keys:])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_stored_and_read_again(mask: Mask) -> None:
    description = json.loads(json.dumps(mask.describe()))
    tensors = {name: tensor.clone() for name, tensor in mask.tensors().items()}
    assert all(tensor.dtype == torch.bool for tensor in tensors.values())
    again = mask_from(description, tensors)
    assert type(again) is type(mask)
    assert (again.describe(), again.limit, again.shape) == (mask.describe(), mask.limit, mask.shape)
    at = positions_of(TEXTS)
    for site in range(SITES):
        assert_identical(again.keep(at, site), mask.keep(at, site))


def test_limits_and_shapes() -> None:
    cell, offset = MASKS["cell"], MASKS["offset, free"]
    star = MASKS["star, free"]
    assert (cell.limit, cell.shape) == (13, (SITES, HEADS))
    assert (offset.limit, offset.shape) == (None, (SITES, HEADS))
    assert (star.limit, star.shape) == (None, None)
    block = MASKS["block"]
    assert JointMask(masks=(star, cell, block)).limit == 13
    assert JointMask(masks=(star, block, cell)).shape == (SITES, HEADS)
    assert (JointMask(masks=(star,)).limit, JointMask(masks=(star,)).shape) == (None, None)
    joint = MASKS["joint of a joint one"]
    assert isinstance(joint, JointMask)
    assert [type(mask) for mask in joint.masks] == [PatternMask, GateMask, GateMask]


def test_moving() -> None:
    meta = torch.device("meta")
    moved = MASKS["offset, keep"].to(meta)
    assert moved.tensors()["gates"].device == meta
    assert moved.diagonal == "keep"
    joint = MASKS["joint"].to(meta)
    assert {tensor.device for tensor in joint.tensors().values()} == {meta}
    assert MASKS["star, free"].to(meta) is MASKS["star, free"]


def test_spread_gives_each_cell_its_gate() -> None:
    gates = torch.arange(3 * 5).view(3, 5)
    index = torch.tensor([[[0, 4], [1, 1]], [[2, 3], [4, 0]]])
    assert spread(gates, index).tolist() == [
        [[[5 * head + gate for gate in row] for row in cells] for head in range(3)] for cells in index.tolist()
    ]


def test_spread_has_gradients_that_add_up() -> None:
    gates = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    spread(gates, torch.tensor([[[0, 2], [2, 2]]])).sum().backward()
    assert gates.grad is not None
    assert gates.grad.tolist() == [[1, 0, 3], [1, 0, 3]]


GATES = "^gates must be bool .sites, heads, 198., not "


@pytest.mark.parametrize(
    ("gates", "text"),
    {
        "numbers": (torch.ones(2, 3, 198), GATES + r"torch.float32 \(2, 3, 198\): export the model again$"),
        "one head": (torch.ones(3, 198, dtype=torch.bool), GATES + r"torch.bool \(3, 198\)"),
        "too few": (torch.ones(2, 3, 197, dtype=torch.bool), GATES + r"torch.bool \(2, 3, 197\)"),
    }.values(),
)
def test_gates_of_another_form(gates: Tensor, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        GateMask(granularity=OFFSET, gates=gates)


@pytest.mark.parametrize(
    "make", [lambda d: gate_mask(diagonal=d), lambda d: PatternMask(name="star", parameters={}, diagonal=d)]
)
def test_a_diagonal_that_is_none(make: Any) -> None:
    with pytest.raises(UsageError, match=r"^--diagonal must be one of free, keep, drop, not 'open'$"):
        make("open")


def test_masks_that_do_not_belong_together() -> None:
    other = GateMask(granularity=OFFSET, gates=torch.ones(5, HEADS, OFFSET.gates, dtype=torch.bool))
    with pytest.raises(CheckpointError) as caught:
        JointMask(masks=(MASKS["offset, free"], other))
    assert str(caught.value) == (
        "masks that act together are for one model, not for ['(2, 3)', '(5, 3)'] (sites, heads): export the model again"
    )
    with pytest.raises(CheckpointError, match=r"^masks that act together are for one model"):
        JointMask(masks=())


DESCRIPTION = gate_mask().describe()
TENSORS = gate_mask().tensors()
PATTERN = PatternMask(name="window", parameters={}).describe()
JOINT: dict[str, Any] = {"kind": "joint", "diagonal": "free", "masks": [DESCRIPTION, PATTERN]}
MALFORMED: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "nothing": ({}, {}, "^a mask's diagonal is free, keep, drop, not None: export the model again$"),
    "diagonal": ({**DESCRIPTION, "diagonal": "open"}, TENSORS, "^a mask's diagonal is free, keep, drop, not 'open'"),
    "no kind": ({"diagonal": "free"}, {}, "^a mask is of gates or a pattern, not None: export the model again$"),
    "kind": ({**DESCRIPTION, "kind": "rows"}, TENSORS, "^a mask is of gates or a pattern, not 'rows'"),
    "no granularity": ({"kind": "gates", "diagonal": "free"}, TENSORS, "^a mask is of gates or a pattern, not 'gates'"),
    "no tensor": (DESCRIPTION, {}, r"^a mask of gates holds one tensor `gates`, not \[\]: export again$"),
    "tensors": (DESCRIPTION, {**TENSORS, "more": TENSORS["gates"]}, r"`gates`, not \['gates', 'more'\]"),
    "granularity": ({**DESCRIPTION, "granularity": {"name": "cell"}}, TENSORS, "^a granularity has the entries"),
    "other gates": (
        {**DESCRIPTION, "granularity": {**DESCRIPTION["granularity"], "length": 16}},
        TENSORS,
        "^gates must be bool .sites, heads, 186., not",
    ),
    "no parameters": ({**PATTERN, "parameters": None}, {}, "^a mask is of gates or a pattern, not 'pattern'"),
    "pattern": (
        {**PATTERN, "name": "moon"},
        {},
        r"^a pattern that is not known here \(unknown pattern 'moon'; .*\): update attnprobe, or export again$",
    ),
    "parameter": ({**PATTERN, "parameters": {"reach": -1}}, {}, r"^a pattern that is not known here \(the pattern win"),
    "no masks": ({**JOINT, "masks": None}, {}, "^a mask is of gates or a pattern, not 'joint'"),
    "masks of nothing": ({**JOINT, "masks": []}, {}, "^masks that act together are for one model"),
    "no object": ({**JOINT, "masks": [3]}, {}, "^a mask is described by an object, not 3: export the model again$"),
    "part": ({**JOINT, "masks": [PATTERN, {}]}, {}, "^a mask's diagonal is free, keep, drop, not None"),
    "a part's tensors": (JOINT, TENSORS, "^a mask of gates holds one tensor `gates`"),
}


@pytest.mark.parametrize(("description", "tensors", "text"), MALFORMED.values(), ids=MALFORMED)
def test_what_a_file_may_not_say(description: dict[str, Any], tensors: dict[str, Tensor], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        mask_from(description, tensors)
