"""Reuse the states below a site: run a model from one of its blocks on.

Most models hold their layers in one ``ModuleList``. What a layer returned in a dense pass is returned again, without
computing it, when only something above it has changed. Nothing here knows a family; where the layers of a model do
not have that form (ALBERT's shared layer), there are no blocks and every pass is a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from attnprobe.attention.call import Site

State = Any
"""What a block returns: hidden states (batch, tokens, width), or a tuple that begins with them."""


class Blocks:
    """The consecutive blocks of a model, and which of them holds which site.

    Attributes:
        modules: the blocks in the order they run.
        of_site: for each site, the index of its block.
    """

    def __init__(self, modules: Sequence[nn.Module], of_site: Sequence[int]) -> None:
        self.modules = tuple(modules)
        self.of_site = tuple(of_site)

    @contextmanager
    def recorded(self) -> Iterator[list[State]]:
        """Collect what each block returns in the pass that follows."""
        states: list[State] = []
        with ExitStack() as stack:
            for module in self.modules:
                handle = module.register_forward_hook(lambda _m, _i, output: states.append(output))
                stack.callback(handle.remove)
            yield states

    @contextmanager
    def resumed(self, site: int, states: Sequence[State]) -> Iterator[None]:
        """Skip the blocks below a site's: they hand on the recorded state that enters it.

        Args:
            site: index of the lowest site that differs from the recorded pass.
            states: what :meth:`recorded` gave for the same inputs.
        """
        first = self.of_site[site]
        with ExitStack() as stack:
            for module in self.modules[:first]:
                stack.enter_context(_returning(module, states[first - 1]))
            yield

    @contextmanager
    def skipped(self, number: int) -> Iterator[None]:
        """Let a block hand on the hidden states that enter it. It is still computed, and nothing comes of it."""

        def hand_on(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: State) -> State:
            entering = args[0] if args else kwargs["hidden_states"]
            return (entering, *output[1:]) if isinstance(output, tuple) else entering

        handle = self.modules[number].register_forward_hook(hand_on, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def _returning(module: nn.Module, state: State) -> Iterator[None]:
    """Replace a module's forward by a constant; an instance's own ``forward`` (accelerate's hooks) is put back."""
    own: Callable[..., Any] | None = module.__dict__.get("forward")
    module.__dict__["forward"] = lambda *_, **__: state
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def find_blocks(model: nn.Module, sites: Sequence[Site]) -> Blocks | None:
    """The blocks of a model, or None when its sites do not lie one after another in one ``ModuleList``.

    The caller has to verify them: that a resumed pass gives what a whole one gives.
    """
    names = [_outermost_list_item(model, site.name) for site in sites]
    if None in names or len({site.module for site in sites}) < len(sites):
        return None
    order = list(dict.fromkeys(name for name in names if name is not None))
    parents = {name.rsplit(".", 1)[0] for name in order}
    if len(parents) > 1:
        return None
    items = model.get_submodule(parents.pop())
    modules = [model.get_submodule(name) for name in order]
    if list(items.children()) != modules:
        return None
    return Blocks(modules, [order.index(name) for name in names if name is not None])


def _outermost_list_item(model: nn.Module, name: str) -> str | None:
    """``encoder.layer.3`` for ``encoder.layer.3.attention.self``: the first item of a list on the way to a module."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        if isinstance(model.get_submodule(".".join(parts[:depth])), nn.ModuleList):
            return ".".join(parts[: depth + 1])
    return None
