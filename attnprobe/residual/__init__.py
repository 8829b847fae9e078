"""Residual attention (RealFormer) for finished checkpoints: score stream, gates, alignment of heads."""
