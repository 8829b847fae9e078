"""What a checkpoint is asked to keep: the loss that removing attention may change.

Chosen by what the checkpoint has: a trained task head and labels give the task's loss, a language-model head gives the
language-model loss, everything else is label-free fidelity to the dense model. A random head never gives a number.

Losses are per example, and averaged over examples: an example with many tokens counts once.
"""

from attnprobe.objectives.base import Objective, Prepared
from attnprobe.objectives.fidelity import (
    EmbeddingFidelity,
    Fidelity,
    RegressionFidelity,
    SequenceFidelity,
    TokenFidelity,
)
from attnprobe.objectives.language import CausalLM, MaskedLM
from attnprobe.objectives.tasks import RegressionTask, SequenceTask, SpanTask, TokenTask

__all__ = [
    "CausalLM",
    "EmbeddingFidelity",
    "Fidelity",
    "MaskedLM",
    "Objective",
    "Prepared",
    "RegressionFidelity",
    "RegressionTask",
    "SequenceFidelity",
    "SequenceTask",
    "SpanTask",
    "TokenFidelity",
    "TokenTask",
]
