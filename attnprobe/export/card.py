"""The model card of an export: what it is, what it scored, how to load it, and how not to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from attnprobe import __version__
from attnprobe.architectures import HeadKind
from attnprobe.export.format import RECORD, TUNED, Applied
from attnprobe.export.words import in_words, residual_in_words

_PIPELINES: dict[HeadKind, str] = {
    "sequence_classification": "text-classification",
    "regression": "text-classification",
    "token_classification": "token-classification",
    "masked_lm": "fill-mask",
    "causal_lm": "text-generation",
    "none": "feature-extraction",
}
"""Heads by the hub's names of tasks."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says beside its fixed text.

    Attributes:
        summary: one or two sentences under the title.
        results: rows of one table; the first row's keys are its columns.
        command: the command line that made the export.
        notes: further sentences.
    """

    summary: str = ""
    results: Sequence[Mapping[str, object]] = ()
    command: str | None = None
    notes: Sequence[str] = ()


def write_card(card: Card, applied: Applied, *, name: str, head: HeadKind, on_hub: bool) -> str:
    """The card as Markdown.

    Args:
        card: its variable parts.
        applied: what the export applies.
        name: of the checkpoint, without its folder.
        head: of the model.
        on_hub: whether the name is an id of the hub.
    """
    parts = _parts(applied)
    named = _join([part.name for part in parts])
    front = _front(head, [part.tag for part in parts], name=name, on_hub=on_hub)
    settings = [{"setting": key, "value": value} for key, value in applied.provenance.items()]
    text = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {name}, {_join([part.title for part in parts])}",
        card.summary,
        f"This is the checkpoint `{name}` with {_join([part.words for part in parts])}.",
        "## How to load it",
        '```python\nimport attnprobe\n\nmodel = attnprobe.load("path/to/this/folder")\n```',
        f"This is an ordinary transformers model, with {named} applied in forward, in training and in `generate`. All "
        "commands of attnprobe take the folder as a checkpoint.",
        f"**Stock `AutoModel.from_pretrained` loads the weights WITHOUT {named}.** It gives no warning, and not the "
        "outputs that were measured here.",
        *(["## Results", _table(card.results)] if card.results else []),
        *card.notes,
        "## How it was made",
        *([f"```\n{card.command}\n```"] if card.command else []),
        *([_table(settings)] if settings else []),
        f"attnprobe {applied.version}. `{RECORD}` holds the same, what is applied, and the SHA-256 sums of the files "
        "that belong together; a file that is not the exported one is refused.",
    ]
    return "\n\n".join(paragraph for paragraph in text if paragraph) + "\n"


def stock_card(card: Card, provenance: Mapping[str, object], *, name: str, head: HeadKind, on_hub: bool) -> str:
    """The card of a fine-tuned checkpoint, to which nothing is applied. Arguments as :func:`write_card` has them."""
    settings = [{"setting": key, "value": value} for key, value in provenance.items()]
    text = [
        f"---\n{yaml.safe_dump(_front(head, ['fine-tuned'], name=name, on_hub=on_hub), sort_keys=False)}---",
        f"# {name}, fine-tuned",
        card.summary,
        "This is an ordinary checkpoint: `AutoModel` classes of transformers load it, and it has no cost of its own.",
        *(["## Results", _table(card.results)] if card.results else []),
        *card.notes,
        "## How it was made",
        *([f"```\n{card.command}\n```"] if card.command else []),
        *([_table(settings)] if settings else []),
        f"attnprobe {__version__}. `{TUNED}` holds the same.",
    ]
    return "\n\n".join(paragraph for paragraph in text if paragraph) + "\n"


def _front(head: HeadKind, tags: Sequence[str], *, name: str, on_hub: bool) -> dict[str, object]:
    """The card's front matter."""
    return {
        "library_name": "transformers",
        "pipeline_tag": _PIPELINES[head],
        "tags": ["attnprobe", *tags],
        **({"base_model": name} if on_hub else {}),
    }


class _Part(NamedTuple):
    """Something that is applied: in the title, in a sentence, by name, and as a tag."""

    title: str
    words: str
    name: str
    tag: str


def _parts(applied: Applied) -> list[_Part]:
    parts = []
    if applied.residual is not None:
        words = f"residual attention: {residual_in_words(applied.residual)}"
        parts.append(_Part("with residual attention", words, "the residual attention", "residual-attention"))
    if applied.mask is not None:
        words = f"a mask on its attention: {in_words(applied.mask)}"
        parts.append(_Part("with part of its attention removed", words, "the mask", "sparse-attention"))
    return parts


def _join(texts: Sequence[str]) -> str:
    return " and ".join(texts)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.replace("|", "\\|").split())
