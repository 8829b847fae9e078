"""What each head's attention looks like: entropy of its rows, divergence from the site below, average map.

Entropy H = -sum_j p_j log p_j of a query's row, in nats, dropout off, padding excluded; also H / log(valid keys).
Divergence is Jensen-Shannon's, JSD(P, Q) = H((P + Q) / 2) - H(P) / 2 - H(Q) / 2, in nats, row by row between head i of
a site and head i of the site below (He et al. 2021, RealFormer). Heads of an ordinary checkpoint have no order, so it
is also given after the best one-to-one matching of the two sites' heads.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attnprobe.data.positions import Positions
from attnprobe.importance.context import Arrays
from attnprobe.importance.layout import Layout
from attnprobe.scoring import to_numpy
from attnprobe.statistics import Estimate

BINS = 256
"""Bins of the histogram from which quartiles of row entropies are read: even in the root of the entropy, so that
heads which attend to one token are told apart."""

ENTROPY_LIMIT = math.log(32768)
"""Upper end of the histogram in nats: uniform attention over 32,768 keys."""

MATCHED_EXAMPLES = 4
"""Examples of every batch on which heads are matched: all pairs of heads are compared, which is costly."""


def row_entropy(p: Tensor) -> Tensor:
    """Entropy of each row in nats: (..., queries, keys) to (..., queries). 0 log 0 = 0."""
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy


class HeadStatistics:
    """Statistics of one batch's attention, fed site by site."""

    def __init__(self, at: Positions, layout: Layout, *, length: int) -> None:
        self.at = at
        self.length = length
        shape = (layout.sites, layout.heads)
        batch = len(at.token)
        device = at.token.device
        self.rows = {"included": at.token, "excluded": at.token & ~at.special}
        self.entropy = {name: torch.full((batch, *shape), torch.nan, device=device) for name in self.rows}
        self.normalised = {name: torch.full((batch, *shape), torch.nan, device=device) for name in self.rows}
        self.histogram = {name: np.zeros((*shape, BINS), dtype=np.int64) for name in self.rows}
        self.jsd = {name: torch.full((batch, *shape), torch.nan, device=device) for name in self.rows}
        self.pairs = {name: np.zeros((layout.sites, layout.heads, layout.heads)) for name in self.rows}
        self.paired_rows = {name: np.zeros(()) for name in self.rows}
        self.maps = np.zeros((*shape, length, length))
        self._below: tuple[Tensor, Tensor] | None = None
        keys = at.token.sum(1).view(-1, 1) if not at.causal else at.index + 1
        self._log_keys = keys.expand_as(at.token).float().log()

    def add(self, site: int, p: Tensor) -> None:
        """Take in a site's probabilities (batch, heads, queries, keys)."""
        entropy = row_entropy(p)
        share = entropy / self._log_keys.clamp_min(1e-9).unsqueeze(1).to(entropy)
        for name, rows in self.rows.items():
            self.entropy[name][:, site] = _row_mean(entropy, rows)
            self.normalised[name][:, site] = _row_mean(share, rows & (self._log_keys > 0))
            kept = entropy.transpose(0, 1)[:, rows].cpu().double().numpy()
            bins = np.clip((np.sqrt(kept / ENTROPY_LIMIT) * BINS).astype(np.int64), 0, BINS - 1)
            for head, of_head in enumerate(bins):
                self.histogram[name][site, head] += np.bincount(of_head, minlength=BINS)
        if self._below is not None:
            self._compare(site, p, entropy, *self._below)
        self._below = (p, entropy)
        self._add_map(site, p)

    def _compare(self, site: int, p: Tensor, entropy: Tensor, below: Tensor, below_entropy: Tensor) -> None:
        same = row_entropy((p + below) / 2) - (entropy + below_entropy) / 2
        for name, rows in self.rows.items():
            self.jsd[name][:, site] = _row_mean(same, rows)
        few = slice(0, MATCHED_EXAMPLES)
        for head in range(p.shape[1]):
            mixed = row_entropy((p[few, head : head + 1] + below[few]) / 2)
            divergence = mixed - (entropy[few, head : head + 1] + below_entropy[few]) / 2
            for name, rows in self.rows.items():
                self.pairs[name][site, head] += to_numpy((divergence * rows[few].unsqueeze(1)).sum((0, 2)))
        if site == 1:
            for name, rows in self.rows.items():
                self.paired_rows[name] = np.asarray(float(rows[few].sum()))

    def _add_map(self, site: int, p: Tensor) -> None:
        by_token = _by_token_position(p * self.at.valid.unsqueeze(1), self.at, self.length)
        self.maps[site] += by_token.sum(0).cpu().double().numpy()

    def per_example(self) -> dict[str, Tensor]:
        """Means over each example's rows: ``head/entropy-included`` and so on, (batch, sites, heads)."""
        return {
            f"head/{series}-{name}": values
            for series, by_rows in (
                ("entropy", self.entropy),
                ("normalised", self.normalised),
                ("jsd", self.jsd),
            )
            for name, values in by_rows.items()
        }

    def sums(self) -> Arrays:
        """What is added up over batches: histograms, sums of divergences of all pairs of heads, maps."""
        cells = _by_token_position(self.at.valid.unsqueeze(1).double(), self.at, self.length)
        return {
            **{f"histogram-{name}": values for name, values in self.histogram.items()},
            **{f"pairs-{name}": values for name, values in self.pairs.items()},
            **{f"paired_rows-{name}": values for name, values in self.paired_rows.items()},
            "maps": self.maps,
            "map_counts": cells.sum((0, 1)).cpu().numpy(),
        }


