"""Which objective a checkpoint and its data are given, and what the user is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnprobe.data.sources import DataOptions
from attnprobe.errors import DataError, UsageError
from attnprobe.objectives import (
    CausalLM,
    EmbeddingFidelity,
    MaskedLM,
    Objective,
    RegressionFidelity,
    RegressionTask,
    SequenceFidelity,
    SequenceTask,
    SpanTask,
    TokenFidelity,
)
from attnprobe.options import ModelOptions
from attnprobe.workbench import Workbench, prepare
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.probing import SENTENCES, write_csv

MAKE = {
    "classifier": tiny.bert_classifier,
    "tags": tiny.bert_token_classifier,
    "mlm": tiny.bert_masked_lm,
    "base": tiny.bert_base,
    "causal": tiny.gpt2_causal_lm,
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("checkpoints")
    paths = {}
    for name, make in MAKE.items():
        (root / name).mkdir()
        paths[name] = str(make(root / name))
    for name, options in {"random": {"trained_head": False}, "score": {"labels": ("score",)}}.items():
        (root / name).mkdir()
        paths[name] = str(tiny.bert_classifier(root / name, **options))  # type: ignore[arg-type]
    return paths


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataOptions]:
    root = tmp_path_factory.mktemp("data")
    conll = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in zip(*row, strict=True)) for row in TAGGED)
    (root / "tags.conll").write_text(conll + "\n")
    (root / "prose.txt").write_text("".join(f"{text}\n" for text, _ in SENTENCES))
    columns = {"text_columns": ("sentence",), "label_column": "label"}
    files = {
        "labelled": write_csv(root / "labelled.csv", SENTENCES),
        "unlabelled": write_csv(root / "unlabelled.csv", [(text, -1) for text, _ in SENTENCES]),
        "half": write_csv(root / "half.csv", [(t, y if n % 2 else -1) for n, (t, y) in enumerate(SENTENCES)]),
        "scores": write_csv(root / "scores.csv", [(text, label + 0.5) for text, label in SENTENCES]),
    }
    options = {name: DataOptions(eval_file=file, **columns) for name, file in files.items()}  # type: ignore[arg-type]
    return options | {
        "tags": DataOptions(eval_file=root / "tags.conll"),
        "prose": DataOptions(eval_file=root / "prose.txt"),
        "none": DataOptions(limit=3),
    }


TAGGED = (
    (("the", "cat", "sat"), ("O", "B-PER", "O")),
    (("good", "dog", "ran", "very"), ("B-PER", "I-PER", "O", "O")),
)


@pytest.mark.parametrize(
    ("checkpoint", "source", "objective", "options", "told"),
    [
        ("classifier", "labelled", SequenceTask, {}, ""),
        ("classifier", "half", SequenceTask, {}, "4 of 7 rows have no label"),
        ("classifier", "unlabelled", SequenceFidelity, {}, "fidelity to the dense model"),
        ("classifier", "labelled", SequenceFidelity, {"objective": "fidelity"}, "fidelity to the dense model"),
        ("classifier", "none", SequenceFidelity, {}, "no data is named: 3 sentences"),
        ("score", "scores", RegressionTask, {}, ""),
        ("score", "none", RegressionFidelity, {}, ""),
        ("random", "prose", EmbeddingFidelity, {}, "no trained head"),
        ("tags", "tags", SpanTask, {}, ""),
        ("tags", "none", TokenFidelity, {}, ""),
        ("mlm", "prose", MaskedLM, {}, ""),
        ("mlm", "prose", TokenFidelity, {"objective": "fidelity"}, ""),
        ("mlm", "prose", MaskedLM, {"objective": "lm"}, ""),
        ("causal", "prose", CausalLM, {}, ""),
        ("base", "prose", EmbeddingFidelity, {"pooling": "cls"}, "no trained head"),
    ],
)
def test_the_objective_is_what_checkpoint_and_data_allow(
    checkpoints: dict[str, str],
    data: dict[str, DataOptions],
    checkpoint: str,
    source: str,
    objective: type[Objective],
    options: dict[str, str],
    told: str,
) -> None:
    bench = prepare(checkpoints[checkpoint], data[source], ModelOptions(**options))  # type: ignore[arg-type]
    assert type(bench.objective) is objective
    assert told in " ".join(bench.warnings)
    assert len(bench.encoded) == len(bench.examples)
    if options.get("pooling"):
        assert isinstance(bench.objective, EmbeddingFidelity)
        assert bench.objective.pooling == "cls"


@pytest.mark.parametrize(
    ("checkpoint", "source", "options", "error", "told"),
    [
        ("base", "prose", {"objective": "task"}, UsageError, "no trained task head"),
        ("random", "labelled", {"objective": "task"}, UsageError, "no trained task head"),
        ("classifier", "unlabelled", {"objective": "task"}, DataError, "has no labels"),
        ("classifier", "labelled", {"objective": "lm"}, UsageError, "no trained language-model head"),
        ("classifier", "labelled", {"max_length": 62}, UsageError, "--max-length 62"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    checkpoints: dict[str, str],
    data: dict[str, DataOptions],
    checkpoint: str,
    source: str,
    options: dict[str, object],
    error: type[Exception],
    told: str,
) -> None:
    with pytest.raises(error, match=told) as caught:
        prepare(checkpoints[checkpoint], data[source], ModelOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_only_labelled_rows_are_measured(checkpoints: dict[str, str], data: dict[str, DataOptions]) -> None:
    bench = prepare(checkpoints["classifier"], data["half"], ModelOptions())
    assert [text for (text,) in bench.examples.texts] == [text for n, (text, _) in enumerate(SENTENCES) if n % 2]
    assert bench.unlabelled == 4


def test_cut_rows_are_told(checkpoints: dict[str, str], data: dict[str, DataOptions]) -> None:
    bench = prepare(checkpoints["classifier"], data["labelled"], ModelOptions(max_length=5))
    assert bench.encoded.truncated == 4
    assert "4 of 7 rows were cut to 5 tokens" in bench.warnings


def test_a_stated_pooling_is_followed(checkpoints: dict[str, str], data: dict[str, DataOptions]) -> None:
    folder = Path(checkpoints["base"]) / "1_Pooling"

    def pooling() -> str:
        bench: Workbench = prepare(checkpoints["base"], data["prose"], ModelOptions())
        assert isinstance(bench.objective, EmbeddingFidelity)
        return bench.objective.pooling

    assert pooling() == "tokens"
    folder.mkdir()
    (folder / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert pooling() == "mean"


def test_positions_and_plan(checkpoints: dict[str, str], data: dict[str, DataOptions]) -> None:
    bench = prepare(checkpoints["classifier"], data["labelled"], ModelOptions())
    plan = bench.encoded.plan(3)
    seen = []
    for batch in bench.batches(plan):
        at = bench.positions(batch, causal=False)
        assert at.cls.sum(1).tolist() == at.sep.sum(1).tolist() == [1] * len(batch)
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(7))
