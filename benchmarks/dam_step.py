"""Cost of a step that learns masks, against a plain fine-tuning step; and the memory of the gates.

    python -m benchmarks.dam_step CKPT TRAIN_FILE EVAL_FILE [DEVICE]

A plain step: transformers' own eager attention, forward and backward, clipping, AdamW on all weights, dropout on, on
the same batches. The steps that learn are those of `attnprobe sparsify`, Trainer and all; the dense outputs that
distillation needs are computed when a row is met for the first time, and every row here is.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from attnprobe.data.sources import DataOptions
from attnprobe.masks.gates import Gates
from attnprobe.options import ModelOptions
from attnprobe.scoring import first_output
from attnprobe.sparsify.learning import train
from attnprobe.sparsify.options import SparsifyOptions
from attnprobe.sparsify.points import Point
from attnprobe.sparsify.setting import Setting, opened
from attnprobe.sparsify.sweep import make_gates
from attnprobe.training.lesson import DenseOutputs, training_order
from benchmarks.common import Comparison, compare, report

POINT = Point(method="dam", granularity="offset", diagonal="free", target=0.9)


@contextmanager
def opened_to_learn(
    checkpoint: str, train_file: str, eval_file: str, *, device: str, steps: int = 20, batch: int = 32, length: int = 64
) -> Iterator[Setting]:
    """Everything that steps of a training need, on at most 2000 rows of a file."""
    data = DataOptions(train_file=Path(train_file), eval_file=Path(eval_file), limit=2000)
    model = ModelOptions(max_length=length, per_device_batch_size=batch, device=device, dtype="float32")
    options = SparsifyOptions(train="all", max_steps=steps, settle=0.0, learning_rate=1e-6)
    with opened(checkpoint, data, model, options) as setting:
        _ = setting.sums  # scores of the start, made once a sweep
        yield setting


def plain(setting: Setting, *, bf16: bool = False) -> None:
    """Fine-tune for some steps, without attnprobe."""
    bench, steps, batch_size = setting.bench, setting.options.max_steps, setting.model_options.per_device_batch_size
    model = bench.checkpoint.model
    model.set_attn_implementation("eager")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    encoded = setting.lesson.encoded
    order = training_order(encoded.lengths, setting.lesson.rows, batch_size=batch_size, batches=steps, seed=0)
    for start in range(0, len(order), batch_size):
        batch = encoded.batch(order[start : start + batch_size]).to(model.device)
        prepared = bench.objective.prepare(batch)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            output = bench.objective.output(first_output(model, prepared.inputs), prepared)
            loss = bench.objective.loss(output, prepared).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model.set_attn_implementation("attnprobe")


def learn(setting: Setting, *, train_weights: bool, **options: object) -> None:
    """As many steps of `attnprobe sparsify`; ``options`` differ from the setting's."""
    with tempfile.TemporaryDirectory() as folder:
        train(
            setting.session,
            setting.lesson,
            replace(setting.options, **options),  # type: ignore[arg-type]
            gates=gates_of(setting),
            mask=None,
            density=0.1,
            train_weights=train_weights,
            dense=DenseOutputs(setting.dense_model, setting.bench.objective),
            folder=Path(folder),
            batch_size=setting.model_options.per_device_batch_size,
            seed=0,
        )


def gates_of(setting: Setting) -> Gates:
    """Gates at their start."""
    return make_gates(setting, POINT)


def comparison(setting: Setting, *, train_weights: bool, bf16: bool = False, rounds: int = 5) -> Comparison:
    """Steps that learn masks against as many plain ones."""
    return compare(
        lambda: learn(setting, train_weights=train_weights, bf16=bf16),
        lambda: plain(setting, bf16=bf16),
        rounds=rounds,
    )


def main(checkpoint: str, train_file: str, eval_file: str, device: str = "cpu") -> None:
    with opened_to_learn(checkpoint, train_file, eval_file, device=device) as setting:
        for name, train_weights in (("frozen", False), ("with weights", True)):
            report(f"DAM step ({name}) / plain step", comparison(setting, train_weights=train_weights))
        gates = gates_of(setting)
        held = sum(t.numel() * t.element_size() for t in (*gates.parameters(), *gates.buffers()))
        weights = sum(p.numel() * p.element_size() for p in setting.session.model.parameters())
        print(f"gates: {held / 1e6:.2f} MB, weights: {weights / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
