"""The seam: everything done to a model's attention goes through one attention function."""

from attnprobe.attention.backends import BACKENDS, Gating
from attnprobe.attention.blocks import Blocks
from attnprobe.attention.call import AttentionCall, Site
from attnprobe.attention.session import AttentionSession
from attnprobe.attention.sites import attach, evaluating, find_sites

__all__ = [
    "BACKENDS",
    "AttentionCall",
    "AttentionSession",
    "Blocks",
    "Gating",
    "Site",
    "attach",
    "evaluating",
    "find_sites",
]
