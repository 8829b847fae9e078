"""`attnprobe retrofit`: residual attention for a finished checkpoint, by brief continued training, with controls."""
