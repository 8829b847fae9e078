"""Masks that act together keep what each of them keeps; and any mask can be asked for the last tokens alone."""

from __future__ import annotations

import pytest
import torch

from attnprobe.errors import CheckpointError
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask, JointMask, Mask, PatternMask, mask_from
from tests.helpers.padded import positions
from tests.helpers.tolerance import assert_identical

AT = positions(7, 5, 3, side="left")


def gates(name: str, *, diagonal: str = "free", sites: int = 2, heads: int = 3, length: int = 9) -> GateMask:
    granularity = Granularity(name=name, length=length, block_size=3)
    generator = torch.Generator().manual_seed(length)
    return GateMask(
        granularity=granularity,
        gates=torch.rand(sites, heads, granularity.gates, generator=generator) < 0.5,
        diagonal=diagonal,
    )


PARTS: tuple[Mask, ...] = (
    gates("cell", diagonal="drop"),
    PatternMask(name="window", parameters={"reach": 2}, diagonal="keep"),
    gates("offset", length=7),
)


def test_each_decides_and_all_have_to_keep() -> None:
    joint = JointMask(masks=PARTS)
    for site in (0, 1):
        expected = PARTS[0].keep(AT, site) & PARTS[1].keep(AT, site) & PARTS[2].keep(AT, site)
        assert_identical(joint.keep(AT, site), expected)
        assert not torch.equal(expected, PARTS[2].keep(AT, site))
        assert_identical(joint.keep(AT, site, joint.cells(AT)), expected)
        assert_identical(joint.to(torch.device("cpu")).keep(AT, site), expected)
        assert not expected[..., range(7), range(7)].any()


def test_limit_and_shape_are_those_of_the_parts() -> None:
    assert JointMask(masks=PARTS).limit == 9
    assert JointMask(masks=PARTS).shape == (2, 3)
    assert JointMask(masks=(PARTS[1],)).limit is None
    assert JointMask(masks=(PARTS[1],)).shape is None
    assert JointMask(masks=(gates("block", length=6), *PARTS)).limit == 6
    for masks in ((), (gates("cell"), gates("cell", heads=5))):
        with pytest.raises(CheckpointError, match="masks that act together are for one model"):
            JointMask(masks=masks)


def test_a_description_and_the_tensors_are_all_there_is_to_it() -> None:
    joint = JointMask(masks=(PARTS[2], JointMask(masks=PARTS[:2])))
    assert joint.masks == (PARTS[2], *PARTS[:2])
    assert joint.tensors().keys() == {"0.gates", "1.gates"}
    again = mask_from(joint.describe(), joint.tensors())
    assert again.describe() == joint.describe()
    assert_identical(again.keep(AT, 1), joint.keep(AT, 1))
    with pytest.raises(CheckpointError, match="holds one tensor `gates`"):
        mask_from(joint.describe(), PARTS[2].tensors())
    with pytest.raises(CheckpointError, match="a mask is described by an object, not 'window'"):
        mask_from({"kind": "joint", "masks": ["window"], "diagonal": "free"}, {})


@pytest.mark.parametrize("mask", [*PARTS, JointMask(masks=PARTS)], ids=["cell", "pattern", "offset", "joint"])
def test_the_last_rows_and_columns_alone(mask: Mask) -> None:
    whole, cells = mask.keep(AT, 1), mask.cells(AT)
    for queries, keys in ((1, 7), (3, 7), (2, 4), (7, 7)):
        part = mask.keep(AT, 1, cells[..., -queries:, -keys:])
        assert_identical(part, whole[..., -queries:, -keys:])
