"""Whole runs on tiny checkpoints: what every kind of model leaves, killed runs taken up, bad ends avoided."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnprobe.data.sources import DataOptions
from attnprobe.errors import RunFolderError, UsageError
from attnprobe.importance import learned, taylor
from attnprobe.importance.options import ABLATION_LEVELS, ImportanceOptions
from attnprobe.importance.run import run_importance
from attnprobe.options import ModelOptions
from attnprobe.runs import read_run
from tests.helpers import tiny_checkpoints as tiny
from tests.helpers.probing import SENTENCES, write_csv

SITES, HEADS = tiny.LAYERS, tiny.HEADS
LABELLED = {"text_columns": ("sentence",), "label_column": "label"}
COLUMNS = (
    "method,level,position_class,site,head,value,unit,ci_low,ci_high,control,control_ci_low,control_ci_high,"
    "loss_dense,loss_ablated,metric_name,metric_dense,metric_ablated,cells,examples,control_cells"
)
OFFSETS = "method,offset,value,unit,ci_low,ci_high,control,control_ci_low,control_ci_high,cells,examples"
AGREEMENT = "level,method_a,method_b,statistic,value,ci_low,ci_high,items,examples"
HEADS_COLUMNS = (
    "site,head,special,entropy_mean,entropy_ci_low,entropy_ci_high,entropy_q25,entropy_median,entropy_q75,"
    "normalised_entropy_mean,jsd_previous,jsd_previous_ci_low,jsd_previous_ci_high,matched_head,jsd_matched,rows"
)
TABLES = ("importance.csv", "offsets.csv", "agreement.csv", "heads.csv", "maps.npz")
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs with few steps and resamples, and without the page, which has tests of its own."""

    def page(folder: Path) -> None:
        (folder / "report.html").write_text("page")

    monkeypatch.setattr("attnprobe.report.write_report", page)

    def call(
        checkpoint: Path, data: DataOptions, *, name: str = "run", mode: str = "new", batch: int = 7, **changes: Any
    ) -> Path:
        model = {key: changes.pop(key) for key in ("objective", "pooling", "seed", "max_length") if key in changes}
        options = {"n_steps": 3, "resamples": 23, "max_offset": 2, "control_draws": 2, **changes}
        run_importance(
            str(checkpoint),
            data=data,
            model=ModelOptions(per_device_batch_size=batch, **model),
            options=ImportanceOptions(**options),
            output_dir=tmp_path / name,
            mode=mode,  # type: ignore[arg-type]
            quiet=True,
        )
        return tmp_path / name

    return call


def made(folder: Path, make: Callable[..., Path] = tiny.bert_classifier, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return make(folder, **options)


@pytest.fixture
def labelled(tmp_path: Path) -> DataOptions:
    return DataOptions(eval_file=write_csv(tmp_path / "data.csv", SENTENCES), **LABELLED)  # type: ignore[arg-type]


@pytest.fixture
def prose(tmp_path: Path) -> DataOptions:
    (tmp_path / "prose.txt").write_text("".join(f"{text}\n" for text, _ in SENTENCES))
    return DataOptions(eval_file=tmp_path / "prose.txt")


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in TABLES}


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "importance.csv")


def check(folder: Path, *, kind: str, metric: str, examples: int = len(SENTENCES)) -> dict[str, Any]:
    """What holds for the tables of every run. Returns run.json."""
    for name, header in {
        "importance": COLUMNS,
        "offsets": OFFSETS,
        "agreement": AGREEMENT,
        "heads": HEADS_COLUMNS,
    }.items():
        assert (folder / f"{name}.csv").read_text().split("\n", 1)[0] == header
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)
    assert (record["status"], record["objective"]["kind"]) == ("complete", kind)
    assert record["objective"]["metric_name"] == metric
    assert record["data"]["examples"] == examples
    assert not (folder / "partial").exists()
    figures = table(folder)
    assert figures["examples"].max() == examples
    known = figures["value"].notna()
    assert (known == (figures["examples"] > 0)).all()
    inside = figures[known & figures["ci_low"].notna()]
    assert (inside["ci_low"] <= inside["ci_high"] + 1e-9).all()
    ablated = figures[figures["method"] == "ablation"]
    assert set(ablated["metric_name"]) == ({metric} if "ablation" in record["arguments"]["methods"] else set())
    loss = ablated[(ablated["unit"] == "loss") & ablated["value"].notna()]
    np.testing.assert_allclose(loss["loss_ablated"], loss["loss_dense"] + loss["value"], rtol=1e-4, atol=1e-6)
    assert (ablated[ablated["unit"] == "kl"]["value"].dropna() >= 0).all()
    share = figures[(figures["method"] == "mass") & (figures["unit"] == "share")]
    assert share["value"].dropna().between(0, 1 + 1e-6).all()
    with np.load(folder / "maps.npz") as maps:
        assert maps["maps"].shape[:2] == (SITES, HEADS)
        assert maps["maps"].min() >= 0
        assert maps["maps"].max() <= 1 + 1e-6
        assert (maps["maps"][:, :, maps["counts"] == 0] == 0).all()
    return record


