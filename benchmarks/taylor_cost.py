"""Cost of `taylor` on all sites, heads, classes and offsets, against one plain forward and backward pass.

    python -m benchmarks.taylor_cost CKPT [EVAL_FILE]

The plain pass is transformers' own eager attention with gradients of all parameters, on the same batches.
"""

from __future__ import annotations

import sys

from attnprobe.attention import evaluating
from attnprobe.importance import taylor
from attnprobe.scoring import first_output
from benchmarks.common import open_bench, probing, ratio, report


def main(checkpoint: str, eval_file: str | None = None) -> None:
    bench = open_bench(checkpoint, eval_file, examples=128)
    model = bench.checkpoint.model
    with bench.attached() as session, evaluating(model):
        context, items = probing(bench, session)

        def ours() -> None:
            for item in items:
                taylor.measure(context, item)

        def plain() -> None:
            model.set_attn_implementation("eager")
            for item in items:
                output = bench.objective.output(first_output(model, item.prepared.inputs), item.prepared)
                bench.objective.loss(output, item.prepared).sum().backward()
                model.zero_grad(set_to_none=True)
            model.set_attn_implementation("attnprobe")

        report("taylor / plain forward and backward", ratio(ours, plain))


if __name__ == "__main__":
    main(*sys.argv[1:])
