"""Fine-tune a checkpoint without a head, plainly: for reports on tasks that no checkpoint at hand was trained for.

    python -m benchmarks.fine_tune CKPT TASK TRAIN_FILE FOLDER [EPOCHS]

TASK is one of attnprobe's (mrpc, rte, token-classification, ...). AdamW, 5e-5 falling to 0, batches of 32 of at most
64 tokens, seed 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from attnprobe.checkpoint import open_checkpoint
from attnprobe.checkpoint.locate import locate
from attnprobe.data.batches import encode
from attnprobe.data.files import read_file
from attnprobe.data.sources import DataOptions, load_examples
from attnprobe.data.tasks import find_task
from attnprobe.scoring import first_output
from attnprobe.training.lesson import training_order

BATCH, RATE, LENGTH = 32, 5e-5, 64


def main(checkpoint: str, task_name: str, train_file: str, folder: str, epochs: str = "3") -> None:
    torch.manual_seed(0)
    task = find_task(task_name)
    words = task.kind == "token_classification"
    names = _tags(train_file) if words else list(task.label_names)
    options = DataOptions(task=task_name, train_file=Path(train_file))
    label2id = {name: number for number, name in enumerate(names)}
    examples = load_examples(options, split="train", label2id=label2id, num_labels=len(names), kind_hint=None)
    opened = open_checkpoint(checkpoint)
    assert opened.tokenizer is not None
    encoded = encode(examples.labelled(), opened.tokenizer, max_length=LENGTH)
    factory = AutoModelForTokenClassification if words else AutoModelForSequenceClassification
    model = factory.from_pretrained(
        locate(checkpoint).folder, num_labels=len(names), id2label=dict(enumerate(names)), label2id=label2id
    )
    steps = round(float(epochs) * len(encoded) / BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (0.1 * steps)) * (1 - step / steps)
    )
    order = training_order(encoded.lengths, range(len(encoded)), batch_size=BATCH, batches=steps, seed=0)
    model.train()
    for start in tqdm(range(0, len(order), BATCH)):
        batch = encoded.batch(order[start : start + BATCH])
        assert batch.labels is not None
        logits = first_output(model, batch.inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten().long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    opened.tokenizer.save_pretrained(folder)


def _tags(train_file: str) -> list[str]:
    """The tags of a file, `O` first."""
    table = read_file(Path(train_file), task=find_task("token-classification"))
    rows = next(column for name, column in table.columns.items() if name != "tokens")
    found = {str(tag) for row in rows if isinstance(row, list) for tag in row}
    return sorted(found, key=lambda tag: (tag != "O", tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
