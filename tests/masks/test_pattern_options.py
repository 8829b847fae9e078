"""`--pattern` and `--pattern-window`: every pattern of the table, by its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnprobe.data.sources import DataOptions
from attnprobe.errors import UsageError
from attnprobe.evaluation import evaluate
from attnprobe.masks.patterns import PATTERNS
from attnprobe.options import PATTERNS_HELP, GateOptions, ModelOptions
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.probing import SENTENCES, write_csv
from tests.references import patterns as reference


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DataOptions]:
    root = tmp_path_factory.mktemp("patterns")
    (root / "model").mkdir()
    checkpoint = str(tiny.bert_classifier(root / "model"))
    file = write_csv(root / "data.csv", SENTENCES)
    return checkpoint, DataOptions(eval_file=file, text_columns=("sentence",), label_column="label")


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_can_be_evaluated(name: str, size: int | None, place: tuple[str, DataOptions]) -> None:
    checkpoint, data = place
    gates = GateOptions(pattern=name, pattern_window=size, resamples=31)
    found = evaluate(checkpoint, data=data, model=ModelOptions(per_device_batch_size=3), gates=gates)
    pattern = PATTERNS[name]
    values = pattern.parameters if size is None else {**pattern.parameters, pattern.size: size}
    lengths = [len(text.split()) + 2 for text, _ in SENTENCES]
    kept = sum(len(reference.cells(name, length, values)) for length in lengths)
    assert found["pattern_parameters"] == values
    assert found["pattern_window"] == values[pattern.size]
    assert found["cell_sparsity"] == pytest.approx(1 - kept / sum(length**2 for length in lengths))


def test_without_a_pattern_there_are_no_parameters(place: tuple[str, DataOptions]) -> None:
    checkpoint, data = place
    found = evaluate(checkpoint, data=data, model=ModelOptions(), gates=GateOptions(resamples=31))
    assert (found["pattern"], found["pattern_window"], found["pattern_parameters"]) == (None, None, None)
    assert GateOptions(pattern_window=3).pattern_parameters == {}


def test_what_can_not_be_meant_is_refused_before_anything_is_read() -> None:
    known = "window, star, longformer, bigbird, strided, fixed, logsparse"
    with pytest.raises(UsageError, match=rf"^--pattern must be one of {known}, not 'moon'$"):
        GateOptions(pattern="moon", pattern_window=3)
    with pytest.raises(UsageError, match=r"^--pattern-window must be 0 or more, not -1$"):
        GateOptions(pattern="star", pattern_window=-1)
    with pytest.raises(UsageError, match=r"^--pattern-window: the pattern fixed needs a whole number from 1 .* not 0;"):
        GateOptions(pattern="fixed", pattern_window=0)


def test_help_tells_every_pattern() -> None:
    for name, pattern in PATTERNS.items():
        assert f"{name}: {pattern.summary}" in PATTERNS_HELP


def test_the_table_imports_no_torch() -> None:
    code = "import sys, attnprobe.masks.patterns; raise SystemExit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
