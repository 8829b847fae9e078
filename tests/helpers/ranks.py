"""Two processes of one training on the CPU, as `torchrun` would start them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

from tests.helpers.sweeps import ENVIRONMENT


def run_two(code: str, arguments: Callable[[int], list[str]]) -> None:
    """Run Python code as rank 0 and rank 1, each with its own arguments; both must end well."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments(rank)],
            env=ENVIRONMENT | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=900)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], outputs
