"""A device that is not there, so that what only a GPU could show can be seen on the host.

Its tensors hold the host's, and all is computed by the host's kernels. But an operation that mixes them with tensors of
the host is an error, as it would be on a GPU, and what would make the host wait for a GPU is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("lazy:0")
"""A type of device that torch knows, runs backward passes of, and has no kernels for."""

_aten = torch.ops.aten
_COPYING = {_aten._to_copy.default, _aten.copy_.default}
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.bincount.default,
    _aten._unique2.default,
    _aten.repeat_interleave.Tensor,
}
_notes: list[str] | None = None


class Elsewhere(Tensor):
    """A tensor of the device. ``here``: its values, on the host."""

    here: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
        )
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Makes tensors elsewhere that are asked for there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Generator(torch.Generator):
    """A generator of the host that says it is elsewhere, where it is asked for there."""

    said: torch.device

    def __new__(cls, device: Any = "cpu") -> _Generator:
        made = super().__new__(cls)
        made.said = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.said


@contextmanager
def pretending() -> Iterator[None]:
    """Let tensors be moved to, and made on, :data:`DEVICE`."""
    with mock.patch("torch.Generator", _Generator), _Mode():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def waits() -> Iterator[list[str]]:
    """What makes the host wait meanwhile, in the order it comes."""
    global _notes
    _notes = []
    try:
        yield _notes
    finally:
        _notes = None


def _note(what: Any) -> None:
    if _notes is not None:
        _notes.append(str(what))


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the host; its results are where it would have run."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    asked = kwargs.get("device")
    there = bool(away) if asked is None else torch.device(asked).type == DEVICE.type
    if away:
        _look(func, args, tensors)
    if func in _COPYING and _crosses(func, args, there=there) and not (there and _without_waiting(args, kwargs)):
        _note(func)
    values, options = tree_map_only(Elsewhere, lambda tensor: tensor.here, (args, kwargs))
    if asked is not None and there:
        options["device"] = "cpu"
    result = func(*values, **options)
    if func._schema.is_mutable:
        return kwargs["out"] if "out" in kwargs else args[0] if func._schema.returns else None
    return tree_map_only(Tensor, Elsewhere, result) if there else result


def _look(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Refuse a mixture of devices, and note what waits."""
    mixed = any(tensor.dim() > 0 for tensor in tensors if not isinstance(tensor, Elsewhere))
    if mixed and func not in _COPYING | _INDEXING:
        raise RuntimeError(f"{func} of tensors here and elsewhere: {[tuple(tensor.shape) for tensor in tensors]}")
    if func in _WAITING:
        _note(func)
    if func in _INDEXING:
        if not isinstance(args[0], Elsewhere):
            raise RuntimeError(f"{func} of a tensor here by indices elsewhere")
        if mixed or any(tensor.dtype == torch.bool for tensor in tree_leaves(args[1]) if isinstance(tensor, Tensor)):
            _note(func)


def _crosses(func: Any, args: Any, *, there: bool) -> bool:
    """Whether a copy is from one device to the other."""
    source = args[0] if func is _aten._to_copy.default else args[1]
    target = there if func is _aten._to_copy.default else isinstance(args[0], Elsewhere)
    return isinstance(source, Elsewhere) != target


def _without_waiting(args: Any, kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
