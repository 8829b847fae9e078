"""Every way in which a checkpoint can be unfit: the right error, in one line, and nothing run or printed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnprobe.checkpoint import open_checkpoint
from attnprobe.errors import AttnProbeError, CheckpointError, UnsupportedModelError, UsageError
from tests.helpers import tiny_checkpoints as tiny


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A sound two-class BERT, to be read or to be spoilt."""
    return tiny.bert_classifier(tmp_path / "classifier")


class _Malice:
    """A pickle that would make a folder when it is loaded without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.target),)


def _set_tensor(folder: Path, name: str, value: float) -> None:
    tensors = tiny.read_tensors(folder)
    tensors[name].view(-1)[3] = value
    tiny.write_tensors(folder, tensors)


def _cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])


def _malicious(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Malice(folder / "executed")}))


def _cut_pickle(folder: Path) -> None:
    tiny.as_pickle(folder)
    _cut(folder / "pytorch_model.bin", 0.6)


def _list_pickle(folder: Path) -> None:
    tiny.as_pickle(folder)
    torch.save([torch.ones(2)], folder / "pytorch_model.bin")


def _lose_a_shard(folder: Path) -> None:
    tiny.as_shards(folder)
    next(iter(sorted(folder.glob("model-*.safetensors")))).unlink()


def _break_the_index(folder: Path) -> None:
    tiny.as_shards(folder)
    (folder / "model.safetensors.index.json").write_text('{"weights": 1}')


def _only_foreign_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def _empty_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def _remote_code(folder: Path) -> None:
    (folder / "modeling_own.py").write_text(f"import os\nos.mkdir({str(folder / 'executed')!r})\n")
    tiny.change_config(folder, model_type="own", auto_map={"AutoConfig": "modeling_own.OwnConfig"})


def _config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: tiny.change_config(folder, **changes)


def _file(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Replace a file's content, or take the file away."""
    return lambda folder: (folder / name).unlink() if content is None else (folder / name).write_bytes(content)


UNFIT: dict[str, tuple[Callable[[Path], object], type[AttnProbeError], str]] = {
    "no config": (_file("config.json", None), CheckpointError, "no config.json in"),
    "config not JSON": (_file("config.json", b"{oops"), CheckpointError, "cannot be read as JSON"),
    "config not UTF-8": (_file("config.json", b'{"a": "\xff"}'), CheckpointError, "cannot be read as JSON"),
    "config no object": (_file("config.json", b"[1]"), CheckpointError, 'add its "model_type"'),
    "no model_type": (_config(model_type=None), CheckpointError, 'add its "model_type"'),
    "unknown family": (_config(model_type="brand-new"), UnsupportedModelError, "knows no family 'brand-new'"),
    "unsupported family": (_config(model_type="deberta-v2"), UnsupportedModelError, "disentangled position terms"),
    "quantised": (_config(quantization_config={"bits": 4}), UnsupportedModelError, "quantised weights"),
    "adapter": (_file("adapter_config.json", b"{}"), CheckpointError, "merge it into its base model"),
    "remote code": (_remote_code, CheckpointError, "read that code, then pass --trust-remote-code"),
    "config nonsense": (_config(hidden_size="wide"), CheckpointError, "config.json is not valid"),
    "heads do not divide": (_config(num_attention_heads=5), CheckpointError, "transformers cannot load it"),
    "foreign class": (
        _config(architectures=["RobertaForMaskedLM"]),
        CheckpointError,
        "they would be random: check that config.json belongs",
    ),
    "no weights": (
        _file("model.safetensors", None),
        CheckpointError,
        "neither model.safetensors nor pytorch_model.bin",
    ),
    "only foreign weights": (_only_foreign_weights, CheckpointError, "found only tf_model.h5"),
    "corrupt weights": (_file("model.safetensors", b"no tensors"), CheckpointError, "corrupt or cut short"),
    "truncated weights": (lambda f: _cut(f / "model.safetensors", 0.7), CheckpointError, "corrupt or cut short"),
    "missing shard": (
        _lose_a_shard,
        CheckpointError,
        "weight files missing: 1 of 5, e.g. model-00001-of-",
    ),
    "broken index": (_break_the_index, CheckpointError, "not an index of weight files"),
    "malicious pickle": (_malicious, CheckpointError, "holds more than weights, and its code is never run"),
    "truncated pickle": (_cut_pickle, CheckpointError, "refused: this pickle is damaged"),
    "pickle of a list": (_list_pickle, CheckpointError, "holds no tensors by name"),
    "NaN": (
        lambda f: _set_tensor(f, "bert.encoder.layer.1.output.dense.weight", float("nan")),
        CheckpointError,
        "bert.encoder.layer.1.output.dense.weight holds NaN or infinite values",
    ),
    "infinity": (
        lambda f: _set_tensor(f, "classifier.weight", float("inf")),
        CheckpointError,
        "classifier.weight holds",
    ),
    "other vocabulary": (
        _config(vocab_size=7),
        CheckpointError,
        "bert.embeddings.word_embeddings.weight has shape (156, 12) in the files but (7, 12) by config.json",
    ),
    "other labels": (
        _config(id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2}),
        CheckpointError,
        "classifier.bias has shape (2,) in the files but (3,) by config.json",
    ),
    "more layers": (
        _config(num_hidden_layers=3),
        CheckpointError,
        "weights missing from its files: 16, e.g. bert.encoder.layer.2.",
    ),
    "hole in the body": (
        lambda f: tiny.drop_tensors(f, "bert.embeddings.word_embeddings"),
        CheckpointError,
        "weights missing from its files: 1, e.g. bert.embeddings.word_embeddings.weight; they would be random",
    ),
    "no tokenizer": (_no_tokenizer, CheckpointError, "put the files of its tokenizer beside config.json"),
    "empty tokenizer": (_empty_tokenizer, CheckpointError, "there is none of tokenizer.json, vocab.txt"),
    "broken tokenizer": (_file("tokenizer.json", b"{}"), CheckpointError, "its tokenizer cannot be loaded"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_checkpoints(case: str, classifier: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, error_class, text = UNFIT[case]
    spoil(classifier)
    capfd.readouterr()
    with pytest.raises(AttnProbeError) as caught:
        open_checkpoint(str(classifier))
    message = str(caught.value)
    assert type(caught.value) is error_class, message
    assert text in message
    assert str(classifier) in message
    assert "\n" not in message
    assert not (classifier / "executed").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "options", "error_class", "text"),
    [
        ("{folder}/config.json", {}, CheckpointError, "is a file; a checkpoint is the folder that holds config.json"),
        ("no-such-model", {}, CheckpointError, "is no folder here, and as a hub id it is neither cached nor reachable"),
        ("no-such/model", {}, CheckpointError, "is no folder here, and as a hub id it is neither cached nor reachable"),
        ("{folder}" + 300 * "x", {}, CheckpointError, "cannot be a path"),
        ("{folder}", {"device": "cuda:99"}, UsageError, "--device cuda:99: CUDA devices here:"),
        ("{folder}", {"device": "abacus"}, UsageError, "--device 'abacus' is unknown"),
        ("{folder}", {"device": "meta"}, UsageError, "--device 'meta' is not supported"),
        ("{folder}", {"dtype": "int8"}, UsageError, "--dtype 'int8' is unknown; use one of float32,"),
    ],
)
def test_unfit_arguments(
    name: str,
    options: dict[str, Any],
    error_class: type[AttnProbeError],
    text: str,
    classifier: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(AttnProbeError) as caught:
        open_checkpoint(name.format(folder=classifier), **options)
    assert type(caught.value) is error_class
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cuda_without_cuda(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"--device cuda: CUDA devices here: 0; use cpu$"):
        open_checkpoint(str(classifier), device="cuda")


def test_values_that_overflow_in_half_precision(classifier: Path) -> None:
    _set_tensor(classifier, "classifier.weight", 1e6)
    open_checkpoint(str(classifier))
    with pytest.raises(CheckpointError, match=r"classifier\.weight holds NaN or infinite values as float16"):
        open_checkpoint(str(classifier), dtype="float16")
