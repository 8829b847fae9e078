"""The fresh process of :func:`~attnprobe.export.verification.verify_export`; not for users.

python -m attnprobe.export.fresh EXPORT BATCHES OUTPUTS DEVICE [trust] [stock]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from attnprobe.errors import AttnProbeError
from attnprobe.export.loading import load
from attnprobe.export.stock import load_stock
from attnprobe.export.verification import outputs_of


def main(export: str, batches: str, outputs: str, device: str, *flags: str) -> None:
    """Load the export, or a checkpoint as anyone does, run every batch, and write the outputs."""
    load_it = load_stock if "stock" in flags else load
    model: Any = load_it(export, trust_remote_code="trust" in flags)
    save_file(outputs_of(model.to(device), load_file(batches)), Path(outputs))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AttnProbeError as error:
        sys.exit(str(error))
