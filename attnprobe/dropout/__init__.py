"""Dropout of attention, for fine-tuning: one file a method, one table (`attnprobe.dropout.methods`)."""
