"""English prose that every Python carries: sentences of its own language reference.

For a first look at a checkpoint when no data is at hand. The text is that of `pydoc_data.topics`, so it differs a
little between Python versions; the digest of the examples tells.
"""

from __future__ import annotations

import random
import re

from attnprobe.data.sources import Examples

_SHORTEST, _LONGEST = 8, 40  # words


def prose(limit: int | None = None, *, skip: int = 0) -> Examples:
    """Sentences in a fixed shuffled order, without labels; at most `limit` of them, after the first `skip`."""
    from pydoc_data.topics import topics

    sentences = {sentence for text in topics.values() for sentence in _sentences(text)}
    ordered = sorted(sentences)
    random.Random(0).shuffle(ordered)
    return Examples.of(
        kind="text",
        texts=[(sentence,) for sentence in ordered[skip : None if limit is None else skip + limit]],
        source="the prose of Python's language reference (pydoc_data.topics)",
    )


def _sentences(text: str) -> list[str]:
    """Whole sentences of the paragraphs of a topic; tables, grammar and code are left out."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not re.match(r"[A-Z][a-z]*[ ,]", paragraph) or re.search(r"::=|>>>|\n {3,}|[|+]--", paragraph):
            continue
        for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z])", " ".join(paragraph.split())):
            words = sentence.split()
            if sentence.endswith(".") and _SHORTEST <= len(words) <= _LONGEST:
                found.append(sentence)
    return found
