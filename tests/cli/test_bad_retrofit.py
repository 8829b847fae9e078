"""Bad input to `retrofit` and to exports with residual attention: one line, the right exit code, nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from attnprobe.checkpoint import open_checkpoint
from attnprobe.export.card import Card
from attnprobe.export.format import RECORD
from attnprobe.export.writing import save_export
from attnprobe.residual.stream import Residual
from tests.cli.conftest import ROWS, Call
from tests.export.exported import classifier
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.bad_input import Bad, Spoil, require_refused, write

NEW = "retrofit clf --train-file t.csv --eval-file d.csv --per-device-batch-size 4 --max-steps 2 --output-dir new"


@pytest.fixture(scope="session")
def ground(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ground of the other tests; training data `t.csv`; exports: `masked` by head, `residual`."""
    place = tmp_path_factory.mktemp("retrofit")
    folder = Path(shutil.copytree(ground, place / "ground"))
    (folder / "t.csv").write_text("sentence,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(ROWS * 2)))
    exported = classifier(place, "cell")
    shutil.copytree(exported.folder, folder / "masked")
    config = exported.checkpoint.model.config
    gates = torch.full((config.num_hidden_layers - 1, config.num_attention_heads), 0.5)
    save_export(
        folder / "residual",
        checkpoint=exported.checkpoint,
        residual=Residual(variant="sum", gates=gates),
        card=Card(),
        provenance={},
    )
    return folder


def _altered(sandbox: Path) -> None:
    record = sandbox / "residual" / RECORD
    record.write_text(record.read_text().replace("0.5", "0.6", 1))


def _masks_added(sandbox: Path) -> None:
    shutil.copy(sandbox / "masked/masks.safetensors", sandbox / "residual/masks.safetensors")


def _shallow(sandbox: Path) -> None:
    shutil.rmtree(sandbox / "clf")
    tiny.bert_classifier(sandbox / "clf")
    tensors = tiny.read_tensors(sandbox / "clf")
    tiny.write_tensors(sandbox / "clf", {n: t for n, t in tensors.items() if ".layer.1." not in n})
    tiny.change_config(sandbox / "clf", num_hidden_layers=1)


def _other_weights(sandbox: Path) -> None:
    tensors = tiny.read_tensors(sandbox / "residual")
    tensors["classifier.bias"] += 1
    tiny.write_tensors(sandbox / "residual", tensors)


def _named(spoil: Spoil, *says: str) -> dict[str, tuple[tuple[str, ...], Spoil]]:
    return {says[0]: (says, spoil)}


SPOILT = {
    **_named(_altered, "residual/attnprobe.json was altered after the export"),
    **_named(_masks_added, "residual/masks.safetensors is not the exported model's", "remove it"),
    **_named(_other_weights, "residual/model.safetensors was changed after the export"),
}

BAD = {
    "unknown variant": Bad(f"{NEW} --variants sum,product", 2, ("--variants: unknown 'product'", "sum, mean")),
    "one variant twice": Bad(f"{NEW} --variants sum,sum", 2, ("--variants names 'sum' twice", "give each once")),
    "unknown end": Bad(f"{NEW} --ends final", 2, ("--ends: unknown 'final'", "canonical, learned")),
    "no end": Bad(f"{NEW} --ends ,", 2, ("--ends must name at least one of", "canonical")),
    "unknown alignment": Bad(f"{NEW} --align heads", 2, ("--align", "'heads'", "scores")),
    "unknown gate": Bad(f"{NEW} --gate cell", 2, ("--gate", "'cell'", "site")),
    "unknown control": Bad(f"{NEW} --controls random", 2, ("--controls: unknown 'random'", "continued")),
    "no steps": Bad(f"{NEW} --max-steps 0", 2, ("--max-steps must be at least 1", "not 0")),
    "gate rate NaN": Bad(f"{NEW} --gate-learning-rate nan", 2, ("--gate-learning-rate must be above 0", "not nan")),
    "ramp beyond 1": Bad(f"{NEW} --ramp 1.5", 2, ("--ramp must be from 0 to 1", "not 1.5")),
    "masks of 120 %": Bad(f"{NEW} --sparsify 120%", 2, ("--sparsify must lie between 0 and 1", "not 120%")),
    "masks in words": Bad(f"{NEW} --sparsify most", 2, ("--sparsify must be a share such as 0.9 or 90%", "'most'")),
    "masks that can't be": Bad(f"{NEW} --sparsify 0.9999", 2, ("0.9999 can't be met", "on this data")),
    "masks without steps": Bad(f"{NEW} --sparsify-steps 0", 2, ("--sparsify-steps must be at least 1", "not 0")),
    "gradient checkpointing": Bad(f"{NEW} --gradient-checkpointing", 2, ("--gradient-checkpointing", "leave it out")),
    "weights in float16": Bad(f"{NEW} --dtype float16", 2, ("--dtype float16", "--bf16")),
    "no training data": Bad(
        "retrofit clf --eval-file d.csv --output-dir new", 2, ("no data to learn from", "--train-file")
    ),
    "training label unknown": Bad(
        NEW.replace("t.csv", "u.csv"), 1, ("'joyful'", "u.csv"), write("u.csv", "sentence,label\na cat,joyful\n" * 8)
    ),
    "one site": Bad(NEW, 3, ("clf has one site of attention",), _shallow),
    "residual already": Bad(NEW.replace("clf", "residual"), 2, ("residual has residual attention already",)),
    "a mask by head": Bad(NEW.replace("clf", "masked"), 2, ("masked has a mask by head", "--align none")),
    "a folder in use": Bad(NEW.replace("new", "run"), 1, ("run is not empty", "--output-dir")),
    "resume another command": Bad(
        f"{NEW.replace('new', 'run')} --resume", 2, ("run holds a run of `importance`", "--output-dir")
    ),
    **{
        f"{name}: {command}": Bad(line, 1, says, spoil)
        for name, (says, spoil) in SPOILT.items()
        for command, line in {
            "evaluate": "evaluate residual --eval-file d.csv",
            "retrofit": NEW.replace("clf", "residual"),
        }.items()
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, sandbox: Path, call: Call) -> None:
    require_refused(BAD[name], sandbox, call)


def test_an_export_is_measured_by_every_command(sandbox: Path, call: Call) -> None:
    """And is another model than the checkpoint that it was made of."""
    assert open_checkpoint("residual").residual is not None
    outcome = call("importance residual --eval-file d.csv --methods mass,ablation --resamples 10 --output-dir probed")
    assert outcome.code == 0, outcome.err
    assert "scores          a gated sum of scores, gates from 0.50 to 0.50\n" in call("doctor residual").out
    masked = NEW.replace("retrofit clf", "sparsify residual --methods dam --held-out 0.5 --max-drop 100")
    assert call(f"{masked} --target-sparsity 0.5 --resamples 10").code == 0
    again = open_checkpoint(str(sandbox / "new/model"))
    assert again.residual is not None
    assert again.mask is not None
