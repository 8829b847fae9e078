"""Ablation of every head with the states below the site reused, against whole passes, on the same batches.

python -m benchmarks.head_ablation_reuse CKPT [EVAL_FILE]
"""

from __future__ import annotations

import sys
from dataclasses import replace

from attnprobe.attention import evaluating
from attnprobe.importance import ablation
from benchmarks.common import compare, open_bench, probing, report


def main(checkpoint: str, eval_file: str | None = None) -> None:
    bench = open_bench(checkpoint, eval_file, examples=64)
    model = bench.checkpoint.model
    with bench.attached() as session, evaluating(model):
        context, items = probing(bench, session)
        context = replace(context, options=replace(context.options, ablation_levels=("head",)))
        blocks = session.blocks

        def ablate(*, reuse: bool) -> None:
            session.blocks = blocks if reuse else None
            for item in items:
                ablation.measure(context, item)

        report(
            "whole passes / reused states", compare(lambda: ablate(reuse=False), lambda: ablate(reuse=True), rounds=5)
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
