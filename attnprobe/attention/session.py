"""Attach to a model: from then on every attention call goes through the project's own function.

Attaching and every intervention are context managers. On leaving, the model is bit for bit what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from attnprobe.attention.backends import BACKENDS, Gating, Observer
from attnprobe.attention.blocks import Blocks
from attnprobe.attention.call import AttentionCall, Site, split_mask
from attnprobe.errors import UnsupportedModelError, UsageError
from attnprobe.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATION = "attnprobe"
"""Name under which the function stands in transformers' attention and mask interfaces."""

GateSource = Callable[[AttentionCall], "Tensor | None"]
"""Gives a call's gate, broadcastable to (batch, heads, queries, keys): bool, float, or None for all ones."""

ScoreStream = Callable[[AttentionCall, Tensor], Tensor]
"""Gives the scores that count from a call and its own scores; see :attr:`AttentionCall.residual`."""

_sessions: WeakKeyDictionary[nn.Module, ReferenceType[AttentionSession]] = WeakKeyDictionary()
# A session holds its model: a strong reference to it from here would keep both for ever.

# What some families hand to attention beside the formula, and this function can't honour.
_UNSUPPORTED_ARGUMENTS = {
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "indices": "sparse key selection",
}


class AttentionSession:
    """A model whose attention is under control. Made by :func:`attach`.

    Attributes:
        model: the model.
        sites: the sites that interventions reach, by depth; all of one stack.
        blocks: the blocks that hold the sites, where states below a site can be reused; else None.
        backend: the name of the backend in :data:`~attnprobe.attention.backends.BACKENDS`.
    """

    def __init__(self, model: PreTrainedModel, *, backend: str) -> None:
        self.model = model
        self.backend = backend
        self.sites: tuple[Site, ...] = ()
        self.blocks: Blocks | None = None
        self._applications: dict[nn.Module, list[Site]] = {}
        self._calls: dict[nn.Module, int] = {}
        self._gates: list[tuple[GateSource, bool]] = []
        self._shifts: list[GateSource] = []
        self._stream: ScoreStream | None = None
        self._drops: list[GateSource] = []
        self._rate: float | None = None
        self._observers: list[Observer] = []
        self._discoverer: Callable[[nn.Module, AttentionCall], None] | None = None

    def number(self, sites: tuple[Site, ...]) -> None:
        """Make these the sites that interventions reach."""
        self.sites = sites
        self._applications = {}
        for site in sites:
            self._applications.setdefault(site.module, []).append(site)

    @property
    def shared(self) -> bool:
        """Whether one module is more than one site (ALBERT)."""
        return any(len(sites) > 1 for sites in self._applications.values())

    @contextmanager
    def gate(self, source: GateSource, *, renormalise: bool = True) -> Iterator[None]:
        """Gate the probabilities of every site.

        Several gates multiply. A boolean gate removes cells: what is left of a row is renormalised, whatever
        ``renormalise`` says, since softmax never sees them.

        Args:
            source: called once a site and forward pass.
            renormalise: whether rows under float gates are divided by their sum.
        """
        self._gates.append((source, renormalise))
        try:
            yield
        finally:
            self._gates.remove((source, renormalise))

    @contextmanager
    def shift(self, source: GateSource) -> Iterator[None]:
        """Add to the scores of every site, before softmax.

        Args:
            source: called once a site and forward pass; gives what is added, float, or None for nothing.
        """
        self._shifts.append(source)
        try:
            yield
        finally:
            self._shifts.remove(source)

    @contextmanager
    def drop(self, source: GateSource) -> Iterator[None]:
        """Drop scores of every site, before softmax. A row of which nothing is kept spreads over all valid keys.

        Args:
            source: called once a site and forward pass; gives what is kept, bool, or None for everything.
        """
        self._drops.append(source)
        try:
            yield
        finally:
            self._drops.remove(source)

    @contextmanager
    def weights_dropout(self, rate: float) -> Iterator[None]:
        """Drop weights at another rate than the model's own, in its training mode: p -> p b / (1 - rate), b of 0 or 1.

        Args:
            rate: share of the weights that is dropped.
        """
        before, self._rate = self._rate, rate
        try:
            yield
        finally:
            self._rate = before

    @contextmanager
    def carry(self, stream: ScoreStream) -> Iterator[None]:
        """Carry scores from site to site. Meanwhile there are no blocks: a site's scores need those of all below it.

        Args:
            stream: called once a site and forward pass, in the order of the sites.

        Raises:
            UsageError: scores are carried already.
        """
        if self._stream is not None:
            raise UsageError("the model's attention is residual already: leave the first `carry` before the second")
        blocks, self.blocks, self._stream = self.blocks, None, stream
        try:
            yield
        finally:
            self.blocks, self._stream = blocks, None

    @contextmanager
    def observe(self, observer: Observer) -> Iterator[None]:
        """Show every site's call and its probabilities (batch, heads, queries, keys), after gates, before dropout.

        The probabilities are part of the graph: a hook on them receives g v^T, the gradient of each cell.
        """
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def _start_pass(self, *_: Any) -> None:
        self._calls.clear()
        if not (self.model.training and _recomputes(self.model)):
            return
        if self._stream is not None:
            raise UnsupportedModelError(
                "residual attention can't be trained with gradient checkpointing: a layer that is recomputed alone "
                "does not have the scores of the layers below it; switch gradient checkpointing off"
            )
        if self.shared:
            raise UnsupportedModelError(
                "a model whose layers are shared can't be trained with gradient checkpointing here: "
                "recomputation calls its one attention module out of order; switch gradient checkpointing off"
            )

    def site(self, module: nn.Module) -> Site | None:
        """The site of the call of a module that is under way; None where interventions don't reach."""
        sites = self._applications.get(module)
        if sites is None:
            return None
        application = self._calls.get(module, 0)
        self._calls[module] = application + 1
        return sites[application % len(sites)]

    def _gating(self, call: AttentionCall) -> Gating:
        hard: Tensor | None = None
        soft: Tensor | None = None
        renormalise = True
        for source, renormalised in self._gates:
            gate = source(call)
            if gate is None:
                continue
            if gate.dtype == torch.bool:
                hard = gate if hard is None else hard & gate
            else:
                soft = gate if soft is None else soft * gate
                renormalise = renormalise and renormalised
        kept: Tensor | None = None
        for drop in self._drops:
            left = drop(call)
            if left is not None:
                kept = left if kept is None else kept & left
        return Gating(closed_or_open=hard, soft=soft, renormalise=renormalise, kept=kept)

    def compute(self, module: nn.Module, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute one call with the interventions in force."""
        if self._discoverer is not None:
            self._discoverer(module, call)
        if self._applications.get(module) is None:
            return BACKENDS[self.backend](call, Gating(), [])
        if self._rate is not None and module.training:
            call = replace(call, dropout=self._rate)
        return BACKENDS[self.backend](self._changed(call), self._gating(call), self._observers)

    def _changed(self, call: AttentionCall) -> AttentionCall:
        """The call with its residual, and with everything that is added to its scores in its bias."""
        if self._stream is not None:
            call = replace(call, residual=partial(self._stream, call))
        for source in self._shifts:
            added = source(call)
            if added is not None:
                call = replace(call, bias=added if call.bias is None else call.bias + added)
        return call


def session_of(module: nn.Module) -> AttentionSession | None:
    """The session that a module is under, if any."""
    found = _sessions.get(module)
    return None if found is None else found()


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The one attention function, in the form transformers' ``AttentionInterface`` asks for.

    Returns:
        The output (batch, queries, heads, value_dim) and, from the eager backend, the probabilities.

    Raises:
        UnsupportedModelError: the model hands over something the formula has no place for.
    """
    session = session_of(module)
    if session is None:
        raise UnsupportedModelError(
            f"attention of {type(module).__name__} was called outside of an attached model; "
            "call the model inside `attach(model)`"
        )
    for name, meaning in _UNSUPPORTED_ARGUMENTS.items():
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"{type(module).__name__} uses {meaning} ({name}), which is not supported")
    valid, bias = split_mask(attention_mask, query, key.shape[-2])
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    call = AttentionCall(
        site=session.site(module) or _unnumbered(module, query, key),
        query=query,
        key=key,
        value=value,
        valid=valid,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        bias=bias,
        softcap=softcap,
        dropout=dropout if module.training else 0.0,
    )
    output, probabilities = session.compute(module, call)
    return output.transpose(1, 2).contiguous(), probabilities


