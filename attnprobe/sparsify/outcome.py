"""What a point of a sweep leaves: scores, what its mask keeps, the mask, the log of its training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnprobe.masks.mask import Mask, mask_from
from attnprobe.masks.sparsity import Account
from attnprobe.training.scores import Scores

LOG_COLUMNS = ("step", "loss", "wanted_density", "density", "learning_rate")
"""Columns of the log of a training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A point's result.

    Attributes:
        scores: on the evaluation data.
        held_out: on the training rows held out.
        mask: None for the dense model.
        account: what the mask keeps of the evaluation data; None for the dense model.
        counted_sparsity: cell sparsity over the data on which it is held at the target (--count-on), a fraction.
        before_threshold: the same just before the gates' own decision was brought to the target; None where nothing
            was learnt.
        log: rows of :data:`LOG_COLUMNS`.
        steps: optimizer steps taken.
        seconds: wall-clock time of making and scoring it.
    """

    scores: Scores
    held_out: Scores
    mask: Mask | None
    account: Account | None
    counted_sparsity: float
    before_threshold: float | None
    log: list[dict[str, float]]
    steps: int
    seconds: float

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As named arrays, to be stored."""
        arrays = self.scores.arrays("eval") | self.held_out.arrays("held_out")
        numbers: dict[str, Any] = {
            "counted_sparsity": self.counted_sparsity,
            "before_threshold": self.before_threshold,
            "steps": self.steps,
            "seconds": self.seconds,
        }
        if self.mask is not None and self.account is not None:
            account = self.account
            numbers |= {
                "mask": self.mask.describe(),
                "shapes": {name: list(tensor.shape) for name, tensor in self.mask.tensors().items()},
                "nominal": account.nominal,
                "block": account.block,
                "block_size": account.block_size,
                "causal": account.causal,
            }
            arrays |= {"kept": account.kept.numpy(), "valid": account.valid.numpy()}
            arrays |= {f"mask/{n}": np.packbits(t.cpu().numpy().reshape(-1)) for n, t in self.mask.tensors().items()}
        arrays["numbers"] = np.asarray(json.dumps(numbers))
        arrays["log"] = np.asarray(
            [[row.get(name, np.nan) for name in LOG_COLUMNS] for row in self.log], dtype=np.float64
        ).reshape(len(self.log), len(LOG_COLUMNS))
        return arrays

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> Outcome:
        """Back from :meth:`arrays`."""
        numbers = json.loads(str(arrays["numbers"]))
        mask = account = None
        if "mask" in numbers:
            tensors = {
                name: torch.from_numpy(
                    np.unpackbits(arrays[f"mask/{name}"], count=int(np.prod(shape))).astype(bool).reshape(shape)
                )
                for name, shape in numbers["shapes"].items()
            }
            mask = mask_from(numbers["mask"], tensors)
            account = Account(
                kept=torch.from_numpy(arrays["kept"]),
                valid=torch.from_numpy(arrays["valid"]),
                nominal=numbers["nominal"],
                block=numbers["block"],
                block_size=numbers["block_size"],
                causal=numbers["causal"],
            )
        return cls(
            scores=Scores.of(arrays, "eval"),
            held_out=Scores.of(arrays, "held_out"),
            mask=mask,
            account=account,
            counted_sparsity=numbers["counted_sparsity"],
            before_threshold=numbers["before_threshold"],
            log=[dict(zip(LOG_COLUMNS, row, strict=True)) for row in arrays["log"].tolist()],
            steps=numbers["steps"],
            seconds=numbers["seconds"],
        )
