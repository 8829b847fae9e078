"""Peak memory of an importance run at 1,000 and at 10,000 rows: it must not grow with the data.

    python -m benchmarks.memory CKPT [METHODS]

The rows are the built-in prose, repeated, so that both runs see the same longest row. The checkpoint is opened without
its head: logits over a vocabulary would take time and hide what is looked for. Linux: the peak is ru_maxrss in KiB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from attnprobe.data.prose import prose
from attnprobe.quiet import quiet_transformers

ROWS = (1_000, 10_000)


def peak(checkpoint: str, methods: str, rows: int) -> float:
    """Peak resident memory in MiB of a run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [text for (text,) in prose().texts]
        file = Path(folder) / "rows.txt"
        file.write_text("\n".join(texts[row % len(texts)] for row in range(rows)) + "\n", encoding="utf-8")
        base = str(Path(folder) / "base")
        with quiet_transformers():
            AutoModel.from_pretrained(checkpoint, dtype="float32").save_pretrained(base)
            AutoTokenizer.from_pretrained(checkpoint).save_pretrained(base)
        arguments = [base, "--task", "text", "--eval-file", str(file), "--max-length", "16", "--methods", methods]
        arguments += ["--ablation-levels", "class", "--control-draws", "1", "--n-steps", "2"]
        code = f"from attnprobe.cli import run; run({['importance', *arguments, '--output-dir', folder + '/run']!r})"
        code += "; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]) / 1024


def main(checkpoint: str, methods: str = "mass,ablation,taylor,integrated-gradients") -> None:
    small, large = (peak(checkpoint, methods, rows) for rows in ROWS)
    growth = f"{large / small - 1:+.1%}"
    print(f"peak memory: {small:.0f} MiB at {ROWS[0]:,} rows, {large:.0f} MiB at {ROWS[1]:,} ({growth})")


if __name__ == "__main__":
    main(*sys.argv[1:])
