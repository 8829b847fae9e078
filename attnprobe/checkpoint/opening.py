"""Opens an existing checkpoint: model, tokenizer, trained head, usable length, and what would bite later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attnprobe.architectures import (
    DEFAULT_LENGTH,
    SUPPORTED,
    position_limit,
    unsupported_message,
)
from attnprobe.checkpoint.loading import Head, Source, architecture_names, load_model
from attnprobe.checkpoint.locate import locate
from attnprobe.checkpoint.notes import Note, export_notes, file_notes, model_notes, tokenizer_notes
from attnprobe.checkpoint.weights import WeightFiles, checkpoint_digest, find_weights
from attnprobe.errors import CheckpointError, UnsupportedModelError, UsageError
from attnprobe.export.format import MASKS, RECORD, Applied, read_applied
from attnprobe.masks.mask import Mask
from attnprobe.masks.tokens import TokenRules
from attnprobe.quiet import first_line, quiet_transformers
from attnprobe.residual.stream import Residual

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

_SANE_LENGTH = 10**9
"""Tokenizers without a limit state 1e20 or 1e30 as theirs."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint.

    `name` is what the user typed; `path` the local folder, or None for a hub id; `model` is in eval mode, on the
    device and in the dtype asked for; `usable_length` counts tokens, special tokens included; `digest` is over
    config.json and the weight files, and of an export over what it applies too; `weights` tells how those are stored
    (None for a model made in memory). `applied` is what an export of attnprobe applies to the model, which is not yet
    in force here: see `attnprobe.export.attaching.attached`. None for any other checkpoint.
    """

    name: str
    path: Path | None
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    head: Head
    usable_length: int
    digest: str
    notes: tuple[Note, ...]
    weights: WeightFiles | None = None
    applied: Applied | None = None

    @property
    def mask(self) -> Mask | None:
        """The mask of an export."""
        return None if self.applied is None else self.applied.mask

    @property
    def residual(self) -> Residual | None:
        """The residual attention of an export."""
        return None if self.applied is None else self.applied.residual

    @property
    def rules(self) -> TokenRules | None:
        """How the mask of an export tells positions."""
        return None if self.applied is None else self.applied.rules


def open_checkpoint(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    need_tokenizer: bool = True,
) -> Checkpoint:
    """Open the checkpoint `name` (a folder, `demo`, or a hub id) for measuring.

    The class is the one `config.architectures` names. A head whose weights are not all in the files is dropped and
    noted; any other weight that is missing, misshapen, NaN or infinite is an error.

    Raises:
        CheckpointError: missing, incomplete, corrupt or unsafe files; no tokenizer though one is needed.
        MissingDependencyError: the demo checkpoint is not installed.
        UnsupportedModelError: a family that is unknown or cannot be reached through the seam, or quantised weights.
        UsageError: an unknown device or dtype, or one that is not there.
    """
    torch_device, torch_dtype = parse_device(device), parse_dtype(dtype)
    location = locate(name, trust_remote_code=trust_remote_code)
    source = read_source(name, location.folder, torch_dtype, trust_remote_code=trust_remote_code)
    base = [location.folder / "config.json", *source.weights.files]
    applied = read_applied(location.folder, base)
    tokenizer, gap = _load_tokenizer(source, trust_remote_code=trust_remote_code)
    if need_tokenizer and tokenizer is None:
        raise CheckpointError(f"{name}: {gap}; put the files of its tokenizer beside config.json")
    model, head, notes = load_model(source)
    try:
        model = model.to(torch_device).eval()
    except RuntimeError as error:
        raise CheckpointError(f"{name}: cannot be moved to {device} ({first_line(error)})") from error
    if source.remote_code:
        notes.append(Note("remote_code", "Python code that came with the checkpoint was run"))
    config = source.config.get_text_config()
    notes += [*model_notes(model, config), *file_notes(source.weights, dtype)]
    if tokenizer is None:
        notes.append(Note("missing_tokenizer", f"{gap}: text cannot be read"))
    else:
        notes += tokenizer_notes(tokenizer, config)
    length = _usable_length(config, tokenizer)
    if length is None:
        notes.append(Note("length_assumed", f"no limit on the length is stated: {DEFAULT_LENGTH} is assumed"))
        length = DEFAULT_LENGTH
    if applied is not None:
        base += [location.folder / RECORD]
        if applied.mask is not None:
            base += [location.folder / MASKS]
            length = min(length, applied.mask.limit or length)
        notes += export_notes(applied)
    return Checkpoint(
        name=name,
        path=location.folder if location.local else None,
        model=model,
        tokenizer=tokenizer,
        head=head,
        usable_length=length,
        digest=checkpoint_digest(base),
        notes=tuple(notes),
        weights=source.weights,
        applied=applied,
    )


def parse_device(name: str) -> torch.device:
    """The device `name`; UsageError when it is unknown or not in this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name!r} is unknown; use cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= (device.index or 0):
            raise UsageError(
                f"--device {name}: CUDA devices here: {count}; use cpu" + " or a smaller number" * (count > 0)
            )
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise UsageError("--device mps is not available here; use cpu")
    elif device.type != "cpu":
        raise UsageError(f"--device {name!r} is not supported; use cpu, cuda or cuda:N")
    return device


