"""What figures a run has: how many of each level, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprobe.attention import Site
from attnprobe.data.positions import UNIONS, membership, partition
from attnprobe.errors import UnsupportedModelError
from attnprobe.importance.methods import LEVELS


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The figures of one run.

    Attributes:
        sites: number of sites.
        heads: query heads of a site.
        causal: whether attention is causal.
        classes: names of position classes and of unions.
        offsets: i - j, in tokens, from the most negative (a later key) on.
    """

    sites: int
    heads: int
    causal: bool
    classes: tuple[str, ...]
    offsets: tuple[int, ...]

    @property
    def membership(self) -> Tensor:
        """bool (classes, classes of the partition + 1); the last column, cells that are not measured, is False."""
        members = membership(self.classes, self.causal)
        return torch.cat([members, members.new_zeros(len(members), 1)], dim=1)

    def shape(self, level: str) -> tuple[int, ...]:
        """Sizes of a level's axes."""
        sizes = {
            "class": len(self.classes),
            "site": self.sites,
            "head": self.heads,
            "offset": len(self.offsets),
        }
        return tuple(sizes[axis] for axis in LEVELS[level])


def lay_out(
    sites: Sequence[Site], *, classes: Sequence[str], include_special: bool, max_offset: int, longest: int
) -> Layout:
    """The layout for a model's sites.

    Args:
        sites: the sites.
        classes: names asked for; empty: the whole partition and all unions.
        include_special: without special tokens their classes have no cells and are left out unless named.
        max_offset: largest \\|i - j\\| in tokens.
        longest: tokens of the longest example.

    Raises:
        UnsupportedModelError: sites that differ in heads, or some causal and some not.
        UsageError: an unknown class.
    """
    heads, causal = {site.heads for site in sites}, {site.causal for site in sites}
    if len(heads) > 1 or len(causal) > 1:
        raise UnsupportedModelError(
            f"importance needs sites of one kind; this model has sites with {sorted(heads)} heads, "
            f"{'both causal and bidirectional' if len(causal) > 1 else 'all alike in causality'}"
        )
    is_causal = causal.pop()
    names = tuple(dict.fromkeys(classes)) or (*partition(is_causal), *UNIONS)
    membership(names, is_causal)  # raises for unknown names
    if not classes and not include_special:
        names = tuple(n for n in names if not n.startswith(("cls", "sep", "special", "first")))
    reach = max(0, min(max_offset, longest - 1))
    return Layout(
        sites=len(sites),
        heads=heads.pop(),
        causal=is_causal,
        classes=names,
        offsets=tuple(range(0 if is_causal else -reach, reach + 1)),
    )
