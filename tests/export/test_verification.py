"""Every export is compared in a fresh process, and one that differs is not left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnprobe.errors import CheckpointError, VerificationError
from attnprobe.export import fresh, verification
from attnprobe.export.attaching import attached
from attnprobe.export.verification import TOLERANCE, Check, checks_of, other_side, outputs_of, verify_export
from tests.export.exported import Exported, classifier, export, random_mask, texts
from tests.helpers.families import family
from tests.helpers.tolerance import assert_identical, assert_near


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Exported once, never changed."""
    return classifier(tmp_path_factory.mktemp("bert"))


def masked_checks(exported: Exported) -> list[Check]:
    with attached(exported.checkpoint.model, exported.applied):
        return checks_of(exported.checkpoint.model, texts(exported))


def test_a_fresh_process_gives_the_same(bert: Exported) -> None:
    checks = masked_checks(bert)
    assert len(checks) == 2
    assert checks[0].inputs["attention_mask"][1, -1] == checks[1].inputs["attention_mask"][1, 0] == 0
    assert verify_export(bert.folder, checks) <= 1e-6


def test_a_wrong_export_is_never_left(bert: Exported, tmp_path: Path) -> None:
    """A mask that is not the one in force when the model was measured."""
    other = random_mask(bert.checkpoint.model, seed=1)
    told = r"export: in a fresh process, the output on batch 0 differs by [\d.]+ \(allowed: 1e-05, relative to the larg"
    with pytest.raises(VerificationError, match=told) as caught:
        export(tmp_path / "export", bert.checkpoint, other, bert.rules, checks=masked_checks(bert))
    assert caught.value.exit_code == 4
    assert str(tmp_path / "export") in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("said", "told"), [("Traceback\nMemoryError: 3\n", "MemoryError: 3"), ("", "it said nothing")])
def test_a_process_that_fails_is_told_by_its_last_line(said: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], -9, stdout="", stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        VerificationError, match=rf"x: the export can't be loaded in a fresh process \(exit -9\): {told}$"
    ):
        verify_export(Path("x"), [Check({"input_ids": torch.ones(1, 2)}, torch.ones(1))])


def test_what_the_fresh_process_runs(bert: Exported, tmp_path: Path) -> None:
    inputs = texts(bert)
    save_file({f"0.{name}": tensor for name, tensor in inputs.items()}, tmp_path / "batches")
    fresh.main(str(bert.folder), str(tmp_path / "batches"), str(tmp_path / "outputs"), "cpu")
    assert_near(load_file(tmp_path / "outputs")["0"], bert.masked(inputs)["logits"])
    with pytest.raises(CheckpointError, match="there is no such folder"):
        fresh.main(str(tmp_path / "gone"), str(tmp_path / "batches"), str(tmp_path / "outputs"), "cpu")


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_counts_as_equal(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the largest expected number, at least 1; by dtype. NaN is never equal."""
    expected = torch.tensor([[40.0, -8.0]], dtype=torch.float64)
    allowed = TOLERANCE[dtype]

    def left(found: torch.Tensor | None) -> Any:
        monkeypatch.setattr(verification, "_run_fresh", lambda *_: None)
        monkeypatch.setattr(verification, "load_file", lambda _: {} if found is None else {"0": found.to(dtype)})
        return verify_export(Path("x"), [Check({}, expected.to(dtype))])

    assert left(expected) == 0
    step = 40 * allowed
    assert left(expected + torch.tensor([0.0, 0.4 * step])) <= allowed
    for wrong, told in (
        (expected + torch.tensor([0.0, 4 * step]), "differs by"),
        (torch.full((1, 2), torch.nan), "differs by nan"),
        (expected[0], r"gives .* \(2,\) instead of .* \(1, 2\)"),
        (None, "gives nothing instead of"),
    ):
        with pytest.raises(VerificationError, match=told):
            left(wrong)


def test_the_other_side() -> None:
    """Rows keep their order of tokens, and get positions where the model does not count its own."""
    for name, positions in (("bert", True), ("roberta", False), ("t5-encoder", False)):
        row = family(name)
        inputs = row.inputs()
        inputs.pop("position_ids", None)
        moved = other_side(row.model(), inputs)
        assert ("position_ids" in moved) == positions
        expected = row.inputs("left")
        for key in inputs:
            assert_identical(moved[key], expected[key])
        if positions:
            assert_identical(moved["position_ids"], expected["position_ids"])


def test_outputs_by_the_number_of_their_batch(bert: Exported) -> None:
    inputs = {f"{n}.{key}": tensor[n : n + 1] for n in (0, 2) for key, tensor in texts(bert).items()}
    outputs = outputs_of(bert.checkpoint.model, inputs)
    assert outputs.keys() == {"0", "2"}
    whole = bert.dense(texts(bert))["logits"]
    for number, output in outputs.items():
        assert_near(output, whole[[int(number)]], 1e-5)
