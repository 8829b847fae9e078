"""Which attention does a Transformer checkpoint need, what can it do without, what does it cost?

Importing this package imports no torch and changes nothing; see the submodules. ``attnprobe.load(folder)`` gives an
exported model with its mask applied, and ``attnprobe.unload(model)`` takes the mask off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnprobe.export.loading import load, unload

__version__ = "0.1.0"
__all__ = ["__version__", "load", "unload"]


def __getattr__(name: str) -> Any:
    """``load`` and ``unload``, imported when they are asked for, since they need torch."""
    if name in ("load", "unload"):
        from attnprobe.export import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
