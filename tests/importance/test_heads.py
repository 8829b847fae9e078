"""Entropy, divergence and matching of heads against loops, scipy and brute force."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attnprobe.importance import mass
from attnprobe.importance.context import Measurement
from attnprobe.importance.heads import BINS, ENTROPY_LIMIT, heads_table, quantiles
from attnprobe.objectives import CausalLM
from attnprobe.statistics import bootstrap_means
from tests.helpers.probing import HEADS, ROWS, SITES, Row, Setting, batch_of, probing, series
from tests.helpers.probing import assert_close as close
from tests.importance.setting import dense
from tests.references.importance import entropy

CHOICES = ("included", "excluded")
EDGES = (np.arange(BINS + 1) / BINS) ** 2 * ENTROPY_LIMIT
"""Of the histogram's bins, finer towards 0."""


def chosen_rows(row: Row, special: str) -> list[int]:
    return [i for i, segment in enumerate(row.segments) if special == "included" or segment >= 0]


def measured(setting: Setting | None = None) -> Measurement:
    with probing(setting or Setting()) as (context, item):
        return mass.measure(context, item)


@pytest.mark.parametrize("special", CHOICES)
def test_entropy_and_its_share_of_the_largest_possible(special: str) -> None:
    found = measured()
    for number, row in enumerate(ROWS):
        rows = chosen_rows(row, special)
        for site in range(SITES):
            for head in range(HEADS):
                p = dense(row).p[site][head].tolist()
                actual = series(found, f"head/entropy-{special}")[number, site, head]
                share = series(found, f"head/normalised-{special}")[number, site, head]
                if not rows:
                    assert math.isnan(actual)
                    assert math.isnan(share)
                    continue
                expected = sum(entropy(p[i]) for i in rows) / len(rows)
                close(actual, expected)
                close(share, expected / math.log(len(row.ids)))


@pytest.mark.parametrize("special", CHOICES)
def test_divergence_from_the_site_below_against_scipy(special: str) -> None:
    found = measured()
    for number, row in enumerate(ROWS):
        rows = chosen_rows(row, special)
        for head in range(HEADS):
            assert math.isnan(series(found, f"head/jsd-{special}")[number, 0, head])
            if rows:
                above, below = (dense(row).p[site][head].numpy() for site in (1, 0))
                expected = np.mean([jensenshannon(above[i], below[i]) ** 2 for i in rows])
                close(series(found, f"head/jsd-{special}")[number, 1, head], expected)


def test_matching_against_every_permutation() -> None:
    """On the examples that are compared in full: the first four of the batch."""
    found = measured()
    assert found.sums is not None
    table = heads_table(
        {
            name.removeprefix("head/"): bootstrap_means(
                lambda name=name: [(np.arange(len(ROWS)), found.per_example[name].reshape(len(ROWS), -1))],  # type: ignore[misc]
                len(ROWS),
                resamples=10,
                seed=0,
            )
            for name in found.per_example
            if name.startswith("head/")
        },
        found.sums,
        SITES,
        HEADS,
    )
    for special in CHOICES:
        divergence = np.zeros((HEADS, HEADS))
        count = 0
        for row in ROWS[:4]:
            rows = chosen_rows(row, special)
            count += len(rows)
            for upper in range(HEADS):
                for lower in range(HEADS):
                    above, below = dense(row).p[1][upper].numpy(), dense(row).p[0][lower].numpy()
                    divergence[upper, lower] += sum(jensenshannon(above[i], below[i]) ** 2 for i in rows)
        best = min(permutations(range(HEADS)), key=lambda order: sum(divergence[h, order[h]] for h in range(HEADS)))
        part = table[(table["special"] == special) & (table["site"] == 1)]
        assert part["matched_head"].tolist() == list(best)
        close(part["jsd_matched"], [divergence[h, best[h]] / count for h in range(HEADS)], rtol=1e-4)
        first = table[(table["special"] == special) & (table["site"] == 0)]
        assert first["matched_head"].isna().all()
        assert first["jsd_matched"].isna().all()
        assert set(table[table["special"] == special]["rows"]) == {sum(len(chosen_rows(r, special)) for r in ROWS)}


def test_quantiles_are_within_a_bin_of_the_rows_own() -> None:
    found = measured()
    assert found.sums is not None
    got = quantiles(found.sums["histogram-included"], (0.25, 0.5, 0.75))
    for site in range(SITES):
        for head in range(HEADS):
            rows = [entropy(p) for row in ROWS for p in dense(row).p[site][head].tolist()]
            for share, values in zip((0.25, 0.5, 0.75), got, strict=True):
                expected = np.quantile(rows, share, method="inverted_cdf")
                above = int(np.searchsorted(EDGES, expected))
                assert EDGES[max(0, above - 1)] <= values[site, head] + 1e-9
                assert values[site, head] - 1e-9 <= EDGES[above]


def test_quantiles_by_hand() -> None:
    histogram = np.zeros((2, BINS), dtype=np.int64)
    histogram[0, 10], histogram[0, 20] = 4, 4
    low, half, high = quantiles(histogram, (0.25, 0.5, 0.75))
    close([low[0], half[0], high[0]], [(bins / BINS) ** 2 * ENTROPY_LIMIT for bins in (10.5, 11, 20.5)])
    assert np.isnan([low[1], half[1], high[1]]).all()


@pytest.mark.parametrize("include_special", [True, False])
def test_maps_are_means_over_the_examples_behind_each_cell(include_special: bool) -> None:
    sums = measured(Setting(include_special=include_special)).sums
    assert sums is not None
    n = len(ROWS[0].ids)
    counts, maps = np.zeros((n, n)), np.zeros((SITES, HEADS, n, n))
    for row in ROWS:
        for i in range(len(row.ids)):
            for j in range(len(row.ids)):
                if include_special or (row.segments[i] >= 0 and row.segments[j] >= 0):
                    counts[i, j] += 1
                    for site in range(SITES):
                        for head in range(HEADS):
                            maps[site, head, i, j] += float(dense(row).p[site][head][i, j])
    close(sums["map_counts"], counts)
    close(sums["maps"], maps)


def test_one_batch_or_many_add_up_to_the_same_sums() -> None:
    together = measured().sums
    apart = [measured(Setting(batch=batch_of((row,)))).sums for row in ROWS]
    assert together is not None
    for name in ("histogram-included", "histogram-excluded"):
        close(sum(sums[name] for sums in apart if sums), together[name])


def test_entropies_of_causal_rows_are_shares_of_what_they_may_see() -> None:
    """GPT-2's first token sees itself alone: its entropy is 0, and has no share."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=19, n_embd=6, n_layer=2, n_head=3, n_positions=11, bos_token_id=0, eos_token_id=0)
        ).eval()
        for block in model.transformer.h:
            block.attn.c_attn.weight.data.zero_()
    with probing(Setting(model=model, objective=CausalLM())) as (context, item):
        assert context.layout.causal
        found = mass.measure(context, item)
    for number, row in enumerate(ROWS):
        seen = range(1, len(row.ids) + 1)
        close(series(found, "head/entropy-included")[number, 0, 0], np.mean([math.log(k) for k in seen]))
        close(series(found, "head/normalised-included")[number, 0, 0], 1.0)
