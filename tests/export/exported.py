"""Exports of tiny models with random masks, and what the models gave before they were exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from attnprobe.attention import find_sites
from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.export.attaching import attached
from attnprobe.export.card import Card
from attnprobe.export.format import Applied
from attnprobe.export.writing import save_export
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.mask import GateMask, Mask
from attnprobe.masks.tokens import TokenRules
from attnprobe.quiet import quiet_transformers
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.families import CLS, SEP, Family, Inputs, run

LENGTH = 24
"""Tokens that the masks here cover."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export, and what it was made of."""

    folder: Path
    checkpoint: Checkpoint
    mask: Mask
    rules: TokenRules

    @property
    def applied(self) -> Applied:
        """What it applies."""
        return Applied(mask=self.mask, rules=self.rules)

    def masked(self, inputs: Mapping[str, Any]) -> Inputs:
        """What the model gives under its mask, in the session that the export knows nothing of."""
        with attached(self.checkpoint.model, self.applied):
            return run(self.checkpoint.model, dict(inputs))

    def dense(self, inputs: Mapping[str, Any]) -> Inputs:
        """What the model gives without it."""
        return run(self.checkpoint.model, dict(inputs))


def random_mask(
    model: PreTrainedModel, name: str = "offset", *, share: float = 0.6, seed: int = 0, length: int = LENGTH
) -> GateMask:
    """Gates of which a share is open, drawn anew for every site and head."""
    sites = find_sites(model)
    granularity = Granularity(name=name, length=length, block_size=3, causal=sites[0].causal)
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(len(sites), sites[0].heads, granularity.gates, generator=generator) < share
    return GateMask(granularity=granularity, gates=gates)


def export(folder: Path, checkpoint: Checkpoint, mask: Mask, rules: TokenRules, **changes: Any) -> Exported:
    """Write an export, without the fresh process."""
    options: dict[str, Any] = {"card": Card(), "provenance": {"method": "random", "target": 0.4}, **changes}
    save_export(folder, checkpoint=checkpoint, mask=mask, rules=rules, **options)
    return Exported(folder=folder, checkpoint=checkpoint, mask=mask, rules=rules)


def classifier(place: Path, granularity: str = "offset", **changes: Any) -> Exported:
    """A masked BERT classifier, made of ``place/dense``, in ``place/export``."""
    if not (place / "dense").exists():
        tiny.bert_classifier(place / "dense")
    checkpoint = open_checkpoint(str(place / "dense"))
    rules = TokenRules.of(checkpoint.tokenizer, causal=False)
    return export(place / "export", checkpoint, random_mask(checkpoint.model, granularity), rules, **changes)


def generator(place: Path, granularity: str = "offset") -> Exported:
    """A masked GPT-2."""
    checkpoint = open_checkpoint(str(tiny.gpt2_causal_lm(place / "dense")))
    rules = TokenRules.of(checkpoint.tokenizer, causal=True)
    return export(place / "export", checkpoint, random_mask(checkpoint.model, granularity), rules)


def of_family(place: Path, family: Family, granularity: str = "offset") -> Exported:
    """A masked model of a family, without a tokenizer."""
    with quiet_transformers():
        family.model().save_pretrained(place / "dense")
    checkpoint = open_checkpoint(str(place / "dense"), need_tokenizer=False)
    special = not (family.causal or family.pixels)
    rules = TokenRules(cls_id=CLS if special else None, sep_id=SEP if special else None, causal=family.causal)
    return export(place / "export", checkpoint, random_mask(checkpoint.model, granularity), rules)


def texts(exported: Exported, *lines: str, side: str = "right") -> Inputs:
    """A batch of texts; padded on the left, with position ids where BERT would not count right."""
    tokenizer = exported.checkpoint.tokenizer
    assert tokenizer is not None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(list(lines or LINES), padding=True, padding_side=side, return_tensors="pt")
    inputs = dict(batch)
    if side == "left":
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
    return inputs


LINES = ("a good film and a bad plot", "the cat sat", "it is not very good")
