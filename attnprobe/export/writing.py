"""Writes an export: the checkpoint in its own format, what is applied to it, and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprobe.architectures import head_class
from attnprobe.attention.session import under_stock_name
from attnprobe.checkpoint import Checkpoint
from attnprobe.checkpoint.weights import find_weights
from attnprobe.errors import CheckpointError
from attnprobe.export.card import Card, write_card
from attnprobe.export.folders import replaced
from attnprobe.export.format import Applied, write_applied
from attnprobe.export.verification import Check, verify_export
from attnprobe.masks.mask import JointMask, Mask
from attnprobe.masks.tokens import TokenRules
from attnprobe.quiet import quiet_transformers
from attnprobe.residual.stream import Residual

_STATEMENTS = ("1_Pooling/config.json",)
"""Files of a checkpoint that are neither model nor tokenizer, and say how it is meant to be read."""


def save_export(
    directory: Path,
    *,
    checkpoint: Checkpoint,
    mask: Mask | None = None,
    rules: TokenRules | None = None,
    residual: Residual | None = None,
    card: Card,
    provenance: Mapping[str, Any],
    checks: Sequence[Check] = (),
    trust_remote_code: bool = False,
) -> Path:
    """Write a checkpoint with what is applied to it into a folder, which appears whole, and verified, or not at all.

    Args:
        directory: the folder; absent, empty, or an earlier export, which is replaced.
        checkpoint: its model is saved as it is in memory, and may be attached. If it is an export itself, what it
            applies stays: two masks act together, and residual attention is replaced by a new one.
        mask: what is kept of the attention; None: what the checkpoint keeps.
        rules: how the mask tells positions.
        residual: residual attention; None: what the checkpoint has.
        card: parts of the model card.
        provenance: how the mask was made (method, target, seed, metric), as plain values.
        checks: what the model gives, see :func:`~attnprobe.export.verification.checks_of`: with these, the export is
            loaded in a fresh process and compared before it takes its place.
        trust_remote_code: whether the checkpoint needs Python code of its own.

    Returns:
        The folder.

    Raises:
        CheckpointError: the checkpoint's own mask is of another kind of tokens.
        RunFolderError: the folder holds something else, or can't be written.
        VerificationError: the export does not give what the model gave; nothing is left of it.
    """
    applied = Applied(
        mask=_with_own(checkpoint, mask, rules),
        rules=rules or checkpoint.rules,
        residual=residual or checkpoint.residual,
        provenance=provenance,
    )
    with replaced(directory) as folder:
        with quiet_transformers(), under_stock_name(checkpoint.model):
            checkpoint.model.save_pretrained(folder)
            if checkpoint.tokenizer is not None:
                checkpoint.tokenizer.save_pretrained(folder)
        _copy_statements(checkpoint, folder)
        name = checkpoint.name if checkpoint.path is None else Path(checkpoint.name).name
        complete(folder, applied, card, name=name, on_hub=checkpoint.path is None)
        if checks:
            device = str(checkpoint.model.device)
            verify_export(folder, checks, device=device, trust_remote_code=trust_remote_code, name=str(directory))
    return directory


def complete(
    folder: Path, applied: Applied, card: Card | None = None, *, name: str | None = None, on_hub: bool = False
) -> None:
    """Make an export of a folder that holds a checkpoint.

    Args:
        folder: with ``config.json`` and weights.
        applied: what is applied to them.
        card: parts of the model card.
        name: of the checkpoint; None: its class.
        on_hub: whether the name is an id of the hub.
    """
    write_applied(folder, applied, [folder / "config.json", *find_weights(folder).files])
    architecture = architecture_of(folder)
    text = write_card(
        card or Card(), applied, name=name or architecture, head=head_class(architecture)[0], on_hub=on_hub
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def architecture_of(folder: Path) -> str:
    """The class that a checkpoint's config.json names."""
    names = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    return str(names[0])


def _with_own(checkpoint: Checkpoint, mask: Mask | None, rules: TokenRules | None) -> Mask | None:
    """The mask, and the one that the checkpoint has already."""
    if checkpoint.mask is None or mask is None:
        return mask or checkpoint.mask
    if checkpoint.rules != rules:
        raise CheckpointError(
            f"{checkpoint.name} is an export whose mask tells tokens by {checkpoint.rules}, and the new one by "
            f"{rules}: both can't act together; begin with the checkpoint that was exported"
        )
    return JointMask(masks=(checkpoint.mask, mask))


def _copy_statements(checkpoint: Checkpoint, folder: Path) -> None:
    if checkpoint.path is None:
        return
    for name in _STATEMENTS:
        if (checkpoint.path / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint.path / name, folder / name)