def test_a_classifier_by_every_method_and_level(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    folder = run(made(tmp_path / "model"), labelled, ablation_levels=ABLATION_LEVELS)
    record = check(folder, kind="task", metric="accuracy")
    figures = table(folder)
    classes = 14
    rows = {
        "class": classes,
        "site": SITES,
        "head": SITES * HEADS,
        "class_site": classes * SITES,
        "class_head": classes * SITES * HEADS,
    }
    for method, units, levels in (
        ("mass", ("share", "density"), ("class", "class_site", "class_head")),
        ("ablation", ("loss", "kl"), tuple(rows)),
        ("taylor", ("loss",), tuple(rows)),
        ("integrated-gradients", ("loss",), tuple(rows)),
    ):
        for unit in units:
            for level, count in rows.items():
                chosen = figures[
                    (figures["method"] == method) & (figures["unit"] == unit) & (figures["level"] == level)
                ]
                assert len(chosen) == (count if level in levels else 0)
                assert chosen["position_class"].isna().all() == (not level.startswith("class"))
                assert chosen["site"].isna().all() == (level == "class" or chosen.empty)
                assert chosen["head"].isna().all() == ("head" not in level or chosen.empty)
    at_class = figures[(figures["level"] == "class") & (figures["unit"] == "loss")].set_index("position_class")
    lengths = [len(text.split()) + 2 for text, _ in SENTENCES]
    assert at_class["cells"].loc["diagonal"].tolist() == [sum(lengths)] * 3
    assert at_class["cells"].loc["cls_key"].tolist() == [sum(n - 1 for n in lengths)] * 3
    assert at_class["examples"].loc["cross_segment"].tolist() == [0] * 3
    density = figures[(figures["unit"] == "density") & figures["value"].notna()]
    share = figures[(figures["unit"] == "share") & figures["value"].notna()]
    np.testing.assert_allclose(density["value"], share["value"].to_numpy() / share["control"].to_numpy(), rtol=1e-5)
    assert density["control"].eq(1).all()
    assert sorted(record["files"]) == sorted((*TABLES, "report.html"))
    assert (folder / "report.html").read_text() == "page"
    agreement = pd.read_csv(folder / "agreement.csv")
    first = at_class[at_class["method"] == "ablation"]["value"].drop(["cls", "sep", "special", "window"])
    second = at_class[at_class["method"] == "taylor"]["value"].drop(["cls", "sep", "special", "window"])
    row = agreement[
        (agreement["level"] == "class") & (agreement["method_a"] == "ablation") & (agreement["method_b"] == "taylor")
    ].iloc[0]
    assert row["items"] == first.notna().sum()
    assert row["value"] == pytest.approx(stats.spearmanr(first.dropna(), second.dropna()).statistic, rel=1e-5)
    assert len(agreement) == 6 + 3 + 3 + 6 + 6 + 6  # mass has no figures of sites and heads


def test_learned_gates_when_asked_for(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    folder = run(model, labelled, methods=("mass", "learned"), learned_steps=3)
    check(folder, kind="task", metric="accuracy")
    figures = table(folder)
    figures = figures[figures["method"] == "learned"]
    assert set(figures["unit"]) == {"gate"}
    classes = 14
    levels = {"class": classes, "class_site": classes * SITES, "class_head": classes * SITES * HEADS}
    assert figures["level"].value_counts().to_dict() == levels | {"head": SITES * HEADS, "site": SITES}
    known = figures[figures["examples"] > 0]
    assert known["value"].between(0, 1).all()
    assert known["value"].std() > 0.01
    beside = known["level"].str.startswith("class")
    assert known[beside]["control"].between(0, 1).all()
    assert known[~beside]["control"].isna().all()
    head = figures[figures["level"] == "head"].groupby("site")["value"].mean()
    np.testing.assert_allclose(head, figures[figures["level"] == "site"]["value"], rtol=1e-5)
    offsets = pd.read_csv(folder / "offsets.csv")
    assert offsets[offsets["method"] == "learned"]["control"].notna().all()
    agreement = pd.read_csv(folder / "agreement.csv")
    assert set(agreement["level"]) == {"class", "class_site", "class_head", "offset"}
    shared = table(run(model, labelled, name="shared", methods=("learned",), learned_steps=3, learned_sharing="sites"))
    assert set(shared["level"]) == {"class"}
    assert "learned" not in ImportanceOptions().methods


@pytest.mark.parametrize(
    ("make", "kind", "metric", "options"),
    [
        (tiny.bert_masked_lm, "masked_lm", "token_accuracy", {}),
        (tiny.gpt2_causal_lm, "causal_lm", "token_accuracy", {}),
        (tiny.bert_base, "fidelity", "cosine", {"pooling": "mean"}),
        (tiny.bert_base, "fidelity", "cosine", {}),
        (tiny.gpt2_causal_lm, "fidelity", "token_accuracy", {"objective": "fidelity"}),
    ],
)
def test_models_without_a_task(
    run: Run, prose: DataOptions, tmp_path: Path, make: Any, kind: str, metric: str, options: dict[str, str]
) -> None:
    folder = run(made(tmp_path / "model", make), prose, **options)
    record = check(folder, kind=kind, metric=metric)
    figures = table(folder)
    classes = figures[(figures["level"] == "class") & (figures["method"] == "ablation")]["position_class"]
    assert ("first_key" in set(classes)) == (make is tiny.gpt2_causal_lm)
    offsets = pd.read_csv(folder / "offsets.csv")["offset"]
    assert (offsets.min(), offsets.max()) == (0 if make is tiny.gpt2_causal_lm else -2, 2)
    loss = figures[(figures["unit"] == "loss") & (figures["level"] == "class")]["value"].dropna()
    assert (loss.abs() > 1e-7).any()
    if kind == "fidelity":
        assert (loss >= 0).all()
        assert any("fidelity" in warning for warning in record["warnings"])


def test_unlabelled_data_are_measured_as_fidelity(run: Run, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "data.csv", [(text, -1) for text, _ in SENTENCES])
    folder = run(made(tmp_path / "model"), DataOptions(eval_file=file, **LABELLED))  # type: ignore[arg-type]
    check(folder, kind="fidelity", metric="agreement")
    figures = table(folder)
    assert figures[figures["method"] == "ablation"]["metric_dense"].dropna().eq(1).all()


def test_pairs_have_cells_across(run: Run, tmp_path: Path) -> None:
    rows = [(a[0], b[0], b[1]) for a, b in pairwise(SENTENCES)]
    file = write_csv(tmp_path / "pairs.csv", rows, ("first", "second", "label"))
    data = DataOptions(eval_file=file, text_columns=("first", "second"), label_column="label")
    folder = run(made(tmp_path / "model"), data, methods=("mass", "taylor"))
    figures = table(folder)
    row = figures[(figures["position_class"] == "cross_segment") & (figures["level"] == "class")]
    assert (row["examples"] > 0).all()
    assert (row["cells"] > 0).all()


def test_token_classification(run: Run, tmp_path: Path) -> None:
    words = [text.split() for text, _ in SENTENCES]
    lines = ["".join(f"{word} {'B-PER' if n % 3 else 'O'}\n" for n, word in enumerate(row)) for row in words]
    (tmp_path / "tags.conll").write_text("\n".join(lines))
    data = DataOptions(eval_file=tmp_path / "tags.conll")
    folder = run(made(tmp_path / "model", tiny.bert_token_classifier), data)
    check(folder, kind="task", metric="span_f1")


def test_without_special_tokens(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    folder = run(made(tmp_path / "model"), labelled, include_special=False)
    check(folder, kind="task", metric="accuracy")
    figures = table(folder)
    names = set(figures["position_class"].dropna())
    assert names == {"diagonal", "previous", "next", "neighbour", "cross_segment", "other", "window"}
    cells = figures[(figures["position_class"] == "diagonal") & (figures["level"] == "class")]["cells"]
    assert set(cells) == {sum(len(text.split()) for text, _ in SENTENCES)}
    with np.load(folder / "maps.npz") as maps:
        assert maps["counts"][0].sum() == 0  # [CLS] is in every first place


def test_one_example_has_figures_and_no_intervals(run: Run, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "data.csv", SENTENCES[:1])
    folder = run(made(tmp_path / "model"), DataOptions(eval_file=file, **LABELLED))  # type: ignore[arg-type]
    check(folder, kind="task", metric="accuracy", examples=1)
    figures = table(folder)
    assert figures["ci_low"].isna().all()
    assert figures["value"].notna().any()
    agreement = pd.read_csv(folder / "agreement.csv")
    assert agreement[agreement["level"] == "head"]["value"].notna().all()


def test_a_class_that_is_nowhere_in_the_data(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    folder = run(made(tmp_path / "model"), labelled, classes=("cross_segment",), ablation_levels=("class",))
    figures = table(folder)
    figures = figures[figures["position_class"].notna()]
    assert set(figures["position_class"]) == {"cross_segment"}
    assert figures["value"].isna().all()
    assert figures["examples"].eq(0).all()
    assert figures["cells"].eq(0).all()
    assert set(figures["method"]) == {"mass", "ablation", "taylor", "integrated-gradients"}


def test_a_name_that_is_no_class(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown position class 'diag'.*diagonal, cls_key") as caught:
        run(made(tmp_path / "model"), labelled, classes=("diag",))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "run.json").exists()


def test_texts_of_one_token_have_no_next_token(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("a\nthe cat\nz\n")
    folder = run(made(tmp_path / "model", tiny.gpt2_causal_lm), DataOptions(eval_file=tmp_path / "prose.txt"), batch=2)
    figures = table(folder)
    gradients = figures[
        figures["method"].isin(("taylor", "integrated-gradients", "ablation")) & (figures["unit"] == "loss")
    ]
    assert gradients["examples"].max() == 1
    assert read_run(folder).record["summary"]["completeness_gap"] >= 0


def test_only_texts_of_one_token(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("a\nz\n")
    methods = (*ImportanceOptions().methods, "learned")
    model = made(tmp_path / "model", tiny.gpt2_causal_lm)
    folder = run(model, DataOptions(eval_file=tmp_path / "prose.txt"), methods=methods)
    figures = table(folder)
    assert figures[figures["unit"].isin(("loss", "gate"))]["value"].isna().all()
    json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)


def test_batches_of_any_size_give_the_same_figures(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    whole, single, split = (
        table(run(model, labelled, name=name, batch=batch, max_cells=cells, ablation_levels=("class", "head")))
        for name, batch, cells in (("whole", 7, 10**6), ("single", 1, 10**6), ("split", 7, 2000))
    )
    for other in (single, split):
        for column in ("value", "ci_low", "ci_high", "loss_dense", "loss_ablated", "metric_ablated", "cells"):
            np.testing.assert_allclose(other[column], whole[column], rtol=1e-3, atol=1e-5)


def test_a_seed_decides_everything_that_is_drawn(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    methods, levels = ("mass", "ablation"), ("class",)
    first, again = (
        digests(run(model, labelled, name=name, methods=methods, ablation_levels=levels)) for name in ("first", "again")
    )
    assert first == again
    other = run(model, labelled, name="other", methods=methods, ablation_levels=levels, seed=1)
    here, there = table(tmp_path / "first"), table(other)
    np.testing.assert_allclose(here["value"], there["value"])
    assert not np.allclose(here["control"].fillna(0), there["control"].fillna(0))
    assert not np.allclose(here["ci_low"].fillna(0), there["ci_low"].fillna(0))


class StoppedError(Exception):
    """Stands for whatever ends a run."""


def test_a_stopped_run_is_taken_up_where_it_was(
    run: Run, labelled: DataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(tmp_path / "model")
    undisturbed = digests(run(model, labelled, batch=3, name="undisturbed"))
    calls, whole = [], taylor.measure

    def stop_at_the_second(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise StoppedError
        return whole(*given)

    monkeypatch.setattr(taylor, "measure", stop_at_the_second)
    with pytest.raises(StoppedError):
        run(model, labelled, batch=3)
    assert read_run(tmp_path / "run").record["status"] == "running"
    assert not (tmp_path / "run" / "importance.csv").exists()
    pieces = set((tmp_path / "run" / "partial").rglob("*.npz"))
    (tmp_path / "run" / "partial" / "mass" / "000001.npz").unlink()  # as if killed between sums and piece
    assert len(pieces) > 5
    with pytest.raises(RunFolderError, match="is not empty"):
        run(model, labelled, batch=3)
    with pytest.raises(UsageError, match="n_steps: 3 then, 5 now"):
        run(model, labelled, batch=3, mode="resume", n_steps=5)
    with pytest.raises(UsageError, match="limit: None then, 5 now"):
        run(model, DataOptions(eval_file=labelled.eval_file, limit=5, **LABELLED), mode="resume", batch=3)  # type: ignore[arg-type]
    assert set((tmp_path / "run" / "partial").rglob("*.npz")) == pieces - {
        tmp_path / "run" / "partial" / "mass" / "000001.npz"
    }
    before = len(calls)
    assert digests(run(model, labelled, batch=3, mode="resume")) == undisturbed
    assert len(calls) - before == 2  # three batches, of which the first was done
    (tmp_path / "run" / "report.html").unlink()  # killed before the page was written
    run(model, labelled, batch=3, mode="resume")
    assert (tmp_path / "run" / "report.html").exists()
    assert len(calls) - before == 2


def test_what_was_learnt_is_not_learnt_again(
    run: Run, labelled: DataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"methods": ("mass", "learned"), "learned_steps": 5, "batch": 3}
    model = made(tmp_path / "model")
    undisturbed = digests(run(model, labelled, name="undisturbed", **options))
    other = digests(run(model, labelled, name="other", seed=1, **options))
    assert other["maps.npz"] == undisturbed["maps.npz"]
    here, there = (table(tmp_path / name) for name in ("undisturbed", "other"))
    is_learned = here["method"] == "learned"
    assert not np.allclose(here[is_learned]["value"].fillna(0), there[is_learned]["value"].fillna(0), rtol=1e-4)
    fits, fit, measure = [], learned.fit, learned.measure

    def counted(*given: Any) -> Any:
        fits.append(1)
        return fit(*given)

    def stop(*_: Any) -> Any:
        raise StoppedError

    monkeypatch.setattr(learned, "fit", counted)
    monkeypatch.setattr(learned, "measure", stop)
    with pytest.raises(StoppedError):
        run(model, labelled, **options)
    with pytest.raises(UsageError, match=r"learned_price: 1.0 then, 0.5 now"):
        run(model, labelled, mode="resume", learned_price=0.5, **options)
    monkeypatch.setattr(learned, "measure", measure)
    assert digests(run(model, labelled, mode="resume", **options)) == undisturbed
    assert len(fits) == 1


def test_overwriting_leaves_other_files_alone(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    run(model, labelled, methods=("mass",))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    folder = run(model, labelled, mode="overwrite", methods=("taylor",))
    assert sorted(file.name for file in folder.iterdir()) == [
        *("agreement.csv", "importance.csv", "notes.txt", "offsets.csv", "report.html", "run.json"),
    ]
    assert set(table(folder)["method"]) == {"taylor"}


_KILLED = """
import sys
from pathlib import Path
import attnprobe.report
attnprobe.report.write_report = lambda folder: (folder / "report.html").write_text("page")
from attnprobe.data.sources import DataOptions
from attnprobe.importance.options import ImportanceOptions
from attnprobe.importance.run import run_importance
from attnprobe.options import ModelOptions
import torch
torch.set_num_threads(1)
root = Path(sys.argv[1])
run_importance(
    str(root / "model"),
    data=DataOptions(eval_file=root / "data.csv", text_columns=("sentence",), label_column="label"),
    model=ModelOptions(per_device_batch_size=1),
    options=ImportanceOptions(n_steps=3, resamples=23, max_offset=2, control_draws=2),
    output_dir=root / "killed",
    mode="resume",
    quiet=True,
)
"""


def test_a_killed_process_leaves_a_run_that_can_be_finished(run: Run, labelled: DataOptions, tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    undisturbed = run(model, labelled, name="undisturbed", batch=1)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    pieces: list[Path] = []
    until = time.monotonic() + 120
    while len(pieces) < 9 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
        pieces = list((tmp_path / "killed" / "partial").rglob("*.npz"))
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()
    assert len(pieces) >= 9, output.decode()
    assert read_run(tmp_path / "killed").record["status"] == "running"
    finished = run(model, labelled, name="killed", batch=1, mode="resume")
    assert digests(finished) == digests(undisturbed)
    assert {file.name for file in finished.iterdir()} == {file.name for file in undisturbed.iterdir()}


def test_the_same_seed_draws_the_same_whatever_order() -> None:
    """Guards the resume tests: numbers of one batch must not depend on what was drawn for another."""
    from attnprobe.importance.run import _seed

    class Bench:
        seed = 3

    seeds: NDArray[Any] = np.array(
        [_seed(Bench(), method, number) for method in ("mass", "ablation") for number in range(5)]  # type: ignore[arg-type]
    )
    assert len(set(seeds.tolist())) == len(seeds)