def _row_mean(values: Tensor, rows: Tensor) -> Tensor:
    """Mean over the chosen rows of each example: (batch, heads, queries) to (batch, heads); NaN without rows."""
    kept = rows.unsqueeze(1)
    return (values * kept).sum(-1) / kept.sum(-1)


def _by_token_position(values: Tensor, at: Positions, length: int) -> Tensor:
    """Cells moved to their token positions, whatever the padding: (batch, heads, length, length), cut to length."""
    order = torch.argsort(at.token.int(), dim=1, descending=True, stable=True)
    heads, queries, keys = values.shape[1:]
    index = order.view(len(order), 1, -1, 1)
    moved = values.gather(2, index.expand(-1, heads, -1, keys))
    moved = moved.gather(3, order.view(len(order), 1, 1, -1).expand(-1, heads, queries, -1))
    count = at.token.sum(1)
    inside = torch.arange(queries, device=values.device) < count.unsqueeze(1)
    moved = moved * (inside.unsqueeze(2) & inside.unsqueeze(1)).unsqueeze(1)
    cut = min(length, queries)
    padded = moved.new_zeros(len(moved), heads, length, length)
    padded[:, :, :cut, :cut] = moved[:, :, :cut, :cut]
    return padded


def quantiles(histogram: NDArray[np.int64], shares: tuple[float, ...]) -> list[NDArray[np.float64]]:
    """Quantiles of binned entropies, linear within a bin: (..., bins) to (...) for each share; NaN when empty."""
    cumulative = histogram.cumsum(-1)
    total = cumulative[..., -1:]
    found = []
    for share in shares:
        target = share * total
        index = (cumulative < target).sum(-1, keepdims=True).clip(max=histogram.shape[-1] - 1)
        inside = np.take_along_axis(histogram, index, -1)
        before = np.take_along_axis(cumulative, index, -1) - inside
        fraction = np.divide(target - before, inside, out=np.full(index.shape, np.nan), where=inside > 0)
        found.append((((index + fraction) / histogram.shape[-1]) ** 2 * ENTROPY_LIMIT)[..., 0])
    return found


def heads_table(estimates: dict[str, Estimate], sums: Arrays, sites: int, heads: int) -> pd.DataFrame:
    """``heads.csv``: one row for each head and each choice of rows (special tokens' rows included or excluded).

    Args:
        estimates: of the per-example means, by series (``entropy-included`` ...), figures in order (site, head).
        sums: running sums of :meth:`HeadStatistics.sums`.
        sites: number of sites.
        heads: heads of a site.
    """
    tables = []
    for name in ("included", "excluded"):
        entropy, jsd = estimates[f"entropy-{name}"], estimates[f"jsd-{name}"]
        entropy_low, entropy_high = entropy.interval()
        jsd_low, jsd_high = jsd.interval()
        q25, median, q75 = quantiles(sums[f"histogram-{name}"], (0.25, 0.5, 0.75))
        matched_head, matched_jsd = _match(sums[f"pairs-{name}"], float(sums[f"paired_rows-{name}"]))
        tables.append(
            pd.DataFrame(
                {
                    "site": np.repeat(np.arange(sites), heads),
                    "head": np.tile(np.arange(heads), sites),
                    "special": name,
                    "entropy_mean": entropy.value,
                    "entropy_ci_low": entropy_low,
                    "entropy_ci_high": entropy_high,
                    "entropy_q25": q25.ravel(),
                    "entropy_median": median.ravel(),
                    "entropy_q75": q75.ravel(),
                    "normalised_entropy_mean": estimates[f"normalised-{name}"].value,
                    "jsd_previous": jsd.value,
                    "jsd_previous_ci_low": jsd_low,
                    "jsd_previous_ci_high": jsd_high,
                    "matched_head": matched_head.ravel(),
                    "jsd_matched": matched_jsd.ravel(),
                    "rows": sums[f"histogram-{name}"].sum(-1).ravel(),
                }
            )
        )
    return pd.concat(tables, ignore_index=True).astype({"matched_head": "Int64"})


def _match(pairs: NDArray[np.float64], rows: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each head the head of the site below that it is matched with, and their divergence; NaN at site 0."""
    partner = np.full(pairs.shape[:2], np.nan)
    divergence = np.full(pairs.shape[:2], np.nan)
    for site in range(1, len(pairs)):
        upper, lower = linear_sum_assignment(pairs[site])
        partner[site, upper] = lower
        divergence[site, upper] = pairs[site][upper, lower] / rows if rows else np.nan
    return partner, divergence
