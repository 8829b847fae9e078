"""The files of an export: what they hold, and that anything else than what was written is refused, named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnprobe
from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import CheckpointError
from attnprobe.export.format import Applied, _own_sum, read_applied, write_applied
from attnprobe.export.words import in_words
from attnprobe.hashes import sha256
from attnprobe.masks.granularity import GRANULARITIES, Granularity
from attnprobe.masks.mask import GateMask, JointMask, Mask, PatternMask
from attnprobe.masks.tokens import TokenRules
from tests.export.exported import Exported, classifier
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.tolerance import assert_identical

RULES = TokenRules(cls_id=2, sep_id=None, causal=False)


def gates(name: str, *, sites: int = 2, heads: int = 3, **options: Any) -> GateMask:
    granularity = Granularity(name=name, length=15, block_size=5, **options)
    return GateMask(
        granularity=granularity,
        gates=torch.rand(sites, heads, granularity.gates, generator=torch.Generator().manual_seed(1)) < 0.3,
        diagonal="drop",
    )


WINDOW = PatternMask(name="window", parameters={"reach": 3}, diagonal="keep")
MASKS: dict[str, Mask] = {
    **{name: gates(name) for name in GRANULARITIES},
    "segments": gates("offset", segment_aware=True, symmetric=True),
    "pattern": WINDOW,
    "joint": JointMask(masks=(gates("cell"), WINDOW, JointMask(masks=(gates("head"),)))),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_what_is_written_is_read_back(mask: Mask, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    write_applied(tmp_path, Applied(mask=mask, rules=RULES, provenance={"target": 0.7, "path": Path("x")}), [config])
    found = read_applied(tmp_path, [config])
    assert found is not None
    assert type(found.mask) is type(mask)
    assert found.mask.describe() == mask.describe()
    assert found.rules == RULES
    assert found.provenance == {"target": 0.7, "path": "x"}
    assert found.version == attnprobe.__version__
    assert found.mask.tensors().keys() == mask.tensors().keys()
    for name, tensor in mask.tensors().items():
        assert_identical(found.mask.tensors()[name], tensor)
    assert in_words(found.mask) == in_words(mask)


def test_gates_are_packed_into_bits(tmp_path: Path) -> None:
    """By hand: the first gate is a byte's highest bit; each head begins a byte."""
    granularity = Granularity(name="cell", length=3)
    rows = [[1, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1, 0]]
    mask = GateMask(granularity=granularity, gates=torch.tensor([rows]).bool())
    (tmp_path / "config.json").write_text("{}")
    write_applied(tmp_path, Applied(mask=mask, rules=RULES, provenance={}), [tmp_path / "config.json"])
    packed = load_file(tmp_path / "masks.safetensors")["gates"]
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [[[0b10000011, 0b10000000], [0b00000001, 0b00000000]]]
    record = json.loads((tmp_path / "attnprobe.json").read_text())
    assert record["applied"]["tensors"] == {"gates": [1, 2, 9]}
    assert record["schema_version"] == 2
    assert record["base"] == {"config.json": sha256(tmp_path / "config.json")}
    assert np.packbits(np.array(rows, dtype=bool), axis=-1).tolist() == packed[0].tolist()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            "cell",
            "a gate for each pair of positions, for texts of up to 15 tokens, every token's cell to itself closed",
        ),
        ("block", "a gate for each square of 5 by 5 positions, for texts of up to 15 tokens, every token's cell to i"),
        ("head", "a gate for each head, every token's cell to itself closed"),
        ("pattern", "the fixed pattern window (reach 3), every token's cell to itself kept"),
    ],
)
def test_masks_in_words(mask: str, words: str) -> None:
    assert in_words(MASKS[mask]).startswith(words)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exported once, never changed."""
    return classifier(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def spoilt(original: Exported, tmp_path: Path) -> Path:
    """A copy of the export, to be spoilt."""
    return Path(shutil.copytree(original.folder, tmp_path / "export"))


def change_record(folder: Path, change: Callable[[dict[str, Any]], Any], *, seal: bool = True) -> None:
    """Change attnprobe.json; sealed, as if it had been written so."""
    file = folder / "attnprobe.json"
    record = json.loads(file.read_text())
    change(record)
    if seal:
        record["sha256"] = _own_sum(record)
    file.write_text(json.dumps(record))


def with_masks(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Other masks, which the record vouches for."""
    save_file(tensors, folder / "masks.safetensors")
    change_record(folder, lambda record: record.update(masks_sha256=sha256(folder / "masks.safetensors")))


