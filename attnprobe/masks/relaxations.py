"""Ways to draw a gate between closed and open so that its logit gets a gradient. alpha: logit; tau: temperature.

All add logistic noise to the logit, which is the Gumbel trick for two outcomes (Maddison et al. 2017, Jang et al.
2017). Everything is in float32: the noise's logarithms overflow in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SMOOTHNESS = 2 / 3
"""Temperature of the hard-concrete distribution as published."""

STRETCH = (-0.1, 1.1)
"""Interval to which a hard-concrete gate is stretched before it is cut to [0, 1] (Louizos et al. 2018)."""

_EDGE = math.log(-STRETCH[0] / STRETCH[1])  # logit / tau at which a stretched gate leaves 0


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """One way of drawing.

    Attributes:
        summary: in a clause.
        draw: (alpha, noise, tau) -> gates in [0, 1], all of one shape.
        level: tau -> the logit above which a gate is rather open than closed. A gate is open with probability
            sigmoid(alpha - level).
    """

    summary: str
    draw: Callable[[Tensor, Tensor, float], Tensor]
    level: Callable[[float], float]

    def open_probability(self, alpha: Tensor, tau: float) -> Tensor:
        """Probability that a gate is drawn open (not 0), for each logit."""
        return torch.sigmoid(alpha - self.level(tau))


def soft(alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
    """sigmoid((alpha + noise) / tau): the Gumbel-sigmoid (Shi et al. 2021, with tau = 1)."""
    return torch.sigmoid((alpha + noise) / tau)


def hard(alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
    """[alpha + noise > 0], with the gradient of :func:`soft` (straight-through)."""
    through = soft(alpha, noise, tau)
    return (alpha + noise > 0).to(through.dtype) - through.detach() + through


def straight_through(alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
    """[alpha + noise > 0], with the gradient of alpha (Bengio et al. 2013).

    A gate that is closed for good still gets the whole first-order effect of opening it; under :func:`hard` and
    :func:`hard_concrete` it gets next to none.
    """
    del tau
    return (alpha + noise > 0).to(alpha.dtype) + (alpha - alpha.detach())  # exactly 0 or 1


def hard_concrete(alpha: Tensor, noise: Tensor, tau: float) -> Tensor:
    """The Gumbel-sigmoid stretched to (-0.1, 1.1) and cut to [0, 1] (Louizos et al. 2018): exactly 0 and 1 occur."""
    low, high = STRETCH
    return (soft(alpha, noise, tau) * (high - low) + low).clamp(0.0, 1.0)


RELAXATIONS: dict[str, Relaxation] = {
    "straight-through": Relaxation(
        summary="open or closed, with the gradient of the logit", draw=straight_through, level=lambda _: 0.0
    ),
    "hard-concrete": Relaxation(
        summary="stretched and cut to 0 and 1", draw=hard_concrete, level=lambda tau: tau * _EDGE
    ),
    "hard": Relaxation(
        summary="open or closed, with the gradient of the Gumbel-sigmoid", draw=hard, level=lambda _: 0.0
    ),
    "soft": Relaxation(summary="plain Gumbel-sigmoid", draw=soft, level=lambda _: 0.0),
}


def logistic_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Logistic noise in float32, on the generator's device; never infinite."""
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float32)
    uniform = uniform.clamp(1e-6, 1 - 1e-6)
    return uniform.log() - torch.log1p(-uniform)
