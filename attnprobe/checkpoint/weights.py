"""The weight files of a checkpoint's folder: found, checked and hashed before any model is built."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnprobe.errors import CheckpointError
from attnprobe.hashes import sha256
from attnprobe.quiet import first_line

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"

_FORMATS: tuple[tuple[str, Literal["safetensors", "pickle"]], ...] = (
    (SAFETENSORS, "safetensors"),
    (PICKLE, "pickle"),
)
_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""Floating-point types as safetensors spells them -> as torch does."""

_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "*.gguf", "adapter_model.*", "*.pt", "*.onnx")
"""Weights of other kinds that people have instead, to be named when nothing readable is there."""


@dataclass(frozen=True, kw_only=True)
class WeightFiles:
    """Weight files of one checkpoint.

    `dtypes` are the floating-point types stored in the files, the one with most elements first.
    """

    files: tuple[Path, ...]
    format: Literal["safetensors", "pickle"]
    sharded: bool
    dtypes: tuple[str, ...]


def find_weights(folder: Path) -> WeightFiles:
    """Find and check the weight files in `folder`, in the order in which transformers would take them.

    Every safetensors header is read against its file's size; pickles are read with weights-only loading, which runs
    none of their code.

    Raises:
        CheckpointError: no weights, a shard that is missing, a corrupt or truncated file, an unsafe pickle.
    """
    for single, form in _FORMATS:
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            files: tuple[Path, ...] = (folder / single,)
        elif index.is_file():
            files = _shards(index)
        else:
            continue
        elements: Counter[str] = Counter()
        for file in files:
            elements.update(_safetensors_elements(file) if form == "safetensors" else _pickle_elements(file))
        dtypes = tuple(dtype for dtype, _ in elements.most_common())
        return WeightFiles(files=files, format=form, sharded=(folder / single) not in files, dtypes=dtypes)
    others = sorted(path.name for pattern in _FOREIGN for path in folder.glob(pattern))
    found = f"; found only {', '.join(others)}, which is not read" if others else ""
    raise CheckpointError(f"{folder}: no weights: there is neither {SAFETENSORS} nor {PICKLE}{found}")


def _shards(index: Path) -> tuple[Path, ...]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        files = tuple(index.parent / str(name) for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index of weight files; copy the checkpoint again") from error
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(
            f"{index.parent}: weight files missing: {len(missing)} of {len(files)}, e.g. {', '.join(missing[:3])}; "
            "copy all shards into the folder"
        )
    return files


def _safetensors_elements(file: Path) -> Counter[str]:
    elements: Counter[str] = Counter()
    try:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  (not a mapping)
                part = tensors.get_slice(key)
                dtype = _SAFETENSORS_DTYPES.get(part.get_dtype())
                if dtype is not None:
                    elements[dtype] += torch.Size(part.get_shape()).numel()
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: corrupt or cut short ({first_line(error)}); copy the file again") from error
    return elements


def _pickle_elements(file: Path) -> Counter[str]:
    try:
        state = torch.load(file, map_location="meta", weights_only=True)
    except Exception as error:  # torch and pickle raise errors of every kind
        raise CheckpointError(
            f"{file}: refused: this pickle is damaged or holds more than weights, and its code is never run; "
            "save the model again as safetensors"
        ) from error
    tensors = [value for value in state.values() if isinstance(value, Tensor)] if isinstance(state, dict) else []
    if not tensors:
        raise CheckpointError(f"{file}: holds no tensors by name; save the model again as safetensors")
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.is_floating_point():
            elements[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return elements


def checkpoint_digest(files: Iterable[Path]) -> str:
    """SHA-256 over the names and SHA-256 sums of `files`: the same for a folder wherever it lies."""
    lines = sorted(f"{sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
