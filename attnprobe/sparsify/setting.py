"""What all points of a sweep share beside data and model: counts of gates, scores, fitted patterns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from transformers import PreTrainedModel

from attnprobe.attention import AttentionSession
from attnprobe.data.batches import Encoded
from attnprobe.data.positions import Positions
from attnprobe.data.sources import DataOptions, Examples
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.patterns import fit_pattern, pattern_mask
from attnprobe.masks.sparsity import GateCounts, count_gates
from attnprobe.options import ModelOptions
from attnprobe.sparsify.controls import GateSums
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.training.ground import Ground, laid
from attnprobe.workbench import Workbench

_COUNTED = 20_000
"""Training rows on which gates are counted at most; more would change a share in the fourth digit."""

_SCORED = 2000
"""Training rows from which gates are scored at most."""


class Setting(Ground):
    """One sweep's fixed parts. Made inside an attached model.

    Attributes:
        options: of the sweep.
        granularity: of the gates.
    """

    options: SparsifyOptions

    def __init__(
        self,
        bench: Workbench,
        session: AttentionSession,
        training: Examples,
        options: SparsifyOptions,
        model: ModelOptions,
        dense_model: PreTrainedModel | None,
    ) -> None:
        super().__init__(bench, session, training, options, model, dense_model)
        self.granularity = Granularity(
            name=options.granularity,
            length=self.lesson.encoded.max_length,
            block_size=options.block_size,
            symmetric=options.symmetric,
            segment_aware=options.segment_aware,
            causal=self.rules.causal,
        )
        self._counts: dict[str, GateCounts] = {}
        self._fits: dict[tuple[str, float], Mapping[str, int]] = {}

    def positions(self, encoded: Encoded, rows: list[int]) -> Iterator[Positions]:
        """The positions of some rows, batch by batch."""
        for batch in map(encoded.batch, encoded.plan(self.model_options.per_device_batch_size, rows=rows)):
            yield self.rules.positions(
                batch.inputs["input_ids"], batch.inputs["attention_mask"], window=self.options.window
            )

    @property
    def counted(self) -> list[int]:
        """Training rows on which cells are counted."""
        return list(self.lesson.rows[:_COUNTED])

    def counts(self, diagonal: str) -> GateCounts:
        """Cells of each gate on the data over which sparsity is held."""
        if diagonal not in self._counts:
            learnt_from = self.positions(self.lesson.encoded, self.counted)
            counts = count_gates(self.granularity, learnt_from, diagonal=diagonal)
            if self.options.count_on == "eval":
                seen = counts.seen
                counts = count_gates(self.granularity, self.counted_positions(), diagonal=diagonal)
                counts = replace(counts, seen=seen | counts.seen)
            self._counts[diagonal] = counts
        return self._counts[diagonal]

    def counted_positions(self) -> Iterator[Positions]:
        """The data over whose lengths sparsity is held at the target."""
        if self.options.count_on == "train":
            return self.positions(self.lesson.encoded, self.counted)
        return self.positions(self.bench.encoded, list(range(len(self.bench.encoded)))[:_COUNTED])

    @cached_property
    def sums(self) -> GateSums:
        """What each gate collects on training rows in the dense model."""
        sums = GateSums(self.granularity, sites=self.sites, heads=self.heads, device=self.session.model.device)
        generator = torch.Generator().manual_seed(self.bench.seed)
        rows = list(self.lesson.rows[:_SCORED])
        encoded = self.lesson.encoded
        for batch in map(encoded.batch, encoded.plan(self.model_options.per_device_batch_size, rows=rows)):
            prepared = self.bench.objective.prepare(batch.to(self.session.model.device))
            prepared = prepared.with_dense(self.dense.now(prepared))
            sums.add(self.session, self.bench.objective, prepared, self.rules, generator)
        return sums

    def fitted(self, pattern: str, target: float) -> Mapping[str, int]:
        """The parameters at which a pattern is nearest to a target sparsity on the training data."""

        def density(parameters: Mapping[str, int]) -> float:
            kept = valid = 0
            for at in self.counted_positions():
                kept += int((pattern_mask(pattern, at, parameters) & at.valid).sum())
                valid += int(at.valid.sum())
            return kept / valid

        if (pattern, target) not in self._fits:
            self._fits[pattern, target] = fit_pattern(pattern, density, 1 - target)[0]
        return self._fits[pattern, target]


@contextmanager
def opened(name: str, data: DataOptions, model: ModelOptions, options: SparsifyOptions) -> Iterator[Setting]:
    """Open everything that the points of a sweep share. Raises: AttnProbeError, see :func:`laid`."""
    with laid(Setting, name, data, model, options, weights=options.train == "all") as setting:
        yield setting
