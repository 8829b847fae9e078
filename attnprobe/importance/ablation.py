"""Remove cells and run the model again: the effect itself, at the cost of a pass each.

What is left of a row is renormalised, a row left empty gives 0, and the effect is the change of the loss and the
divergence of the output from the dense model's. Beside each class stands the mean effect of matched random cells.

A pass that changes nothing below a site begins at that site: the states below are those of the dense pass, where the
model's blocks allow it (:mod:`attnprobe.attention.blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from attnprobe.attention import AttentionCall
from attnprobe.attention.blocks import State
from attnprobe.importance.context import Context, Item, Measurement
from attnprobe.importance.controls import matched_offset, matched_random
from attnprobe.scoring import to_numpy


class _Ablation:
    """Ablations of one batch. Call inside ``torch.no_grad``."""

    def __init__(self, context: Context, item: Item) -> None:
        self.context, self.item = context, item
        dense = item.prepared.dense
        assert dense is not None
        self.dense_loss = self._loss(dense)
        self.nothing = {  # of what no example has: the form of the results, which are n/a
            "loss": self.dense_loss,
            "kl": self.dense_loss,
            "prediction": context.objective.predictions(dense, item.prepared),
        }
        blocks = context.session.blocks
        self.states: list[State] = []
        if blocks is not None:
            with blocks.recorded() as self.states:
                context.forward(item.prepared)
        self.results: dict[str, Tensor] = {}

    def _loss(self, output: Tensor) -> Tensor:
        return self.context.objective.loss(output, self.item.prepared)

    def remove(self, cells: Tensor, *, site: int | None = None, head: int | None = None) -> dict[str, Tensor]:
        """Effect of removing cells, bool (batch, queries, keys), from all sites or one, all its heads or one.

        Returns:
            Changes of the loss and divergences, each (batch,), and the predictions, (batch, columns).
        """
        keep = ~cells.unsqueeze(1)
        if head is not None:
            others = torch.arange(self.context.layout.heads, device=cells.device).view(1, -1, 1, 1) != head
            keep = keep | others

        def gate(call: AttentionCall) -> Tensor | None:
            return keep if site is None or call.site.index == site else None

        session = self.context.session
        reused = session.blocks.resumed(site, self.states) if session.blocks and site is not None else nullcontext()
        with session.gate(gate), reused:
            output = self.context.forward(self.item.prepared)
        objective, prepared = self.context.objective, self.item.prepared
        return {
            "loss": self._loss(output) - self.dense_loss,
            "kl": objective.divergence(output, prepared),
            "prediction": objective.predictions(output, prepared),
        }

    def measure(
        self,
        level: str,
        place: tuple[int, ...],
        cells: Tensor,
        *,
        controls: Sequence[Callable[[], Tensor]] = (),
        site: int | None = None,
        head: int | None = None,
    ) -> None:
        """Store the effect of some cells, and the mean effect of their controls, at a place of a level.

        Examples that have none of the cells are n/a.
        """
        present = cells.any((1, 2))
        found = bool(present.any())
        self._store(level, place, present, self.remove(cells, site=site, head=head) if found else self.nothing)
        if not (controls and found):
            return
        drawn = [control() for control in controls]
        effects = [self.remove(random_cells, site=site, head=head) for random_cells in drawn]
        matched = present & torch.stack([cells.any((1, 2)) for cells in drawn]).all(0)
        means = {f"control_{name}": torch.stack([e[name] for e in effects]).mean(0) for name in ("loss", "kl")}
        means["control_cells"] = torch.stack([cells.sum((1, 2)).float() for cells in drawn]).mean(0)
        self._store(level, place, matched, means)

    def _store(self, level: str, place: tuple[int, ...], present: Tensor, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            shape = (len(value), *self.context.layout.shape(level), *value.shape[1:])
            key = f"{level}/{name}"
            if key not in self.results:
                self.results[key] = torch.full(shape, torch.nan, dtype=torch.float32, device=value.device)
            value = value.float().masked_fill(~present.view(-1, *[1] * (value.dim() - 1)), torch.nan)
            where: tuple[slice | int, ...] = (slice(None), *place)
            self.results[key][where] = value


def measure(context: Context, item: Item) -> Measurement:
    """Effects at the levels asked for, each against the same dense pass."""
    with torch.no_grad():
        ablation = _Ablation(context, item)
        for level in context.options.ablation_levels:
            _LEVEL[level](ablation)
    return Measurement(per_example={name: to_numpy(values) for name, values in ablation.results.items()})


def _draw(ablation: _Ablation, name: int, draws: int) -> list[Callable[[], Tensor]]:
    item = ablation.item
    return [lambda: matched_random(item.cells, name, item.generator)] * draws


def _classes(ablation: _Ablation) -> None:
    for name in range(len(ablation.context.layout.classes)):
        controls = _draw(ablation, name, ablation.context.options.control_draws)
        ablation.measure("class", (name,), ablation.item.cells.of(name), controls=controls)


def _class_sites(ablation: _Ablation) -> None:
    layout = ablation.context.layout
    for name in range(len(layout.classes)):
        cells = ablation.item.cells.of(name)
        for site in range(layout.sites):
            ablation.measure("class_site", (name, site), cells, controls=_draw(ablation, name, 1), site=site)


def _class_heads(ablation: _Ablation) -> None:
    layout = ablation.context.layout
    for name in range(len(layout.classes)):
        cells = ablation.item.cells.of(name)
        for site in range(layout.sites):
            for head in range(layout.heads):
                controls = _draw(ablation, name, 1)
                ablation.measure("class_head", (name, site, head), cells, controls=controls, site=site, head=head)


def _sites(ablation: _Ablation) -> None:
    everything = torch.ones_like(ablation.item.cells.at.valid)
    for site in range(ablation.context.layout.sites):
        ablation.measure("site", (site,), everything, site=site)


def _heads(ablation: _Ablation) -> None:
    everything = torch.ones_like(ablation.item.cells.at.valid)
    layout = ablation.context.layout
    for site in range(layout.sites):
        for head in range(layout.heads):
            ablation.measure("head", (site, head), everything, site=site, head=head)


def _offsets(ablation: _Ablation) -> None:
    cells, generator = ablation.item.cells, ablation.item.generator
    for place, offset in enumerate(ablation.context.layout.offsets):
        control = [lambda offset=offset: matched_offset(cells, offset, generator)]
        ablation.measure("offset", (place,), cells.of_offset(offset), controls=control)


_LEVEL: dict[str, Callable[[_Ablation], Any]] = {
    "class": _classes,
    "site": _sites,
    "head": _heads,
    "class_site": _class_sites,
    "class_head": _class_heads,
    "offset": _offsets,
}
