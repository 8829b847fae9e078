"""One table of what things cost on a GPU, on made-up weights. `benchmarks/gpu.sh` calls it.

    python -m benchmarks.gpu FOLDER [DEVICE [SIZE]]

Writes FOLDER/gpu.md, and prints it. SIZE is `base`, that of BERT-base, or `tiny`, to see in seconds that all of it runs
(on DEVICE `cpu` too). All text and labels are made up: times are those of real weights, results are none.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor

import attnprobe
from attnprobe.attention import evaluating
from attnprobe.export.card import Card
from attnprobe.export.verification import checks_of
from attnprobe.export.writing import save_export
from attnprobe.masks.applying import applied
from attnprobe.scoring import first_output
from attnprobe.sparsify.setting import Setting
from benchmarks import dam_step, taylor_cost
from benchmarks.common import Comparison, open_bench
from tests.helpers import tiny_checkpoints as tiny

DENSITY = 0.1


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is.

    Attributes:
        model: changes of the tiny BERT's configuration.
        length: tokens of the longest row.
        batch: rows in a batch.
        steps: steps of a training.
        probed: rows that importance is measured on.
        rounds: how often each thing is timed.
    """

    model: dict[str, Any] = field(default_factory=dict)
    length: int
    batch: int
    steps: int
    probed: int
    rounds: int


