"""Proof that an export, loaded in a fresh process, gives what the model gave when it was exported."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import attnprobe
from attnprobe.architectures import position_offset
from attnprobe.errors import VerificationError
from attnprobe.scoring import first_output

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Largest difference of two outputs, relative to the largest expected number (at least 1)."""


class Check(NamedTuple):
    """A batch (each input (batch, tokens)) and the model's first output on it."""

    inputs: Mapping[str, Tensor]
    output: Tensor


def checks_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[Check]:
    """Run a model as it is now, under whatever is in force, on a batch and on the batch padded on the other side.

    Args:
        model: in eval mode, outside of autocast.
        inputs: ``input_ids``, ``attention_mask`` and what else is (batch, tokens); rows of unequal length, padded on
            the right.
    """
    checks = []
    for batch in (dict(inputs), other_side(model, inputs)):
        with torch.no_grad():
            checks.append(Check(batch, first_output(model, batch).detach()))
    return checks


def other_side(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch padded on the right as one padded on the left.

    It has ``position_ids`` where the model takes them and does not count positions from the padding id.
    """
    attention_mask = inputs["attention_mask"]
    columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    order = (columns - (attention_mask == 0).sum(1, keepdim=True)) % attention_mask.shape[1]
    moved = {name: tensor.gather(1, order) for name, tensor in inputs.items()}
    if "position_ids" in inspect.signature(model.forward).parameters and not position_offset(model.config):
        moved["position_ids"] = (moved["attention_mask"].cumsum(1) - 1).clamp_min(0)
    return moved


def verify_export(
    directory: Path,
    checks: Sequence[Check],
    *,
    device: str = "cpu",
    trust_remote_code: bool = False,
    stock: bool = False,
    name: str | None = None,
) -> float:
    """Load an export in a fresh process, run the batches of some checks, and compare.

    Args:
        directory: the export.
        checks: what the model gave, see :func:`checks_of`.
        device: where to run; where the expected outputs come from, or else the last digits differ.
        trust_remote_code: run Python code that comes with the checkpoint.
        stock: load it by transformers alone.
        name: of the export in messages; None: the folder.

    Returns:
        The largest difference, relative to the largest expected number (at least 1).

    Raises:
        VerificationError: the process fails, or an output differs by more than 1e-5 (half precision: 1e-2).
    """
    name = name or str(directory)
    with tempfile.TemporaryDirectory(prefix="attnprobe-") as place:
        batches, outputs = Path(place) / "batches.safetensors", Path(place) / "outputs.safetensors"
        save_file(
            {f"{n}.{key}": _plain(tensor) for n, check in enumerate(checks) for key, tensor in check.inputs.items()},
            batches,
        )
        flags = [*(["trust"] if trust_remote_code else []), *(["stock"] if stock else [])]
        arguments = [str(directory), str(batches), str(outputs), device, *flags]
        _run_fresh(name, arguments)
        try:
            found = load_file(outputs)
        except (OSError, SafetensorError) as error:
            raise VerificationError(f"{name}: the fresh process left no outputs; export again") from error
    differences = [_difference(name, n, found.get(str(n)), check.output) for n, check in enumerate(checks)]
    return max(differences, default=0.0)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _run_fresh(name: str, arguments: Sequence[str]) -> None:
    """Run :mod:`attnprobe.export.fresh` with this interpreter, and this package, in a process of its own."""
    package = str(Path(attnprobe.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "attnprobe.export.fresh", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise VerificationError(
            f"{name}: the export can't be loaded in a fresh process (exit {done.returncode}): "
            f"{said[-1] if said else 'it said nothing'}"
        )


def _difference(name: str, number: int, found: Tensor | None, expected: Tensor) -> float:
    expected = _plain(expected)
    if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
        what = "nothing" if found is None else f"{found.dtype} {tuple(found.shape)}"
        raise VerificationError(
            f"{name}: in a fresh process, batch {number} gives {what} instead of {expected.dtype} "
            f"{tuple(expected.shape)}; the export is not the model that was measured"
        )
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found.double() - expected.double()).abs().max()) / scale
    allowed = TOLERANCE[expected.dtype]
    if not difference <= allowed:
        raise VerificationError(
            f"{name}: in a fresh process, the output on batch {number} differs by {difference:.2g} (allowed: "
            f"{allowed:.0e}, relative to the largest output); the export is not the model that was measured"
        )
    return difference


def outputs_of(model: Any, batches: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first output of every batch, by its number; inputs are named ``number.name``."""
    numbers = sorted({int(name.partition(".")[0]) for name in batches})
    outputs = {}
    for number in numbers:
        prefix = f"{number}."
        inputs = {n.removeprefix(prefix): t.to(model.device) for n, t in batches.items() if n.startswith(prefix)}
        with torch.no_grad():
            outputs[str(number)] = _plain(first_output(model, inputs))
    return outputs
