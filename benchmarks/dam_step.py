"""Cost of a step that learns masks, against a plain fine-tuning step; and the memory of the gates.

    python -m benchmarks.dam_step CKPT TRAIN_FILE EVAL_FILE [DEVICE]

A plain step: transformers' own eager attention, forward and backward, clipping, AdamW on all weights, dropout on, on
the same batches. The steps that learn are those of `attnprobe sparsify`, Trainer and all; the dense outputs that
distillation needs are computed when a row is met for the first time, and every row here is.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from attnprobe.attention import AttentionSession
from attnprobe.data.sources import DataOptions
from attnprobe.options import ModelOptions
from attnprobe.scoring import first_output
from attnprobe.sparsify.learning import DenseOutputs, train, training_order
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting, open_dense, read_training
from attnprobe.sparsify.sweep import make_gates
from attnprobe.workbench import Workbench, prepare
from benchmarks.common import ratio, report

STEPS, BATCH = 20, 32


def _plain(bench: Workbench, setting: Setting) -> None:
    """Fine-tune for some steps, without attnprobe."""
    model = bench.checkpoint.model
    model.set_attn_implementation("eager")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    encoded = setting.lesson.encoded
    order = training_order(encoded.lengths, setting.lesson.rows, batch_size=BATCH, batches=STEPS, seed=0)
    for start in range(0, len(order), BATCH):
        batch = encoded.batch(order[start : start + BATCH]).to(model.device)
        prepared = bench.objective.prepare(batch)
        output = bench.objective.output(first_output(model, prepared.inputs), prepared)
        bench.objective.loss(output, prepared).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model.set_attn_implementation("attnprobe")


def _learn(setting: Setting, session: AttentionSession, *, train_weights: bool) -> None:
    """The same number of steps of `attnprobe sparsify`."""
    point = Point(method="dam", granularity="offset", diagonal="free", target=0.9)
    with tempfile.TemporaryDirectory() as folder:
        train(
            session,
            setting.lesson,
            setting.options,
            gates=make_gates(setting, point),
            mask=None,
            density=0.1,
            train_weights=train_weights,
            dense=DenseOutputs(setting.dense_model, setting.bench.objective),
            folder=Path(folder),
            batch_size=BATCH,
            seed=0,
        )


def main(checkpoint: str, train_file: str, eval_file: str, device: str = "cpu") -> None:
    data = DataOptions(train_file=Path(train_file), eval_file=Path(eval_file), limit=2000)
    model = ModelOptions(max_length=64, per_device_batch_size=BATCH, device=device, dtype="float32")
    options = SparsifyOptions(train="all", max_steps=STEPS, settle=0.0, learning_rate=1e-6)
    bench = prepare(checkpoint, data, model)
    training = read_training(bench, data)
    dense = open_dense(bench.checkpoint.model, options)
    with bench.attached() as session:
        setting = Setting(bench, session, training, options, model, dense)
        _ = setting.sums  # scores of the start, made once a sweep
        for name, train_weights in (("frozen", False), ("with weights", True)):

            def ours(train_weights: bool = train_weights) -> None:
                _learn(setting, session, train_weights=train_weights)

            report(f"DAM step ({name}) / plain step", ratio(ours, lambda: _plain(bench, setting), rounds=5))
        gates = make_gates(setting, Point(method="dam", granularity="offset", diagonal="free", target=0.9))
        held = sum(t.numel() * t.element_size() for t in (*gates.parameters(), *gates.buffers()))
        weights = sum(p.numel() * p.element_size() for p in bench.checkpoint.model.parameters())
        print(f"gates: {held / 1e6:.2f} MB, weights: {weights / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