def _recomputes(model: nn.Module) -> bool:
    """Whether gradient checkpointing is on; transformers' own property for it changes its name."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _unnumbered(module: nn.Module, query: Tensor, key: Tensor) -> Site:
    """A place holder for a call that is none of the session's sites (discovery, cross-attention)."""
    return Site(
        index=-1,
        name="",
        module=module,
        application=0,
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=query.shape[-1],
        causal=False,
    )


@contextmanager
def switched(model: PreTrainedModel, *, backend: str = "eager") -> Iterator[AttentionSession]:
    """Route a model's attention through :func:`attention`, without yet knowing its sites."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if any(session_of(module) is not None for module in model.modules()):
        raise UsageError("the model is attached already; leave the first `attach` before the second")
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _boolean_mask)
    session = AttentionSession(model, backend=backend)
    with ExitStack() as stack:
        for config, implementation in _implementations(model):
            stack.callback(setattr, config, "_attn_implementation_internal", implementation)
        for module in model.modules():
            _sessions[module] = ref(session)
            stack.callback(_sessions.pop, module, None)
        stack.callback(model.register_forward_pre_hook(session._start_pass).remove)
        with quiet_transformers():
            model.set_attn_implementation(IMPLEMENTATION)
        yield session


@contextmanager
def under_stock_name(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's configurations name transformers' eager attention, for writing them; nothing is run meanwhile.

    transformers refuses to write one that returns attentions under an implementation it does not know.
    """
    with ExitStack() as stack:
        for config, implementation in _implementations(model):
            if implementation == IMPLEMENTATION:
                stack.callback(setattr, config, "_attn_implementation_internal", implementation)
                config._attn_implementation_internal = "eager"
        yield


def _implementations(model: PreTrainedModel) -> list[tuple[Any, Any]]:
    """Every configuration that names an attention implementation, with the name."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for config in list(configs.values()):
        for name in getattr(config, "sub_configs", {}):
            sub = getattr(config, name, None)
            if sub is not None:
                configs[id(sub)] = sub
    return [
        (config, config._attn_implementation_internal)
        for config in configs.values()
        if hasattr(config, "_attn_implementation_internal")
    ]


def _boolean_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' boolean mask, always made: skipped, an unpadded causal batch would have no mask at all."""
    from transformers.masking_utils import sdpa_mask

    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask
