"""What can't be trained is refused before anything is."""

from __future__ import annotations

import pytest

from attnprobe.errors import UsageError
from attnprobe.options import ModelOptions
from attnprobe.training.options import TrainingOptions, require_trainable


def test_half_precision_is_trained_on_gpus() -> None:
    fp16 = TrainingOptions(fp16=True)
    with pytest.raises(UsageError) as caught:
        require_trainable(ModelOptions(), fp16, weights=False)
    assert str(caught.value) == ("--fp16 trains on GPUs alone, not on --device cpu: give --device cuda, or --bf16")
    require_trainable(ModelOptions(device="cuda:1"), fp16, weights=True)
    require_trainable(ModelOptions(), fp16, weights=True, on_gpu=True)
    require_trainable(ModelOptions(), TrainingOptions(bf16=True), weights=True)


def test_weights_of_half_precision_are_not_trained() -> None:
    half = ModelOptions(dtype="float16")
    with pytest.raises(UsageError, match=r"^weights that learn need a type that small steps can change, .* --dtype"):
        require_trainable(half, TrainingOptions(), weights=True)
    require_trainable(half, TrainingOptions(), weights=False)
