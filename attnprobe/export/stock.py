"""Writes a checkpoint to which nothing is applied: transformers alone loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel

from attnprobe.architectures import AUTO_CLASSES, head_class
from attnprobe.attention.session import under_stock_name
from attnprobe.checkpoint import Checkpoint
from attnprobe.export.card import Card, stock_card
from attnprobe.export.folders import replaced
from attnprobe.export.format import TUNED
from attnprobe.export.verification import Check, verify_export
from attnprobe.export.writing import architecture_of
from attnprobe.quiet import quiet_transformers


def save_stock(
    directory: Path,
    *,
    checkpoint: Checkpoint,
    card: Card,
    provenance: Mapping[str, Any],
    checks: Sequence[Check],
    trust_remote_code: bool = False,
) -> Path:
    """Write a checkpoint into a folder, which appears whole, and verified, or not at all.

    Args:
        directory: the folder; absent, empty, or an earlier one of attnprobe, which is replaced.
        checkpoint: its model is saved as it is in memory.
        card: parts of the model card.
        provenance: how it was made, as plain values.
        checks: what the model gives; it is loaded in a fresh process, by transformers alone, and compared.
        trust_remote_code: whether the checkpoint needs Python code of its own.

    Returns:
        The folder.

    Raises:
        RunFolderError: the folder holds something else, or can't be written.
        VerificationError: a fresh process does not get what the model gave; nothing is left of it.
    """
    with replaced(directory) as folder:
        with quiet_transformers(), under_stock_name(checkpoint.model):
            checkpoint.model.save_pretrained(folder)
            if checkpoint.tokenizer is not None:
                checkpoint.tokenizer.save_pretrained(folder)
        (folder / TUNED).write_text(json.dumps(provenance, indent=2, default=str) + "\n", encoding="utf-8")
        name = checkpoint.name if checkpoint.path is None else Path(checkpoint.name).name
        head = head_class(architecture_of(folder))[0]
        text = stock_card(card, provenance, name=name, head=head, on_hub=checkpoint.path is None)
        (folder / "README.md").write_text(text, encoding="utf-8")
        device = str(checkpoint.model.device)
        verify_export(
            folder, checks, device=device, trust_remote_code=trust_remote_code, stock=True, name=str(directory)
        )
    return directory


def load_stock(directory: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Load a checkpoint by the ``AutoModel`` class of its head, and nothing else."""
    auto = getattr(transformers, AUTO_CLASSES[head_class(architecture_of(Path(directory)))[0]])
    with quiet_transformers():
        model: PreTrainedModel = auto.from_pretrained(directory, trust_remote_code=trust_remote_code).eval()
    return model
