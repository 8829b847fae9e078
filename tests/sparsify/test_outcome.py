"""What a point leaves, put on disk and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask, JointMask, Mask, PatternMask
from attnprobe.masks.sparsity import account
from attnprobe.sparsify.outcome import LOG_COLUMNS, Outcome
from attnprobe.training.scores import Scores
from tests.helpers.ragged import TEXTS, positions_of, rules_of
from tests.helpers.tolerance import assert_identical

SITES, HEADS = 2, 3


def gate_mask(granularity: Granularity, *, seed: int = 0, diagonal: str = "free") -> GateMask:
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(SITES, HEADS, granularity.gates, generator=generator) < 0.4
    return GateMask(granularity=granularity, gates=gates, diagonal=diagonal)


OFFSET = gate_mask(Granularity(name="offset", length=17, segment_aware=True), diagonal="drop")
MASKS: dict[str, Mask] = {
    "offset": OFFSET,
    "cell": gate_mask(Granularity(name="cell", length=13), diagonal="keep"),
    "head": gate_mask(Granularity(name="head", length=13)),  # 6 gates: no whole byte
    "pattern": PatternMask(name="bigbird", parameters={"reach": 1}, diagonal="drop"),
    "joint": JointMask(masks=(OFFSET, PatternMask(name="star", parameters={}))),
}


def scores(count: int, columns: int, seed: int) -> Scores:
    generator = np.random.default_rng(seed)
    draw: Any = generator.normal
    loss = draw(size=count).astype(np.float32)
    loss[0] = np.nan
    return Scores(
        prediction=draw(size=(count, columns)).astype(np.float32),
        reference=draw(size=count).astype(np.float32),
        loss=loss,
    )


def outcome(mask: Mask | None, **changes: Any) -> Outcome:
    counted = None
    if mask is not None:
        at = [positions_of(TEXTS)]
        counted = account(mask, at, rules_of(TEXTS[0]), sites=SITES, heads=HEADS, length=13, block_size=5)
    values: dict[str, Any] = {
        "scores": scores(5, 3, 0),
        "held_out": scores(3, 3, 1),
        "mask": mask,
        "account": counted,
        "counted_sparsity": 0.9012345678901234,
        "before_threshold": 0.8987654321,
        "log": [dict(zip(LOG_COLUMNS, (25.0, 0.7, 0.5, 0.49, 0.1), strict=True)) for _ in range(2)],
        "steps": 600,
        "seconds": 12.5,
    }
    return Outcome(**{**values, **changes})


def through_a_file(result: Outcome, folder: Path) -> Outcome:
    """As a run keeps its points: without pickles."""
    arrays = result.arrays()
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    np.savez(folder / "point.npz", **arrays)  # type: ignore[arg-type]
    with np.load(folder / "point.npz", allow_pickle=False) as file:
        read: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    return Outcome.of(read)


def require_equal_scores(found: Scores, expected: Scores) -> None:
    for name in ("prediction", "reference", "loss"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == np.float32


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_there_and_back(mask: Mask, tmp_path: Path) -> None:
    result = outcome(mask)
    found = through_a_file(result, tmp_path)
    require_equal_scores(found.scores, result.scores)
    require_equal_scores(found.held_out, result.held_out)
    for name in ("counted_sparsity", "before_threshold", "log", "steps", "seconds"):
        assert getattr(found, name) == getattr(result, name)
    assert found.mask is not None
    assert found.account is not None
    assert result.account is not None
    assert type(found.mask) is type(mask)
    assert found.mask.describe() == mask.describe()
    at = positions_of(TEXTS, side="left")
    for site in range(SITES):
        assert_identical(found.mask.keep(at, site), mask.keep(at, site))
    assert_identical(found.account.kept, result.account.kept)
    assert_identical(found.account.valid, result.account.valid)
    for name in ("nominal", "block", "block_size", "causal", "cell"):
        assert getattr(found.account, name) == getattr(result.account, name)
    assert found.account.kept_by_class() == result.account.kept_by_class()


def test_the_dense_model(tmp_path: Path) -> None:
    found = through_a_file(outcome(None, before_threshold=None, log=[], steps=0, counted_sparsity=0.0), tmp_path)
    assert (found.mask, found.account, found.before_threshold) == (None, None, None)
    assert (found.log, found.steps, found.counted_sparsity) == ([], 0, 0.0)


def test_a_log_without_a_wanted_density(tmp_path: Path) -> None:
    """Under a price nothing is wanted; what the Trainer logs beside is not kept."""
    log = [{"step": 25.0, "loss": 0.5, "density": 0.9, "learning_rate": 0.1, "epoch": 1.0}]
    (row,) = through_a_file(outcome(OFFSET, log=log), tmp_path).log
    assert set(row) == set(LOG_COLUMNS)
    assert np.isnan(row["wanted_density"])
    assert (row["step"], row["loss"], row["density"]) == (25.0, 0.5, 0.9)


def test_a_whole_number_of_examples_a_byte() -> None:
    """Eight gates take one."""
    arrays = outcome(OFFSET).arrays()
    assert arrays["mask/gates"].dtype == np.uint8
    assert arrays["mask/gates"].nbytes == -(-OFFSET.gates.numel() // 8)


def test_no_labels_and_no_examples_are_kept_as_they_are(tmp_path: Path) -> None:
    single = scores(1, 1, 3)
    found = through_a_file(outcome(OFFSET, held_out=single), tmp_path)
    require_equal_scores(found.held_out, single)
