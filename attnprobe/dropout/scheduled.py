"""Scores dropped at rates that a schedule gives over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from attnprobe.attention import AttentionSession
from attnprobe.dropout.options import SCHEDULES
from attnprobe.dropout.schedules import Schedule
from attnprobe.dropout.scores import ScoresDropout

CURRICULUM_SPEED = 10.0


class ScheduledDropout(ScoresDropout):
    """Scores, at a rate that changes over training; t is the share of the training that is behind.

    ``linear``: rate t. ``curriculum``: rate (1 - exp(-10 t)) (Morerio et al. 2017, arXiv:1703.06229, on scores instead
    of activations). A schedule of a run with AttendOut: the rates that its G-Net learnt, by site: its cheap form.
    """

    schedule: Schedule | None = None

    def prepare(self, session: AttentionSession) -> None:
        """Read the schedule. Raises: DataError for one that is no schedule of as many sites."""
        if self.options.schedule not in SCHEDULES:
            self.schedule = Schedule.read(Path(self.options.schedule), sites=len(session.sites))

    def rates(self, progress: float) -> Sequence[float]:
        if self.schedule is not None:
            return self.schedule.at(progress)
        share = progress if self.options.schedule == "linear" else 1 - math.exp(-CURRICULUM_SPEED * progress)
        return [self.rate * share] * self.sites
