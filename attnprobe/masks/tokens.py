"""What a mask has to know of the tokens: told by token id alone, so that it is the same whoever calls the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnprobe.data.positions import Positions, locate
from attnprobe.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """How positions are told.

    Attributes:
        cls_id: token id of [CLS]; None where the tokenizer has none.
        sep_id: token id of [SEP]; None where the tokenizer has none.
        causal: attention is causal: the first token takes the place of [CLS], and [SEP] is a token like any other.
    """

    cls_id: int | None
    sep_id: int | None
    causal: bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase | None, *, causal: bool) -> TokenRules:
        """The rules of a tokenizer."""
        if causal:
            return cls(cls_id=None, sep_id=None, causal=True)
        return cls(
            cls_id=getattr(tokenizer, "cls_token_id", None),
            sep_id=getattr(tokenizer, "sep_token_id", None),
            causal=False,
        )

    def positions(self, input_ids: Tensor | None, attention_mask: Tensor, *, window: int = 4) -> Positions:
        """The positions of a batch.

        Args:
            input_ids: (batch, tokens); None where they are not known, and no special token is told then.
            attention_mask: (batch, tokens), 1 for tokens and 0 for padding, on either side.
            window: reach of the class ``neighbour``, in tokens.
        """
        ids = torch.full_like(attention_mask, -1) if input_ids is None else input_ids
        token = attention_mask.bool()
        none = torch.zeros_like(token)
        is_sep = token & (ids == self.sep_id) if self.sep_id is not None else none
        is_cls = token & (ids == self.cls_id) if self.cls_id is not None else none
        special = is_sep | is_cls
        second = (is_sep.long().cumsum(1) > 0).long()
        return locate(
            {"input_ids": ids, "attention_mask": attention_mask},
            special,
            second.masked_fill(special | ~token, -1),
            cls_id=self.cls_id,
            sep_id=self.sep_id,
            causal=self.causal,
            window=window,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TokenRules:
        """Back from :meth:`as_dict`. Raises: CheckpointError for anything else."""
        ids = [values.get("cls_id"), values.get("sep_id")]
        if set(values) != {"cls_id", "sep_id", "causal"} or not isinstance(values["causal"], bool):
            raise CheckpointError(f"token rules are cls_id, sep_id, causal, not {dict(values)!r:.100}: export again")
        if any(i is not None and type(i) is not int for i in ids):
            raise CheckpointError(f"token ids are whole numbers or null, not {ids}: export the model again")
        return cls(**values)
