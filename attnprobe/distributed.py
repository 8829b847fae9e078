"""What a process has to know when several train one model (`torchrun`, `accelerate launch`): who writes, who waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 15.0
"""Seconds that the other processes hold an error back. Launchers end them sooner where the main one failed too."""


def processes() -> int:
    """How many processes train together; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process writes the run folder."""
    return int(os.environ.get("RANK", "0")) == 0


def quiet_torch() -> None:
    """Keep warnings of torch's C++ part, which every process writes, off stderr. To be called before torch loads."""
    if processes() > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def take_device(device: str) -> None:
    """Let ``cuda`` mean this process's own GPU, where several processes train together."""
    if processes() > 1 and device == "cuda":
        import torch

        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def share(value: Any, *, device: str) -> Any:
    """The main process's value, in every process; where there is one process, that value.

    Args:
        value: anything that can be pickled; of the main process.
        device: of the training, which decides how processes talk.
    """
    if processes() == 1:
        return value
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    PartialState(cpu=device == "cpu")
    return broadcast_object_list([value])[0]


def wait_for_all(*, device: str) -> None:
    """Wait until every process is here. ``device``: as for :func:`share`."""
    if processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=device == "cpu").wait_for_everyone()


def averaged(values: Any) -> Any:
    """The mean over all processes of a tensor that each has; where there is one process, that tensor."""
    if processes() == 1:
        return values
    from accelerate.utils import reduce

    return reduce(values, reduction="mean")


@contextmanager
def main_speaks_first() -> Iterator[None]:
    """Hold errors of the other processes back a little: most often the main one meets the same, and says so."""
    try:
        yield
    except Exception:
        if not is_main():
            time.sleep(_PATIENCE)
        raise
