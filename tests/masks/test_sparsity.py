"""Counting cells: by gate, by position class, over the grid and its blocks, each against loops over single texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
import torch

from attnprobe.data.positions import Positions, partition
from attnprobe.errors import DataError
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import DIAGONALS, GateMask, JointMask, Mask, PatternMask
from attnprobe.masks.sparsity import Account, GateCounts, account, count_gates, full_row
from attnprobe.masks.tokens import TokenRules
from tests.helpers.ragged import CAUSAL, CLS, PLAIN, SEP, TEXTS, positions_of, rules_of
from tests.masks.kept import HEADS, MASKS, SITES, kept, random_gates
from tests.references import masks as reference
from tests.references.masks import Text

WINDOW = 2
ONE_WAY = Granularity(name="offset", length=11, causal=True)
GRANULARITIES = {
    "cell": Granularity(name="cell", length=13),
    "block": Granularity(name="block", length=15, block_size=5),
    "head": Granularity(name="head", length=13),
    "offset": Granularity(name="offset", length=17, segment_aware=True),
    "symmetric": Granularity(name="offset", length=5, symmetric=True),
}


def batches(texts: tuple[Text, ...]) -> Iterable[Positions]:
    """Three ragged batches, padded on different sides."""
    yield positions_of(texts[:2], padding=3, window=WINDOW)
    yield positions_of(texts[2:4], side="left", window=WINDOW)
    yield positions_of(texts[4:] or texts[:1], side="left", padding=1, window=WINDOW)


def in_batches(texts: tuple[Text, ...]) -> tuple[Text, ...]:
    return texts if len(texts) > 4 else (*texts, texts[0])


def require_equal(counts: GateCounts, expected: reference.Counts) -> None:
    assert counts.cells.dtype == torch.int64
    assert {gate: n for gate, n in enumerate(counts.cells.tolist()) if n} == expected.cells
    assert counts.seen.nonzero()[:, 0].tolist() == sorted(expected.cells)
    assert (counts.fixed, counts.valid) == (expected.fixed, expected.valid)


@pytest.mark.parametrize("diagonal", DIAGONALS)
@pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)
def test_cells_of_every_gate(granularity: Granularity, diagonal: str) -> None:
    number = partial(reference.gate, **granularity.as_dict())
    require_equal(
        count_gates(granularity, batches(TEXTS), diagonal=diagonal),
        reference.count(in_batches(TEXTS), number, diagonal=diagonal),
    )


@pytest.mark.parametrize("diagonal", DIAGONALS)
def test_cells_of_every_gate_of_causal_attention(diagonal: str) -> None:
    number = partial(reference.gate, **ONE_WAY.as_dict())
    counts = count_gates(ONE_WAY, batches(CAUSAL), diagonal=diagonal)
    require_equal(counts, reference.count(in_batches(CAUSAL), number, diagonal=diagonal))
    assert counts.valid == 28 + 66 + 1 + 15 + 28


def test_counts_by_hand() -> None:
    """[CLS] w [SEP], one gate a head: 9 cells, 3 of them the diagonal."""
    head = Granularity(name="head", length=3)
    text = (TEXTS[4],)
    for diagonal, cells, fixed in (("free", 9, 0), ("keep", 6, 3), ("drop", 6, 0)):
        counts = count_gates(head, [positions_of(text)], diagonal=diagonal)
        assert (counts.cells.tolist(), counts.fixed, counts.valid) == ([cells], fixed, 9)
        for share in (0.0, 0.5, 1.0):
            density = float(counts.density(torch.full((2, 3, 1), share)))
            assert density == pytest.approx((share * cells + fixed) / 9, abs=1e-15)


def test_no_data_has_no_cell() -> None:
    counts = count_gates(ONE_WAY, [], diagonal="keep")
    assert (int(counts.cells.sum()), counts.fixed, counts.valid) == (0, 0, 0)
    assert not counts.seen.any()


def test_rows_beyond_the_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"^a mask by cell covers 12 tokens, and a row has 13"):
        count_gates(Granularity(name="cell", length=12), batches(TEXTS), diagonal="free")


@pytest.mark.parametrize("diagonal", DIAGONALS)
@pytest.mark.parametrize("granularity", GRANULARITIES.values(), ids=GRANULARITIES)
def test_density_of_decided_gates_is_the_share_of_cells_kept(granularity: Granularity, diagonal: str) -> None:
    mask = GateMask(granularity=granularity, gates=random_gates(granularity), diagonal=diagonal)
    texts = in_batches(TEXTS)
    total = sum(
        kept(mask, text, site, head, i, j)
        for text in texts
        for i, j in text.cells()
        for site in range(SITES)
        for head in range(HEADS)
    )
    counts = count_gates(granularity, batches(TEXTS), diagonal=diagonal)
    density = counts.density(mask.gates)
    assert density.dtype == torch.float64
    assert float(density) == pytest.approx(total / (counts.valid * SITES * HEADS), abs=1e-12)


def require_account(found: Account, mask: Mask, texts: tuple[Text, ...], full: Text, size: int) -> None:
    """Every number of an account, against loops."""
    keep = partial(kept, mask)
    by_class, valid = reference.kept_by_class(texts, keep, sites=SITES, heads=HEADS, window=WINDOW)
    names = list(partition(full.causal))
    assert names == list(reference.CAUSAL_CLASSES if full.causal else reference.CLASSES)
    assert dict(zip(names, found.valid.tolist(), strict=True)) == {name: valid[name] for name in names}
    assert found.kept.shape == (SITES, HEADS, len(names))
    for site in range(SITES):
        for head in range(HEADS):
            expected = [by_class[site, head, name] for name in names]
            assert found.kept[site, head].tolist() == expected
    total, cells = sum(by_class.values()), sum(valid.values()) * SITES * HEADS
    assert found.cell == pytest.approx(1 - total / cells, abs=1e-12)
    shares = {
        name: sum(by_class[site, head, name] for site in range(SITES) for head in range(HEADS))
        / (valid[name] * SITES * HEADS)
        for name in names
        if valid[name]
    }
    assert found.kept_by_class() == pytest.approx(shares, abs=1e-12)
    require_grid(found, mask, full, size)
    assert found.causal == full.causal


def require_grid(found: Account, mask: Mask, full: Text, size: int) -> None:
    """Nominal and block sparsity, against loops."""
    nominal, block = reference.grid_sparsities(full, partial(kept, mask), sites=SITES, heads=HEADS, size=size)
    assert found.nominal == pytest.approx(nominal, abs=1e-12)
    assert found.block == pytest.approx(block, abs=1e-12)
    assert found.block_size == size


def of_mask(mask: Mask, texts: tuple[Text, ...], *, length: int, size: int) -> Account:
    rules = rules_of(texts[0])
    return account(mask, batches(texts), rules, sites=SITES, heads=HEADS, length=length, block_size=size)


def full_text(length: int) -> Text:
    """[CLS], ordinary tokens, [SEP]."""
    return Text(ids=(CLS, *range(60, 60 + length - 2), SEP), cls=CLS, sep=SEP)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_number_of_an_account(mask: Mask) -> None:
    """Block sizes that divide 13 and that don't; one token, and more than there are."""
    for size in (1, 3, 5, 13, 128):
        found = of_mask(mask, TEXTS, length=13, size=size)
        if size == 3:
            require_account(found, mask, in_batches(TEXTS), full_text(13), size)
        else:
            require_grid(found, mask, full_text(13), size)
    assert of_mask(mask, TEXTS, length=13, size=1).block == pytest.approx(found.nominal)