def half_file(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_weights(folder: Path) -> None:
    tensors = tiny.read_tensors(folder)
    tensors["classifier.bias"] += 1
    tiny.write_tensors(folder, tensors)


def as_other_shards(folder: Path) -> None:
    tiny.as_shards(folder)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "altered by hand": (
        lambda f: change_record(f, lambda r: r["provenance"].update(target=0.9), seal=False),
        r"attnprobe\.json was altered after the export, so it can't be trusted: copy it again, or export",
    ),
    "no sum": (
        lambda f: change_record(f, lambda r: r.pop("sha256"), seal=False),
        r"attnprobe\.json was altered after the export",
    ),
    "record missing": (
        lambda f: (f / "attnprobe.json").unlink(),
        r"attnprobe\.json is missing, and without it the masks beside it can't be applied: copy it",
    ),
    "record cut short": (lambda f: half_file(f / "attnprobe.json"), r"attnprobe\.json: cannot be read as JSON"),
    "no object": (lambda f: (f / "attnprobe.json").write_text("[]"), r"attnprobe\.json: names no schema_version"),
    "newer schema": (
        lambda f: change_record(f, lambda r: r.update(schema_version=3), seal=False),
        r"attnprobe\.json has schema 3, newer than this version reads \(2\): update attnprobe",
    ),
    "no schema": (lambda f: change_record(f, lambda r: r.pop("schema_version")), "names no schema_version"),
    "part missing": (lambda f: change_record(f, lambda r: r.pop("base")), "its base is missing or malformed; export"),
    "mask missing": (
        lambda f: change_record(f, lambda r: r["applied"].pop("mask")),
        "its mask is missing or malformed; export",
    ),
    "masks missing": (
        lambda f: (f / "masks.safetensors").unlink(),
        r"masks\.safetensors is missing, so the model can't be masked: copy it into the folder",
    ),
    "masks cut short": (
        lambda f: half_file(f / "masks.safetensors"),
        r"masks\.safetensors is not the one that was exported \(corrupt, cut short or another model's\): copy",
    ),
    "masks of another export": (
        lambda f: save_file({"gates": torch.zeros(2, 3, 30, dtype=torch.uint8)}, f / "masks.safetensors"),
        r"masks\.safetensors is not the one that was exported",
    ),
    "weights changed": (
        other_weights,
        r"model\.safetensors was changed after the export, and the mask is for what it was: copy the exported file",
    ),
    "configuration changed": (
        lambda f: tiny.change_config(f, hidden_act="relu"),
        r"config\.json was changed after the export",
    ),
    "weights in other files": (
        as_other_shards,
        r"model-00001-of-00005\.safetensors is not the exported model's, attnprobe\.json does not name it: copy",
    ),
    "weights of another name": (
        lambda f: change_record(f, lambda r: r["base"].update({"a.safetensors": "0" * 64})),
        r"a\.safetensors is missing, which attnprobe\.json names: copy the exported file again",
    ),
    "unpackable": (
        lambda f: with_masks(f, {"gates": torch.zeros(2, 3, 5, dtype=torch.uint8)}),
        r"masks\.safetensors: holds no masks \(torch\.uint8 \(2, 3, 5\) instead of torch\.uint8 \(2, 3, 30\)\)",
    ),
    "tensor missing": (
        lambda f: with_masks(f, {"other": torch.zeros(2, 3, 30, dtype=torch.uint8)}),
        r"masks\.safetensors: holds no masks",
    ),
    "not enough gates": (
        lambda f: change_record(f, lambda r: r["applied"]["mask"]["granularity"].update(length=23)),
        r"attnprobe\.json: gates must be bool \(sites, heads, 225\), not .* \(2, 3, 235\): export",
    ),
    "unknown kind": (
        lambda f: change_record(f, lambda r: r["applied"]["mask"].update(kind="wishes")),
        r"attnprobe\.json: a mask is of gates or a pattern, not 'wishes': export",
    ),
    "unknown pattern": (
        lambda f: change_record(
            f,
            lambda r: r["applied"].update(
                mask={"kind": "pattern", "name": "spiral", "parameters": {}, "diagonal": "free"}, tensors={}
            ),
        ),
        r"attnprobe\.json: a pattern that is not known here \(unknown pattern 'spiral'",
    ),
    "malformed tokens": (
        lambda f: change_record(f, lambda r: r["applied"]["tokens"].update(cls_id="[CLS]")),
        r"attnprobe\.json: token ids are whole numbers or null",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_named(name: str, spoilt: Path) -> None:
    """By `load` and by every command, which open by `open_checkpoint`."""
    spoil, told = REFUSED[name]
    spoil(spoilt)
    for opening in (attnprobe.load, lambda folder: open_checkpoint(str(folder))):
        with pytest.raises(CheckpointError, match=told) as caught:
            opening(spoilt)
        assert str(spoilt) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sites", "heads", "told"),
    [(3, 3, "is for 3 sites of 3 heads, the model has 2 of 3"), (2, 5, "2 sites of 5 heads")],
)
def test_a_mask_of_another_model(sites: int, heads: int, told: str, original: Exported, spoilt: Path) -> None:
    mask = gates("offset", sites=sites, heads=heads)
    base = [spoilt / "config.json", spoilt / "model.safetensors"]
    write_applied(spoilt, Applied(mask=mask, rules=original.rules, provenance={}), base)
    with pytest.raises(CheckpointError, match=f"{told}.*: it belongs to another model"):
        attnprobe.load(spoilt)
    causal = replace(original.rules, causal=True)
    write_applied(spoilt, Applied(mask=original.mask, rules=causal, provenance={}), base)
    with pytest.raises(CheckpointError, match="the mask is for causal attention, the model's is bidirectional"):
        attnprobe.load(spoilt)


def test_a_plain_checkpoint_applies_nothing(original: Exported) -> None:
    plain, opened = open_checkpoint(str(original.checkpoint.path)), open_checkpoint(str(original.folder))
    assert (plain.applied, plain.mask, plain.rules) == (None, None, None)
    assert opened.mask is not None
    assert opened.rules == original.rules
    assert opened.digest != plain.digest
    assert [note.code for note in opened.notes] == ["export"]


def test_the_digest_is_of_the_mask_too(original: Exported, spoilt: Path) -> None:
    base = [spoilt / "config.json", spoilt / "model.safetensors"]
    assert open_checkpoint(str(spoilt)).digest == open_checkpoint(str(original.folder)).digest
    write_applied(spoilt, Applied(mask=gates("offset"), rules=original.rules, provenance={}), base)
    assert open_checkpoint(str(spoilt)).digest != open_checkpoint(str(original.folder)).digest


def test_a_mask_by_cell_limits_the_usable_length(tmp_path: Path) -> None:
    exported = classifier(tmp_path, "cell")
    opened = open_checkpoint(str(exported.folder))
    assert exported.checkpoint.usable_length == tiny.POSITIONS
    assert opened.usable_length == 24
    assert [note.code for note in opened.notes] == ["export", "mask_length"]