SIZES = {
    "base": Size(
        model={
            "vocab_size": 30522,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
            "initializer_range": 0.05,  # attention far from uniform
        },
        length=128,
        batch=32,
        steps=40,
        probed=256,
        rounds=3,
    ),
    "tiny": Size(length=24, batch=4, steps=4, probed=12, rounds=2),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the checkpoint and the text are.

    Attributes:
        checkpoint: of a classifier with random weights.
        train_file, eval_file: rows of random words with random labels.
    """

    checkpoint: str
    train_file: str
    eval_file: str

    @classmethod
    def made(cls, folder: Path, size: Size) -> Place:
        """Make them."""
        checkpoint = tiny.bert_classifier(folder / "checkpoint", **size.model)
        generator = np.random.default_rng(0)
        for name, rows in (("train", 2 * size.batch + size.batch * size.steps), ("eval", size.probed)):
            lengths = generator.integers(3, size.length - 2, size=rows, endpoint=True)
            texts = [" ".join(generator.choice(tiny.WORDS, size=length)) for length in lengths]
            table = pd.DataFrame({"sentence": texts, "label": generator.integers(0, 2, size=rows)})
            table.to_csv(folder / f"{name}.csv", index=False)
        return cls(checkpoint=str(checkpoint), train_file=str(folder / "train.csv"), eval_file=str(folder / "eval.csv"))


Row = tuple[str, str, str, str, str]
HEADER: Row = ("what", "attnprobe", "plain", "ratio [lowest, highest]", "peak memory, MiB")


def main(output: str, device: str = "cuda", size_name: str = "base") -> None:
    size, began = SIZES[size_name], time.perf_counter()
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device).index or 0)
    with tempfile.TemporaryDirectory() as folder:
        place = Place.made(Path(folder), size)
        rows = _importance(place, size, device)
        with dam_step.opened_to_learn(
            place.checkpoint,
            place.train_file,
            place.eval_file,
            device=device,
            steps=size.steps,
            batch=size.batch,
            length=size.length,
        ) as setting:
            rows += _steps(setting, size)
            rows += _export(setting, Path(folder) / "export")
    lines = [_title(device), "", *(f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * len(HEADER), *rows))]
    lines += ["", f"{_described(size_name, size)} All of it took {time.perf_counter() - began:.0f} s."]
    Path(output).mkdir(parents=True, exist_ok=True)
    (Path(output) / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _title(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{device}, {platform.machine()}"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"attnprobe {attnprobe.__version__}, {versions}, Python {platform.python_version()}, {name}"


def _described(size_name: str, size: Size) -> str:
    config = tiny.bert_config(**size.model)
    return (
        f"Size `{size_name}`: BERT of {config.num_hidden_layers} layers of {config.num_attention_heads} heads, width "
        f"{config.hidden_size}, random weights; batches of {size.batch} rows of up to {size.length} tokens; trainings "
        f"of {size.steps} steps, their start and the dense outputs for distillation included; median of {size.rounds}. "
        "Plain: transformers' eager attention on the same batches; for steps, fine-tuning of all weights."
    )


def _importance(place: Place, size: Size, device: str) -> list[Row]:
    bench = open_bench(
        place.checkpoint,
        place.eval_file,
        examples=size.probed,
        batch_size=size.batch,
        max_length=size.length,
        device=device,
    )
    rows = []
    for method, backward in (("mass", False), ("taylor", True)):
        found = taylor_cost.comparison(bench, method, backward=backward, batch_size=size.batch, rounds=size.rounds)
        plain = f"{size.probed / found.theirs:.0f} rows/s, forward{' and backward' if backward else ''}"
        rows.append((f"importance, {method}", f"{size.probed / found.ours:.0f} rows/s", plain, *_ratio(found)))
    return rows


def _steps(setting: Setting, size: Size) -> list[Row]:
    rows = []
    for bf16 in (False, True):
        for train_weights in (False, True):
            found = dam_step.comparison(setting, train_weights=train_weights, bf16=bf16, rounds=size.rounds)
            name = f"DAM step, {'with weights' if train_weights else 'frozen'}, {'bf16' if bf16 else 'float32'}"
            ours, theirs = (f"{1000 * seconds / size.steps:.1f} ms" for seconds in (found.ours, found.theirs))
            rows.append((name, ours, theirs, *_ratio(found)))
    if setting.session.model.device.type == "cuda":
        waits = _waits(setting, size.steps)
        rows.append(("waits of the host for the GPU in a DAM step", f"{waits:g}", "", "", ""))
    return rows


def _ratio(found: Comparison) -> tuple[str, str]:
    memory = " / ".join(f"{mebibytes:.0f}" for mebibytes in found.memory) if any(found.memory) else ""
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]", memory


def _waits(setting: Setting, steps: int) -> float:
    """How often the host waits for the GPU in one step: what a training of more steps has over one of fewer."""
    counts = []
    for length in (steps // 2, steps):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                dam_step.learn(setting, train_weights=True, max_steps=length, logging_steps=10 * steps)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("called a synchronizing" in str(warning.message) for warning in seen))
    return (counts[1] - counts[0]) / (steps - steps // 2)


def _export(setting: Setting, folder: Path) -> list[Row]:
    bench, session = setting.bench, setting.session
    mask = dam_step.gates_of(setting).decide(DENSITY)
    inputs = next(bench.batches(bench.encoded.plan(8)[:1])).inputs
    with applied(session, mask, setting.rules), evaluating(session.model):
        checks = checks_of(session.model, inputs)
    start = time.perf_counter()
    save_export(
        folder,
        checkpoint=bench.checkpoint,
        mask=mask,
        rules=setting.rules,
        card=Card(),
        provenance={"point": dam_step.POINT.name},
        checks=checks,
    )
    written = time.perf_counter() - start
    start = time.perf_counter()
    outputs = [_logits(folder, device, inputs) for device in (str(session.model.device), "cpu")]
    reloaded = (time.perf_counter() - start) / len(outputs)
    with torch.no_grad(), evaluating(session.model):
        dense = first_output(session.model, inputs)
    expected = checks[0].output.cpu()
    off = max(float((output - expected).abs().max()) for output in outputs)
    return [
        ("export, verified in a fresh process", f"{written:.1f} s", "", "", ""),
        ("reload, and a batch", f"{reloaded:.1f} s", "", "", ""),
        ("largest difference of logits after reload, here and on the host", f"{off:.1e}", "", "", ""),
        (
            "the same of the dense model, for comparison",
            f"{float((dense.cpu() - expected).abs().max()):.1e}",
            "",
            "",
            "",
        ),
    ]


def _logits(folder: Path, device: str, inputs: dict[str, Tensor]) -> Tensor:
    model: Any = attnprobe.load(folder).to(device)
    with torch.no_grad():
        return first_output(model, {name: tensor.to(device) for name, tensor in inputs.items()}).cpu()


if __name__ == "__main__":
    main(*sys.argv[1:])
