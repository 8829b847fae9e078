"""The whole sentences among GLUE's SST-2 phrases, for masks whose data should be as long as what they are measured on.

    python -m benchmarks.sst2_sentences TRAIN_TSV OUT_TSV

GLUE's training file has every phrase of a treebank, its development file whole sentences: masks learnt on the first
would be measured on texts twice as long. A phrase is taken for a sentence when no other phrase contains it.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd


def whole(phrases: list[str]) -> set[str]:
    """Those of the phrases (words, by blanks) that no other contains."""
    holders: dict[str, list[str]] = defaultdict(list)
    """By word: the sentences so far that have it, with a blank at each end."""
    found = set()
    for phrase in sorted(set(phrases), key=lambda text: (-len(text), text)):
        words = set(phrase.split())
        rarest = min((holders[word] for word in words), key=len)
        padded = f" {phrase} "
        if not any(padded in sentence for sentence in rarest):
            found.add(phrase)
            for word in words:
                holders[word].append(padded)
    return found


def main(train: str, out: str) -> None:
    table = pd.read_csv(train, sep="\t", quoting=csv.QUOTE_NONE, keep_default_na=False)
    table["sentence"] = table["sentence"].str.strip()
    sentences = whole(table["sentence"].tolist())
    kept = table[table["sentence"].isin(sentences)].drop_duplicates("sentence")
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    kept.to_csv(out, sep="\t", index=False, quoting=csv.QUOTE_NONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
