"""What is wanted of gates and weights in each step of a training."""

from __future__ import annotations

from attnprobe.sparsify.options import SparsifyOptions

COOLING = 0.1
"""Share of the gates' steps, the last, in which their temperature and learning rate fall."""

AVERAGED = 0.5
"""Reach of the running average of the logits, as a share of the steps between the ramp's end and the cooling."""


class Schedule:
    """What is wanted when.

    Attributes:
        steps: optimizer steps in all.
        gate_steps: steps in which gates learn; in the rest the mask is fixed.
    """

    def __init__(self, options: SparsifyOptions, density: float | None, *, settles: bool) -> None:
        self.options, self.density = options, density
        self.steps = options.max_steps
        self.gate_steps = self.steps - (round(self.steps * options.settle) if settles else 0)

    def wanted(self, step: int) -> float | None:
        """Density wanted in a step: from 1 down to the target, falling fast first (Zhu & Gupta 2017)."""
        if self.density is None:
            return None
        left = max(0.0, 1 - step / self.full) if self.full > 0 else 0.0
        return self.density + (1 - self.density) * left**3

    @property
    def full(self) -> int:
        """The step from which the density wanted is the target."""
        return round(self.gate_steps * self.options.ramp)

    @property
    def cooling(self) -> int:
        """The step from which temperature and gates' learning rate fall: what is undecided then is decided."""
        return max(self.full, self.gate_steps - max(1, round(self.gate_steps * COOLING)))

    @property
    def averaging(self) -> float:
        """Decay of the running average of the logits, from the step on in which the density is the target's."""
        return 1 - 1 / max(1.0, AVERAGED * (self.cooling - self.full))

    def cooled(self, step: int) -> float:
        """How far the cooling has gone, 0 to 1."""
        return max(0.0, (step - self.cooling + 1) / max(1, self.gate_steps - self.cooling))

    def gate_rate(self, step: int) -> float:
        """Factor on the gates' learning rate."""
        return 1.0 if self.options.paper_form else max(0.0, 1 - self.cooled(step))

    def temperature(self, step: int) -> float:
        """Temperature in a step: as it is at first, then falling geometrically while the gates cool."""
        if self.options.paper_form:
            return 1.0
        first, last = self.options.temperature, self.options.final_temperature
        return float(first * (last / first) ** min(1.0, self.cooled(step)))