def test_the_data_and_the_grid_are_two_things() -> None:
    found = of_mask(MASKS["star, free"], TEXTS, length=13, size=3)
    assert found.cell + 0.1 < found.nominal


@pytest.mark.parametrize("size", [1, 2, 4, 128])
@pytest.mark.parametrize("diagonal", DIAGONALS)
def test_of_causal_attention(diagonal: str, size: int) -> None:
    """Of the cells on and below the diagonal, and of the blocks that hold any."""
    text = Text(ids=tuple(range(11)), causal=True)
    for mask in (
        GateMask(granularity=ONE_WAY, gates=random_gates(ONE_WAY), diagonal=diagonal),
        PatternMask(name="window", parameters={"reach": 2}, diagonal=diagonal),
    ):
        found = of_mask(mask, CAUSAL, length=11, size=size)
        require_account(found, mask, in_batches(CAUSAL), text, size)
        assert "first_query" not in found.kept_by_class()


def test_of_tokens_without_special_ones() -> None:
    mask = PatternMask(name="star", parameters={"reach": 1})
    found = of_mask(mask, PLAIN, length=7, size=3)
    require_account(found, mask, in_batches(PLAIN), Text(ids=tuple(range(60, 67))), 3)
    assert set(found.kept_by_class()) == {"diagonal", "previous", "next", "neighbour", "other"}


