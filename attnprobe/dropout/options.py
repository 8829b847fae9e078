"""Options of the dropout methods. Knows no torch, so that the command line can show them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnprobe.dropout.methods import METHODS
from attnprobe.errors import UsageError
from attnprobe.training.options import (
    LARGEST_RATE,
    require_above_zero,
    require_choices,
    require_from_zero,
    require_whole,
)

SCHEDULES = ("linear", "curriculum")
"""Schedules by name; anything else is a file."""
REWARDS = ("loss", "accuracy", "sign")
REWARD_SCOPES = ("window", "sample")
GNET_TRAININGS = ("reinforce", "straight-through")

_RATED = ", ".join(f"{name} {method.rate:g}" for name, method in METHODS.items() if method.rate)
_SUMMARIES = " ".join(f"{name}: {method.summary}." for name, method in METHODS.items())


@dataclass(frozen=True, kw_only=True)
class DropoutOptions:
    """What is dropped, and how. The metadata's `help` is shown by the command line.

    Raises:
        UsageError: an option that cannot be meant.
    """

    dropout: tuple[str, ...] = field(
        default=("none", "weights", "attendout"),
        metadata={"help": f"Dropout methods. {_SUMMARIES}", "choices": tuple(METHODS)},
    )
    rates: tuple[str, ...] = field(
        default=(),
        metadata={"help": f"Rates of methods, as NAME=RATE; a number alone is for all of them. [default: {_RATED}]"},
    )
    schedule: str = field(
        default="linear",
        metadata={
            "help": "scheduled: the rates over training. linear: from 0 up to the rate. curriculum: as linear, quickly "
            "at first (Morerio et al. 2017). Or a schedule.json that a run with attendout left."
        },
    )
    r_drop_weight: float = field(default=1.0, metadata={"help": "r-drop: weight of the divergence of the two passes."})
    ad_drop_region: float = field(
        default=0.3, metadata={"help": "ad-drop: share of each row's cells, those of highest attribution, drawn from."}
    )
    asa_divergence: float = field(
        default=1.0, metadata={"help": "asa: weight of the divergence between the pass with and without the adversary."}
    )
    asa_size: float = field(default=0.3, metadata={"help": "asa: what the adversary pays for the cells that it drops."})
    gnet_training: str = field(
        default="reinforce",
        metadata={
            "help": "attendout: how the G-Net learns. reinforce: from rewards, as published. straight-through: by the "
            "gradient of the loss on the reward rows, towards the method's rate.",
            "choices": GNET_TRAININGS,
        },
    )
    reward: str = field(
        default="loss",
        metadata={
            "help": "attendout: what the nets are compared by on the reward rows: loss, accuracy, or the sign of the "
            "difference of losses.",
            "choices": REWARDS,
        },
    )
    reward_scope: str = field(
        default="window",
        metadata={
            "help": "attendout: window: one reward for all masks since the last comparison, as published. sample: "
            "masks are drawn for the reward rows too, and each row rewards its own.",
            "choices": REWARD_SCOPES,
        },
    )
    reward_rows: float = field(
        default=0.1, metadata={"help": "attendout: share of the training rows on which the nets are compared."}
    )
    dropout_step: int = field(default=20, metadata={"help": "attendout: steps between two comparisons."})
    gnet_rank: int = field(default=64, metadata={"help": "attendout: width of the G-Net."})
    gnet_learning_rate: float = field(default=1e-3, metadata={"help": "attendout: learning rate of the G-Net."})
    own_embeddings: bool = field(
        default=False, metadata={"help": "attendout: the G-Net learns its own embeddings, not the model's, frozen."}
    )

    def __post_init__(self) -> None:
        require_choices(
            ("--dropout", self.dropout, tuple(METHODS)),
            ("--gnet-training", (self.gnet_training,), GNET_TRAININGS),
            ("--reward", (self.reward,), REWARDS),
            ("--reward-scope", (self.reward_scope,), REWARD_SCOPES),
        )
        require_above_zero(
            ("--reward-rows", self.reward_rows, 0.5),
            ("--ad-drop-region", self.ad_drop_region, 1.0),
            ("--gnet-learning-rate", self.gnet_learning_rate, LARGEST_RATE),
        )
        require_from_zero(
            ("--r-drop-weight", self.r_drop_weight, LARGEST_RATE),
            ("--asa-divergence", self.asa_divergence, LARGEST_RATE),
            ("--asa-size", self.asa_size, LARGEST_RATE),
        )
        require_whole(
            ("--dropout-step", self.dropout_step, 1),
            ("--gnet-rank", self.gnet_rank, 1),
        )
        _ = self.rate_of

    @property
    def rate_of(self) -> Mapping[str, float]:
        """Each method's rate. Raises: UsageError."""
        rates = {name: method.rate for name, method in METHODS.items()}
        rated = [name for name, rate in rates.items() if rate]
        for text in self.rates:
            name, given, number = text.rpartition("=")
            try:
                rate = float(number)
            except ValueError:
                rate = -1.0
            if not 0 <= rate <= 1:
                raise UsageError(f"--rates must be numbers from 0 to 1, alone or as NAME=RATE, not {text!r:.60}")
            if given and name not in rated:
                raise UsageError(f"--rates: {name!r:.60} has no rate; those that have are {', '.join(rated)}")
            rates |= {name: rate} if given else dict.fromkeys(rated, rate)
        return rates
