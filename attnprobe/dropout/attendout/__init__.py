"""AttendOut (Wu, Zhao & Zhang 2021, arXiv:2104.04692v3): a G-Net drops attention while two copies are fine-tuned."""

from attnprobe.dropout.attendout.method import AttendOut

__all__ = ["AttendOut"]