PUBLISHED = {"star": 96.13, "longformer": 88.62, "strided": 70.39, "fixed": 72.66, "logsparse": 89.83}


@pytest.mark.parametrize("diagonal", DIAGONALS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_nominal_sparsity_of_known_patterns_of_128_tokens(name: str, diagonal: str) -> None:
    """Whatever the data is. All of them keep the diagonal, which is 100 / 128 percent."""
    mask = PatternMask(name=name, parameters={}, diagonal=diagonal)
    found = of_mask(mask, TEXTS, length=128, size=128)
    gone = 100 / 128 if diagonal == "drop" else 0
    assert 100 * found.nominal == pytest.approx(PUBLISHED[name] + gone, abs=0.005)
    assert found.block == 0
    assert found.cell < found.nominal - 0.1


def test_blocks_of_a_window_by_hand() -> None:
    """256 tokens and reach 1: of 4 x 4 blocks of 64 the diagonal's and those beside it hold a cell; 10 of 16."""
    mask = PatternMask(name="window", parameters={"reach": 1})
    assert of_mask(mask, TEXTS, length=256, size=64).block == 6 / 16
    assert of_mask(mask, CAUSAL, length=256, size=64).block == pytest.approx(3 / 10)
    assert of_mask(mask, CAUSAL, length=257, size=64).block == pytest.approx(6 / 15)
    nothing = PatternMask(name="window", parameters={"reach": 0}, diagonal="drop")
    found = of_mask(nothing, TEXTS, length=256, size=64)
    assert (found.cell, found.nominal, found.block) == (1, 1, 1)


def test_masks_that_keep_everything() -> None:
    for texts in (TEXTS, CAUSAL):
        found = of_mask(PatternMask(name="window", parameters={"reach": 300}), texts, length=13, size=5)
        assert (found.cell, found.nominal, found.block) == (0, 0, 0)
        assert set(found.kept_by_class().values()) == {1}


def test_joint_masks_are_counted_by_what_all_keep() -> None:
    parts = (MASKS["offset, free"], PatternMask(name="window", parameters={"reach": 2}))
    joint = of_mask(JointMask(masks=parts), TEXTS, length=13, size=4)
    alone = [of_mask(part, TEXTS, length=13, size=4) for part in parts]
    assert joint.cell > max(one.cell for one in alone)
    assert (joint.kept <= torch.stack([one.kept for one in alone]).amin(0)).all()


@pytest.mark.parametrize("length", [1, 2, 3, 17])
def test_a_full_row(length: int) -> None:
    """[CLS] first and [SEP] last, no padding; of one token, [CLS]."""
    at = full_row(TokenRules(cls_id=CLS, sep_id=SEP, causal=False), length)
    assert at.token.tolist() == [[True] * length]
    assert at.cls[0].tolist() == [True] + [False] * (length - 1)
    assert at.sep[0].tolist() == [False] * (length - 1) + [length > 1]
    plain = full_row(TokenRules(cls_id=None, sep_id=None, causal=False), length)
    assert not (plain.cls | plain.sep).any()
    causal = full_row(TokenRules(cls_id=None, sep_id=None, causal=True), length)
    assert int(causal.valid.sum()) == length * (length + 1) // 2