def parse_dtype(name: str) -> torch.dtype:
    """The floating-point type `name`; UsageError when it is not one of `DTYPES`."""
    if name not in DTYPES:
        raise UsageError(f"--dtype {name!r} is unknown; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def read_source(
    name: str,
    folder: Path,
    dtype: torch.dtype | str,
    *,
    trust_remote_code: bool,
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Read and check everything but the model, cheapest first.

    Args:
        name: of the checkpoint, for messages.
        folder: where its files are.
        dtype: of the model to be, or `auto`.
        trust_remote_code: run Python code that comes with the checkpoint.
        options: further keywords of `from_pretrained`; those that are settings of the configuration go there.

    Raises:
        CheckpointError, UnsupportedModelError: see `open_checkpoint`.
    """
    raw = _read_config(name, folder)
    remote_code = _needs_remote_code(name, raw)
    if remote_code and not trust_remote_code:
        raise CheckpointError(
            f"{name}: needs Python code that comes with it; read that code, then pass --trust-remote-code"
        )
    config, rest = _load_config(name, folder, options or {}, remote_code=remote_code)
    return Source(
        name=name,
        folder=folder,
        raw=raw,
        config=config,
        weights=find_weights(folder),
        dtype=dtype,
        remote_code=remote_code,
        options=rest,
    )


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(f"{name}: an adapter, not a whole model; merge it into its base model and save that")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{name}: no config.json in {folder}; give the folder of one checkpoint") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({first_line(error)}); copy it again") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise CheckpointError(f'{path}: names no family; add its "model_type", e.g. "bert"')
    return raw


def _needs_remote_code(name: str, raw: dict[str, Any]) -> bool:
    """Whether only code that comes with the checkpoint opens it; refuses what config.json alone shows is hopeless."""
    family = raw["model_type"]
    refusal = unsupported_message(name, family)
    if refusal:
        raise UnsupportedModelError(refusal)
    if raw.get("quantization_config"):
        raise UnsupportedModelError(f"{name}: quantised weights are not supported; open the original checkpoint")
    known = family in transformers.CONFIG_MAPPING
    if raw.get("auto_map"):
        return not known or not all(hasattr(transformers, class_name) for class_name in architecture_names(raw))
    if not known:
        raise UnsupportedModelError(
            f"{name}: transformers {transformers.__version__} knows no family {family!r}; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    return False


def _load_config(
    name: str, folder: Path, options: Mapping[str, Any], *, remote_code: bool
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """The configuration, and the options that are none of its settings."""
    try:
        with quiet_transformers():
            config, rest = AutoConfig.from_pretrained(
                folder, trust_remote_code=remote_code, return_unused_kwargs=True, **options
            )
            return config, dict(rest)
    except Exception as error:  # transformers raises errors of every kind
        raise CheckpointError(f"{name}: config.json is not valid ({first_line(error)}); correct it") from error


def _load_tokenizer(source: Source, *, trust_remote_code: bool) -> tuple[PreTrainedTokenizerBase | None, str]:
    """The tokenizer, or None and the reason.

    Where its files are missing, transformers may hand back a tokenizer that knows its special tokens only.
    """
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                source.folder, config=source.config, trust_remote_code=trust_remote_code
            )
    except Exception as error:  # transformers raises errors of every kind
        return None, f"its tokenizer cannot be loaded ({first_line(error)})"
    files = sorted(set(tokenizer.vocab_files_names.values()))
    if files and not any((source.folder / file).is_file() for file in {*files, "tokenizer.json"}):
        return None, f"it has no tokenizer: there is none of {', '.join(files)}"
    return tokenizer, ""


def _usable_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The smaller limit of position table and tokenizer, None when neither states one."""
    limits = [position_limit(config)]
    if tokenizer is not None and 0 < tokenizer.model_max_length < _SANE_LENGTH:
        limits.append(int(tokenizer.model_max_length))
    return min((limit for limit in limits if limit is not None), default=None)
