"""Masks: which cells a model keeps. Deterministic, told by token position, and plain data when stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnprobe.data.positions import Positions
from attnprobe.errors import CheckpointError, UsageError
from attnprobe.masks.granularity import Granularity
from attnprobe.masks.patterns import pattern_mask, pattern_parameters

DIAGONALS = ("free", "keep", "drop")


class Mask(ABC):
    """What is kept at every site.

    Attributes:
        diagonal: ``keep`` or ``drop`` decides every token's cell to itself, ``free`` leaves it to the rest.
    """

    diagonal: str

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The most tokens a row may have; None: any number."""

    @property
    def shape(self) -> tuple[int, int] | None:
        """(sites, heads) of the model it was made for; None: any."""
        return None

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors on a device."""
        del device
        return self

    @abstractmethod
    def cells(self, at: Positions) -> Tensor:
        """What :meth:`keep` needs of a batch and is the same at every site."""

    @abstractmethod
    def open(self, cells: Tensor, site: int) -> Tensor:
        """Cells kept at a site before ``diagonal`` decides: bool (batch, heads or 1, queries, keys)."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything but the tensors, as plain values; ``kind`` tells the class."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by name."""

    def keep(self, at: Positions, site: int, cells: Tensor | None = None) -> Tensor:
        """Cells kept at a site: bool (batch, heads or 1, queries, keys).

        Args:
            at: the tokens.
            site: index of the site.
            cells: ``self.cells(at)``, where it is at hand; or its last rows and columns, for these alone.
        """
        kept = self.open(self.cells(at) if cells is None else cells, site)
        if self.diagonal == "free":
            return kept
        own = (at.offset[:, -kept.shape[2] :, -kept.shape[3] :] == 0).unsqueeze(1)
        return kept | own if self.diagonal == "keep" else kept & ~own


def _require_diagonal(value: str) -> None:
    if value not in DIAGONALS:
        raise UsageError(f"--diagonal must be one of {', '.join(DIAGONALS)}, not {value!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class GateMask(Mask):
    """Gates that are open or closed.

    Attributes:
        granularity: which cells each governs.
        gates: bool (sites, heads, gates), True = open.
        diagonal: see :class:`Mask`.
    """

    granularity: Granularity
    gates: Tensor
    diagonal: str = "free"

    def __post_init__(self) -> None:
        _require_diagonal(self.diagonal)
        if self.gates.dtype != torch.bool or self.gates.dim() != 3 or self.gates.shape[2] != self.granularity.gates:
            raise CheckpointError(
                f"gates must be bool (sites, heads, {self.granularity.gates}), "
                f"not {self.gates.dtype} {tuple(self.gates.shape)}: export the model again"
            )

    @property
    def limit(self) -> int | None:
        return self.granularity.limit

    @property
    def shape(self) -> tuple[int, int]:
        return self.gates.shape[0], self.gates.shape[1]

    def to(self, device: torch.device) -> GateMask:
        return replace(self, gates=self.gates.to(device))

    def cells(self, at: Positions) -> Tensor:
        return self.granularity.index(at)

    def open(self, cells: Tensor, site: int) -> Tensor:
        return spread(self.gates[site].to(cells.device), cells)

    def describe(self) -> dict[str, Any]:
        return {"kind": "gates", "granularity": self.granularity.as_dict(), "diagonal": self.diagonal}

    def tensors(self) -> dict[str, Tensor]:
        return {"gates": self.gates}


def spread(gates: Tensor, index: Tensor) -> Tensor:
    """Give each cell its gate: (heads, gates) and (batch, queries, keys) -> (batch, heads, queries, keys)."""
    heads = len(gates)
    return gates.index_select(1, index.reshape(-1)).view(heads, *index.shape).transpose(0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PatternMask(Mask):
    """A fixed pattern, the same at every site and head.

    Attributes:
        name: of the pattern, in :data:`~attnprobe.masks.patterns.PATTERNS`.
        parameters: of the pattern.
        diagonal: see :class:`Mask`.
    """

    name: str
    parameters: Mapping[str, int]
    diagonal: str = "free"

    def __post_init__(self) -> None:
        _require_diagonal(self.diagonal)
        object.__setattr__(self, "parameters", pattern_parameters(self.name, self.parameters))

    @property
    def limit(self) -> int | None:
        return None

    def cells(self, at: Positions) -> Tensor:
        return pattern_mask(self.name, at, self.parameters)

    def open(self, cells: Tensor, site: int) -> Tensor:
        del site
        return cells.bool().unsqueeze(1)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "pattern",
            "name": self.name,
            "parameters": dict(self.parameters),
            "diagonal": self.diagonal,
        }

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class JointMask(Mask):
    """Only what each of several masks keeps: a mask learnt on a model that was masked before.

    Attributes:
        masks: the masks; a joint one among them counts as its parts.
        diagonal: ``free``: each of them decides on its own.
    """

    masks: tuple[Mask, ...]
    diagonal: str = "free"

    def __post_init__(self) -> None:
        parts = [mask.masks if isinstance(mask, JointMask) else (mask,) for mask in self.masks]
        object.__setattr__(self, "masks", tuple(part for of_one in parts for part in of_one))
        shapes = {mask.shape for mask in self.masks} - {None}
        if not self.masks or len(shapes) > 1:
            raise CheckpointError(
                f"masks that act together are for one model, not for {sorted(map(str, shapes))} (sites, heads): "
                "export the model again"
            )

    @property
    def limit(self) -> int | None:
        return min((mask.limit for mask in self.masks if mask.limit is not None), default=None)

    @property
    def shape(self) -> tuple[int, int] | None:
        return next((mask.shape for mask in self.masks if mask.shape is not None), None)

    def to(self, device: torch.device) -> JointMask:
        return replace(self, masks=tuple(mask.to(device) for mask in self.masks))

    def cells(self, at: Positions) -> Tensor:
        """int64 (masks, batch, queries, keys)."""
        return torch.stack([mask.cells(at).long() for mask in self.masks])

    def open(self, cells: Tensor, site: int) -> Tensor:
        raise NotImplementedError("masks that act together decide each on its own diagonal: ask `keep`")

    def keep(self, at: Positions, site: int, cells: Tensor | None = None) -> Tensor:
        of_each = self.cells(at) if cells is None else cells
        kept = self.masks[0].keep(at, site, of_each[0])
        for mask, own in zip(self.masks[1:], of_each[1:], strict=True):
            kept = kept & mask.keep(at, site, own)
        return kept

    def describe(self) -> dict[str, Any]:
        return {"kind": "joint", "masks": [mask.describe() for mask in self.masks], "diagonal": self.diagonal}

    def tensors(self) -> dict[str, Tensor]:
        return {f"{n}.{name}": t for n, mask in enumerate(self.masks) for name, t in mask.tensors().items()}


def mask_from(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mask:
    """A mask from what :meth:`Mask.describe` and :meth:`Mask.tensors` gave.

    Raises:
        CheckpointError: anything else.
    """
    kind, diagonal = description.get("kind"), description.get("diagonal")
    if diagonal not in DIAGONALS:
        raise CheckpointError(f"a mask's diagonal is {', '.join(DIAGONALS)}, not {diagonal!r}: export the model again")
    if kind == "gates" and isinstance(description.get("granularity"), Mapping):
        if set(tensors) != {"gates"}:
            raise CheckpointError(f"a mask of gates holds one tensor `gates`, not {sorted(tensors)}: export again")
        granularity = Granularity.from_dict(description["granularity"])
        return GateMask(granularity=granularity, gates=tensors["gates"], diagonal=diagonal)
    if kind == "pattern" and isinstance(description.get("parameters"), Mapping):
        return _pattern(str(description.get("name")), dict(description["parameters"]), diagonal)
    if kind == "joint" and isinstance(description.get("masks"), list):
        return JointMask(masks=tuple(_part(part, n, tensors) for n, part in enumerate(description["masks"])))
    raise CheckpointError(f"a mask is of gates or a pattern, not {kind!r}: export the model again")


def _pattern(name: str, parameters: dict[str, int], diagonal: str) -> Mask:
    try:
        pattern_parameters(name, parameters)
    except UsageError as error:
        raise CheckpointError(
            f"a pattern that is not known here ({error}): update attnprobe, or export again"
        ) from error
    return PatternMask(name=name, parameters=parameters, diagonal=diagonal)


def _part(description: Any, number: int, tensors: Mapping[str, Tensor]) -> Mask:
    """One mask of a joint one; its tensors' names begin with its number."""
    if not isinstance(description, Mapping):
        raise CheckpointError(f"a mask is described by an object, not {description!r:.100}: export the model again")
    prefix = f"{number}."
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    return mask_from(description, own)
