"""Peak memory while something runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """A peak, once it is known.

    Attributes:
        mebibytes: of a GPU what torch took, else the process's resident memory; None where the system can't tell.
    """

    mebibytes: float | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the peak while the block runs: what it holds at its end included, what went before it not."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.mebibytes = torch.cuda.max_memory_allocated(device) / 2**20
        return
    known = _reset_resident_peak()
    yield peak
    peak.mebibytes = _resident_peak() if known else None


def _reset_resident_peak() -> bool:
    """Let Linux count the peak of resident memory anew; whether it does."""
    try:
        _RESET.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident_peak() -> float | None:
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"))
    return int(found.group(1)) / 1024 if found else None
