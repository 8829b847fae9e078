"""What an export holds beside the checkpoint: ``attnprobe.json``, and ``masks.safetensors`` where there is a mask.

``attnprobe.json`` says what is applied (:meth:`~attnprobe.masks.mask.Mask.describe` and the token rules;
:meth:`~attnprobe.residual.stream.Residual.describe`), and holds SHA-256 sums: of ``config.json`` and every weight file,
of ``masks.safetensors``, and of its own contents. What is applied belongs to one set of weights, and any file that is
not the exported one is refused. The gates of a mask are packed into bits, along the last axis and with the first gate
in a byte's highest bit (``numpy.packbits``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnprobe import __version__
from attnprobe.errors import CheckpointError
from attnprobe.hashes import sha256
from attnprobe.masks.mask import Mask, mask_from
from attnprobe.masks.tokens import TokenRules
from attnprobe.quiet import first_line
from attnprobe.residual.stream import Residual

SCHEMA_VERSION = 2
"""1 has a mask always, and no residual attention."""
RECORD = "attnprobe.json"
MASKS = "masks.safetensors"
TUNED = "attnprobe-finetune.json"
"""Beside a fine-tuned checkpoint, to which nothing is applied: how it was made. Nothing reads it but people."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Applied:
    """What an export applies to its weights.

    Attributes:
        mask: the mask, if there is one.
        rules: how the mask tells positions; None without a mask.
        residual: residual attention, if there is any.
        provenance: how it was made, as plain values.
        version: of attnprobe that wrote the export.
    """

    mask: Mask | None = None
    rules: TokenRules | None = None
    residual: Residual | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__


def write_applied(folder: Path, applied: Applied, base: Sequence[Path]) -> None:
    """Write what is applied into a checkpoint's folder.

    Args:
        folder: of the checkpoint.
        applied: what to write.
        base: ``config.json`` and the weight files, in the folder.
    """
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "attnprobe": applied.version,
        "applied": {},
        "base": {file.name: sha256(file) for file in base},
        "provenance": dict(applied.provenance),
    }
    if applied.mask is not None and applied.rules is not None:
        tensors = applied.mask.tensors()
        packed = {n: torch.from_numpy(np.packbits(tensor.cpu().numpy(), axis=-1)) for n, tensor in tensors.items()}
        save_file(packed, folder / MASKS)
        values["masks_sha256"] = sha256(folder / MASKS)
        values["applied"] |= {
            "mask": applied.mask.describe(),
            "tokens": applied.rules.as_dict(),
            "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
        }
    if applied.residual is not None:
        values["applied"]["residual"] = applied.residual.describe()
    record = json.loads(json.dumps(values, default=str))
    record["sha256"] = _own_sum(record)
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")


def read_applied(folder: Path, base: Sequence[Path]) -> Applied | None:
    """What an export applies; None for a folder that is no export.

    Args:
        folder: of the checkpoint.
        base: ``config.json`` and the weight files that are found in it.

    Raises:
        CheckpointError: a file that is missing, altered, corrupt or of a newer schema.
    """
    record_file, masks_file = folder / RECORD, folder / MASKS
    if not record_file.is_file():
        if masks_file.is_file():
            raise CheckpointError(
                f"{record_file} is missing, and without it the masks beside it can't be applied: "
                "copy it into the folder, or export the model again"
            )
        return None
    record = _read_record(record_file)
    _require_base(record_file, record["base"], base)
    applied = record["applied"]
    masked = "mask" in applied
    if masks_file.is_file() and not masked:
        raise CheckpointError(f"{masks_file} is not the exported model's, {RECORD} names no mask: remove it")
    tensors = _read_tensors(masks_file, record) if masked else {}
    try:
        return Applied(
            mask=mask_from(applied["mask"], tensors) if masked else None,
            rules=TokenRules.from_dict(applied["tokens"]) if masked else None,
            residual=Residual.of(applied["residual"]) if "residual" in applied else None,
            provenance=record["provenance"],
            version=record["attnprobe"],
        )
    except CheckpointError as error:
        raise CheckpointError(f"{record_file}: {error}") from error


def _own_sum(record: Mapping[str, Any]) -> str:
    """SHA-256 over everything in the record but this sum."""
    rest = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


_ENTRIES: dict[str, type] = {
    "attnprobe": str,
    "applied": dict,
    "base": dict,
    "provenance": dict,
}
_OF_A_MASK = ("mask", "tokens", "tensors")


def _read_record(file: Path) -> dict[str, Any]:
    """The record, known to be what was written."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: cannot be read as JSON ({first_line(error)}); copy it again, or export the model again"
        ) from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int:
        raise CheckpointError(f"{file}: names no schema_version, so it is no export's record; export the model again")
    if version > SCHEMA_VERSION:
        raise CheckpointError(
            f"{file} has schema {version}, newer than this version reads ({SCHEMA_VERSION}): update attnprobe"
        )
    if record.get("sha256") != _own_sum(record):
        raise CheckpointError(
            f"{file} was altered after the export, so it can't be trusted: copy it again, or export the model again"
        )
    wrong = [name for name, kind in _ENTRIES.items() if not isinstance(record.get(name), kind)]
    applied = record["applied"] if isinstance(record.get("applied"), dict) else {}
    missing = []
    if "residual" not in applied or any(name in applied for name in _OF_A_MASK):
        missing = [name for name in _OF_A_MASK if not isinstance(applied.get(name), dict)]
        missing += [] if isinstance(record.get("masks_sha256"), str) else ["masks_sha256"]
    if wrong or missing:
        raise CheckpointError(f"{file}: its {[*wrong, *missing][0]} is missing or malformed; export the model again")
    return record


def _require_base(record_file: Path, recorded: Mapping[str, str], base: Sequence[Path]) -> None:
    """See that configuration and weights are those that the mask was made for."""
    found = {file.name: file for file in base}
    for name in sorted({*recorded, *found}):
        file = record_file.parent / name
        remedy = "copy the exported file again, or export the model again"
        if name not in found:
            raise CheckpointError(f"{file} is missing, which {record_file.name} names: {remedy}")
        if name not in recorded:
            raise CheckpointError(f"{file} is not the exported model's, {record_file.name} does not name it: {remedy}")
        if sha256(found[name]) != recorded[name]:
            raise CheckpointError(f"{file} was changed after the export, and the mask is for what it was: {remedy}")


def _read_tensors(file: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the mask, unpacked."""
    if not file.is_file():
        raise CheckpointError(
            f"{file} is missing, so the model can't be masked: copy it into the folder, or export the model again"
        )
    if sha256(file) != record["masks_sha256"]:
        raise CheckpointError(
            f"{file} is not the one that was exported (corrupt, cut short or another model's): "
            "copy it again, or export the model again"
        )
    shapes: dict[str, list[int]] = record["applied"]["tensors"]
    try:
        packed = load_file(file)
        return {name: _unpacked(packed[name], shape) for name, shape in shapes.items()}
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, IndexError) as error:
        raise CheckpointError(f"{file}: holds no masks ({first_line(error)}); export the model again") from error


def _unpacked(packed: Tensor, shape: Sequence[int]) -> Tensor:
    expected = (*shape[:-1], -(-shape[-1] // 8))
    if packed.dtype != torch.uint8 or tuple(packed.shape) != expected:
        raise ValueError(f"{packed.dtype} {tuple(packed.shape)} instead of {torch.uint8} {expected}")
    bits = np.unpackbits(packed.numpy(), axis=-1, count=shape[-1])
    return torch.from_numpy(bits.reshape(shape).astype(bool))
