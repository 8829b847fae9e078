"""Gates in a running model: positions are read where the model is called, so that any caller gets the same mask."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention import AttentionCall, AttentionSession
from attnprobe.data.positions import Positions
from attnprobe.errors import CheckpointError, DataError, UnsupportedModelError
from attnprobe.masks.mask import Mask
from attnprobe.masks.tokens import TokenRules


class PassReader:
    """Reads the tokens of each forward pass, by a hook on the module that all callers go through.

    Attributes:
        rules: how positions are told.
    """

    def __init__(self, rules: TokenRules) -> None:
        self.rules = rules
        self._inputs: tuple[Tensor | None, Tensor | None] = (None, None)
        self._positions: dict[torch.device, Positions] = {}
        self._kept: dict[Any, Tensor] = {}

    @contextmanager
    def reading(self, session: AttentionSession) -> Iterator[None]:
        """Read every pass of an attached model."""
        model: Any = session.model
        encodes = getattr(model.config, "is_encoder_decoder", False)
        stack: nn.Module = model.get_encoder() if encodes else model.base_model
        signature = inspect.signature(stack.forward)

        def start(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            given = signature.bind_partial(*args, **kwargs).arguments
            self.start(given.get("input_ids"), given.get("attention_mask"))

        handle = stack.register_forward_pre_hook(start, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def start(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> None:
        """Begin a pass: (batch, tokens) each; ``attention_mask`` covers the tokens in a cache too."""
        if attention_mask is not None and (not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2):
            given = f"one of shape {tuple(attention_mask.shape)}" if isinstance(attention_mask, Tensor) else "several"
            raise DataError(
                f"a masked model takes an attention_mask (batch, tokens), 1 for tokens and 0 for padding, not {given}"
            )
        self._inputs = (input_ids, attention_mask)
        self._positions = {}
        self._kept = {}

    def positions(self, call: AttentionCall) -> Positions:
        """The positions of all tokens up to the call's, the same at every site of a pass: (batch, tokens)."""
        device = call.query.device
        if device not in self._positions:
            self._positions[device] = self._read(call)
        return self._positions[device]

    def _read(self, call: AttentionCall) -> Positions:
        batch, _, _, keys = call.shape
        ids, mask = self._inputs
        if mask is None:
            mask = call.query.new_ones((batch, keys), dtype=torch.int64)
        if mask.shape[1] < keys:
            raise UnsupportedModelError(
                f"a masked model is given {keys} keys for {mask.shape[1]} tokens: a cache of fixed size does not tell "
                "which are which; use a cache that grows (transformers' default), and an attention_mask of all tokens"
            )
        if ids is None or ids.shape[1] != mask.shape[1]:
            ids = None
            if not self.rules.causal and (self.rules.cls_id is not None or self.rules.sep_id is not None):
                raise DataError("a masked model tells [CLS] and [SEP] by token id: call it with input_ids")
        device = call.query.device
        return self.rules.positions(None if ids is None else ids.to(device), mask.to(device))

    def once(self, key: Any, make: Any) -> Tensor:
        """A tensor that is the same at every site of a pass: made at the first."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def of_queries(cells: Tensor, call: AttentionCall) -> Tensor:
    """The cells of a call's queries and keys, of those of all tokens, (..., tokens, tokens).

    With a cache the queries are the last tokens. In layers of a sliding window it holds the last keys alone.
    """
    _, _, queries, keys = call.shape
    return cells[..., -queries:, -keys:]


@contextmanager
def applied(session: AttentionSession, mask: Mask, rules: TokenRules) -> Iterator[None]:
    """Keep only a mask's cells at every site of an attached model.

    Raises:
        CheckpointError: the mask was made for another number of sites or heads, or another kind of attention.
    """
    require_fit(session, mask, rules)
    reader = PassReader(rules)
    on: dict[torch.device, Mask] = {}

    def gate(call: AttentionCall) -> Tensor:
        device = call.query.device
        if device not in on:
            on[device] = mask.to(device)
        at = reader.positions(call)
        cells = reader.once((device, *call.shape[2:]), lambda: of_queries(on[device].cells(at), call))
        return on[device].keep(at, call.site.index, cells)

    with reader.reading(session), session.gate(gate):
        yield


def require_fit(session: AttentionSession, mask: Mask, rules: TokenRules) -> None:
    """See that a mask belongs to a model. Raises: CheckpointError, UnsupportedModelError."""
    sites = session.sites
    if len({site.causal for site in sites}) > 1 or len({site.heads for site in sites}) > 1:
        raise UnsupportedModelError("masks need sites that are alike: all causal or none, with the same heads")
    if sites[0].causal != rules.causal:
        kinds = {True: "causal", False: "bidirectional"}
        raise CheckpointError(
            f"the mask is for {kinds[rules.causal]} attention, the model's is {kinds[sites[0].causal]}: "
            "it belongs to another model"
        )
    if mask.shape not in (None, (len(sites), sites[0].heads)):
        assert mask.shape is not None
        raise CheckpointError(
            f"the mask is for {mask.shape[0]} sites of {mask.shape[1]} heads, "
            f"the model has {len(sites)} of {sites[0].heads}: it belongs to another model"
        )
