"""Opens an existing checkpoint: model, tokenizer, trained head, usable length, and what would bite later."""

from attnprobe.checkpoint.loading import Head
from attnprobe.checkpoint.notes import Note
from attnprobe.checkpoint.opening import DTYPES, Checkpoint, open_checkpoint, parse_device, parse_dtype

__all__ = ["DTYPES", "Checkpoint", "Head", "Note", "open_checkpoint", "parse_device", "parse_dtype"]
