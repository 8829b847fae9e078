"""Cost of `taylor` on all sites, heads, classes and offsets, against one plain forward and backward pass.

    python -m benchmarks.taylor_cost CKPT [EVAL_FILE]

The plain pass is transformers' own eager attention with gradients of all parameters, on the same batches.
"""

from __future__ import annotations

import sys
from importlib import import_module

import torch

from attnprobe.attention import evaluating
from attnprobe.importance.methods import METHODS
from attnprobe.scoring import first_output
from attnprobe.workbench import Workbench
from benchmarks.common import Comparison, compare, open_bench, probing, report


def comparison(bench: Workbench, method: str, *, backward: bool, batch_size: int = 32, rounds: int = 7) -> Comparison:
    """A method of importance against a plain pass over the same batches.

    Args:
        bench: checkpoint and data.
        method: its name.
        backward: whether the plain pass goes backward too.
        batch_size: rows in a batch.
        rounds: how often each is timed.
    """
    model = bench.checkpoint.model
    measure = import_module(f"attnprobe.importance.{METHODS[method].module}").measure
    with bench.attached() as session, evaluating(model):
        context, items = probing(bench, session, batch_size=batch_size)

        def ours() -> None:
            for item in items:
                measure(context, item)

        def plain() -> None:
            model.set_attn_implementation("eager")
            with torch.set_grad_enabled(backward):
                for item in items:
                    output = bench.objective.output(first_output(model, item.prepared.inputs), item.prepared)
                    loss = bench.objective.loss(output, item.prepared).sum()
                    if backward:
                        loss.backward()
                        model.zero_grad(set_to_none=True)
            model.set_attn_implementation("attnprobe")

        return compare(ours, plain, rounds=rounds)


def main(checkpoint: str, eval_file: str | None = None) -> None:
    bench = open_bench(checkpoint, eval_file, examples=128)
    report("taylor / plain forward and backward", comparison(bench, "taylor", backward=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
