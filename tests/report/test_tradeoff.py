"""The report of a sweep as a file: its parts, what is drawn where, escaping, size, folders with parts missing."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from attnprobe.errors import RunFolderError
from attnprobe.report import headline, write_report
from attnprobe.report.page import LIMIT
from attnprobe.report.tradeoff.labels import DASHES, NAMES, SYMBOLS, kind
from attnprobe.sparsify.methods import METHODS
from tests.helpers.outline import Outline, figures_of
from tests.helpers.sweep_folders import CLASSES, LOSS, TOKENS, row, sweep_rows, write_sweep

HOSTILE = "<script>alert(1)</script>"


def report_of(folder: Path, *arguments: Any, **options: Any) -> str:
    return write_report(write_sweep(folder, *arguments, **options)).read_text(encoding="utf-8")


def galleries_of(document: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="galleries">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    galleries: dict[str, Any] = json.loads(found.group(1))
    return galleries


def test_a_full_report(tmp_path: Path) -> None:
    document = report_of(tmp_path, warnings=["2 rows were cut"])
    outline = Outline(document)
    assert set(figures_of(document)) == {"curves", "comparisons", "kept", "kept-sites", "training"}
    assert headline(tmp_path) in outline.text.replace("−", "-")
    assert headline(tmp_path).startswith("The exported model removes 90.")
    for words in (
        "How much attention minilm-trec can do without",
        "bert, 2 sites of 3 heads, 500 examples of TREC_10.csv, measured by the loss of the task",
        "2 rows were cut",
        "Target: 80.0 % of the valid cells removed.",
        "DAM, offset, frozen weights ★ exported (seed 0)",
        "all 6 controls",
        "The example: [CLS] how many people live in new york city ? [SEP]",
        "attnprobe sparsify minilm-trec --eval-file TREC_10.csv --target-sparsity 0.8,0.9,0.95",
        "one row a point: a method at a target, with its sparsity and what it costs",
        "9f" * 32,
    ):
        assert words in outline.text, words
    assert outline.titles("h2") == [
        "Warnings",
        "What sparsity costs",
        "Whether learning the mask was worth it",
        "Every mask by target",
        "What the masks look like",
        "What each class of positions keeps",
        "How the masks were learnt",
        "What was run",
        "",
    ]
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("alt") is not None for tag, attributes in outline.tags if tag == "img")


def test_the_report_needs_nothing_else_and_is_the_same_again(tmp_path: Path) -> None:
    first = report_of(tmp_path)
    assert write_report(tmp_path).read_text(encoding="utf-8") == first
    outline = Outline(first)
    assert not [a for tag, a in outline.tags if tag in ("script", "iframe") and "src" in a]
    assert {a["src"].partition(",")[0] for tag, a in outline.tags if tag == "img" and a.get("src")} == {  # type: ignore[union-attr]
        "data:image/png;base64"
    }
    assert [a.get("href") for tag, a in outline.tags if tag == "link"] == ["data:,"]


def test_curves_are_drawn_where_they_are(tmp_path: Path) -> None:
    rows = [
        row(),
        row("d0", "dam", value=0.95, sparsity=0.9, target=0.9, seed=0),
        row("d1", "dam", value=0.97, sparsity=0.9, target=0.9, seed=1),
        row("star", "star", value=0.8, sparsity=0.84, exported=True),
    ]
    figures = figures_of(report_of(tmp_path, rows))["curves"]
    outline = Outline((tmp_path / "report.html").read_text(encoding="utf-8"))
    options = outline.options("chart-curves")
    assert options == [
        "Accuracy against cell sparsity",
        "Accuracy against cell sparsity, close to dense",
        "Drop against cell sparsity",
        "Accuracy against nominal sparsity",
        "Drop against nominal sparsity",
        "Accuracy against block sparsity",
        "Drop against block sparsity",
    ]
    metric, close, drop = figures[:3]
    star, dam, seeds, chosen = metric["data"]
    assert (dam["x"], dam["y"]) == ([90.0], [0.96])
    spread = 12.7062 * math.sqrt(2) * 0.01 / math.sqrt(2)  # Student's t of 2 seeds, sd 0.0141
    assert dam["error_y"]["arrayminus"] == [pytest.approx(math.hypot(0.016, spread), rel=1e-3)]
    assert (seeds["x"], seeds["y"], seeds["legendgroup"]) == ([90.0, 90.0], [0.95, 0.97], dam["legendgroup"])
    assert (star["x"], star["y"]) == ([84.0], [0.8])
    assert (chosen["x"], chosen["y"]) == ([84.0], [0.8])
    heights = [shape["y0"] for shape in metric["layout"]["shapes"]]
    assert heights == [pytest.approx(0.95), pytest.approx(0.966), pytest.approx(0.956)]
    assert [note["text"] for note in metric["layout"]["annotations"]] == [
        "dense 0.966",
        "limit: 1.0 points",
        "exported",
    ]
    assert metric["layout"]["xaxis"]["title"]["text"].startswith("cell sparsity: valid cells removed")
    assert "16 × 16" in figures[5]["layout"]["xaxis"]["title"]["text"]
    assert close["layout"]["yaxis"]["range"][0] == pytest.approx(0.936)
    assert drop["layout"]["yaxis"]["range"][0] > drop["layout"]["yaxis"]["range"][1]
    assert figures[3]["data"][0]["x"] == [pytest.approx(84.84)]


def test_the_front_is_marked_where_there_is_one(tmp_path: Path) -> None:
    rows = [row(), row("a", "dam", value=0.95, sparsity=0.8), row("b", "dam", value=0.9, sparsity=0.9)]
    front = figures_of(report_of(tmp_path, rows))["curves"][0]["data"][0]
    assert (front["x"], front["y"], front["line"]["shape"]) == ([80.0, 90.0], [0.95, 0.9], "vh")


def test_sparsities_that_were_not_measured_have_no_view(tmp_path: Path) -> None:
    rows = [row(), row("a", "dam", value=0.9, sparsity=0.5, block_sparsity=math.nan, nominal_sparsity=math.nan)]
    assert len(figures_of(report_of(tmp_path, rows))["curves"]) == 2


def test_every_line_has_a_look_of_its_own(tmp_path: Path) -> None:
    rows = [row()]
    for method in METHODS:
        for train in ("none", "weights"):
            for diagonal in ("free", "keep", "drop"):
                rows.append(row(f"{method}-{train}-{diagonal}", method, sparsity=0.5, train=train, diagonal=diagonal))
    curves = figures_of(report_of(tmp_path, rows, without=["masks.npz"]))["curves"][0]["data"]
    looks = [
        (trace["marker"]["symbol"], trace["line"]["color"], trace["line"]["dash"], trace["marker"]["color"])
        for trace in curves
        if trace["mode"] == "lines+markers"
    ]
    assert len(looks) == len(set(looks)) == 6 * len(METHODS)
    assert {look[0] for look in looks} <= set(SYMBOLS)
    assert {look[2] for look in looks} <= set(DASHES)


def test_every_method_of_the_command_has_its_place() -> None:
    assert set(NAMES) <= {*METHODS, "dense"}
    assert [kind(name) for name in ("dense", "dam", "random", "taylor", "star", "new")] == [
        "dense",
        "learnt",
        "random",
        "scored",
        "pattern",
        "scored",
    ]


def test_the_table_by_target(tmp_path: Path) -> None:
    rows = [
        row(),
        row("tuned", "dense", value=0.97, train="weights", steps=600, seconds=99.6),
        row("a", "dam", value=0.95, sparsity=0.9, exported=True),
        row("b", "star", value=0.9, sparsity=0.84, target=0.9),
        row("c", "window", value=0.96, sparsity=0.5, target=math.nan),
    ]
    outline = Outline(report_of(tmp_path, rows))
    no_target, ninety = outline.tables("targets")
    assert no_target[1:] == [ninety[1], ninety[2], no_target[3]]
    assert no_target[3][0] == "window"
    assert ninety[1:] == [
        ["dense", "0.966 [0.950, 0.982]", "", "", "", "", "", "", "1.2", "1"],
        ["dense, weights tuned", "0.970 [0.954, 0.986]", "−0.4 [−1.4, 0.6]", "", "", "", "", "600", "100", "1"],
        [
            *("DAM, offset, frozen weights ★ exported", "0.950 [0.934, 0.966]", "1.6 [0.6, 2.6]"),
            *("90.0 %", "90.9 %", "10.0 %", "89.8 %", "600", "82", "1"),
        ],
        ["star", "0.900 [0.884, 0.916]", "6.6 [5.6, 7.6]", "84.0 %", "84.8 %", "4.0 %", "", "", "1.2", "1"],
    ]


def test_masks_are_one_pixel_a_cell(tmp_path: Path) -> None:
    document = report_of(tmp_path, sites=2, heads=3)
    gallery = galleries_of(document)["masks"]
    assert gallery["tokens"] == list(TOKENS)
    labels = Outline(document).options("chart-masks")
    assert labels[0] == "DAM, offset, frozen weights, target 90 %, seed 0 (exported)"
    assert all(label.startswith("DAM") for label in labels[:3])
    assert len(labels) == len(gallery["choices"]) == 3 * len(LOSS)
    stored = np.load(tmp_path / "masks.npz")["dam-offset-gates-0.9-s0"]
    kept = pd.read_csv(tmp_path / "kept.csv").query("point == 'dam-offset-gates-0.9-s0' and site == 1 and head == 2")
    choice = gallery["choices"][0]
    for number, place in enumerate(np.ndindex(2, 3)):
        image = Image.open(io.BytesIO(base64.b64decode(gallery["images"][choice["tiles"][number]].partition(",")[2])))
        assert image.size == (len(TOKENS), len(TOKENS))
        assert np.array_equal(np.asarray(image.convert("RGBA"))[..., 3] > 0, stored[place] == 1)
    assert choice["facts"][5][0] == round(100 * stored[1, 2].mean())
    assert choice["facts"][5][1:] == [round(100 * share) for share in kept["kept"]]
    assert choice["text"].startswith("90.0 % of the cells removed over all the data. Kept on average: diagonal 2 %, ")
    assert f"--tile:{8 * len(TOKENS)}px" in document


def test_patterns_share_their_images(tmp_path: Path) -> None:
    """A pattern is the same on every head: one image is enough."""
    rows = [row(), row("a", "star", value=0.9, sparsity=0.8), row("b", "window", value=0.9, sparsity=0.8)]
    gallery = galleries_of(report_of(tmp_path, rows))["masks"]
    assert len(gallery["images"]) == 1
    assert [set(choice["tiles"]) for choice in gallery["choices"]] == [{0}, {0}]


def test_what_classes_keep(tmp_path: Path) -> None:
    rows = [row(), row("a", "dam", sparsity=0.9, **{f"kept_{name}": n / 20 for n, name in enumerate(CLASSES)})]
    figures = figures_of(report_of(tmp_path, rows, sites=2, heads=3))
    (trace,) = figures["kept"][0]["data"]
    assert trace["y"] == ["DAM, offset, frozen weights"]
    assert trace["x"][:3] == ["diagonal", "[CLS] as key", "[CLS] as query"]
    assert trace["z"] == [[pytest.approx(5 * n) for n in range(len(CLASSES))]]
    assert (trace["zmin"], trace["zmax"]) == (0, 100)
    table = pd.read_csv(tmp_path / "kept.csv")
    (sites,) = figures["kept-sites"][0]["data"]
    shares = table[(table["position_class"] == "cls_key") & (table["site"] == 1)]["kept"]
    assert sites["z"][1][1] == pytest.approx(100 * shares.mean(), rel=1e-3)


def test_training_is_thinned_and_seeds_are_together(tmp_path: Path) -> None:
    write_sweep(tmp_path, sweep_rows(methods=("dam", "star"), targets=(0.9,), seeds=2))
    steps = [
        {"point": f"dam-offset-gates-0.9-s{n}", "step": s, "loss": s, "density": 0.5}
        for n in range(2)
        for s in range(500)
    ]
    pd.DataFrame(steps).to_csv(tmp_path / "training.csv", index=False)
    (figure,) = figures_of(write_report(tmp_path).read_text(encoding="utf-8"))["training"]
    assert len(figure["data"]) == 5
    assert len(figure["data"][0]["x"]) == 80
    assert figure["data"][0]["x"][-1] == 499


@pytest.mark.parametrize(
    ("name", "title"),
    [("kept.csv", "Classes by site"), ("training.csv", "How the masks"), ("masks.npz", "What the masks look like")],
)
def test_a_missing_table_is_said(tmp_path: Path, name: str, title: str) -> None:
    assert title in Outline(report_of(tmp_path / "full")).text
    text = Outline(report_of(tmp_path / "less", without=[name])).text
    assert f"This run left no {name}, so the sections made from them are missing." in text
    assert title not in text


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    text = Outline(report_of(tmp_path, status="running")).text
    assert "This run is not complete (status: running); finish it with --resume." in text


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row()],
        [row(half=math.nan, drop_half=math.nan), row("a", "dam", sparsity=0.5, half=math.nan, drop_half=math.nan)],
        [row("a", "dam", sparsity=0.5, dense=math.nan, value=0.5)],
        [row("a", "dam", sparsity=math.nan, value=math.nan)],
        [
            row(),
            row("a", "dam", sparsity=0.5, value=0.0, dense=0.0),
            row("b", "star", sparsity=0.5, value=0.0, dense=0.0),
        ],
    ],
    ids=["nothing", "dense alone", "no intervals", "no dense", "no figure", "all the same"],
)
def test_little_is_enough_for_a_page(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    document = report_of(tmp_path, rows)
    assert "NaN" not in json.dumps(figures_of(document))
    assert Outline(document).titles("h1") == ["How much attention minilm-trec can do without"]


def test_text_from_data_stays_text(tmp_path: Path) -> None:
    rows = sweep_rows(targets=(0.9,), seeds=1)
    rows[1] |= {"granularity": HOSTILE, "metric_name": HOSTILE, "train": HOSTILE, "point": HOSTILE}
    rows[0] |= {"metric_name": HOSTILE}
    rows[2] |= {"method": HOSTILE}
    document = report_of(
        tmp_path, rows, tokens=[HOSTILE, "'\">", "c"], warnings=[HOSTILE], summary={"reason": HOSTILE, "exported": None}
    )
    outline = Outline(document)
    assert "<script>alert" not in document
    assert outline.text.count(HOSTILE) >= 6
    assert [tag for tag, _ in outline.tags].count("script") == 4
    assert not [attributes for _, attributes in outline.tags if any(name.startswith("on") for name in attributes)]
    charts = json.dumps(figures_of(document))
    assert "&lt;script&gt;alert(1)" in charts
    assert "<script" not in charts


def test_a_hundred_points_stay_within_the_limit(tmp_path: Path) -> None:
    methods = tuple(METHODS)
    rows = sweep_rows(targets=(0.5, 0.7, 0.8, 0.9, 0.95), methods=methods, seeds=6)
    assert len(rows) > 100
    write_sweep(tmp_path, rows, sites=6, heads=12, tokens=[f"word{n}" for n in range(64)])
    path = write_report(tmp_path)
    document = path.read_text(encoding="utf-8")
    assert path.stat().st_size < LIMIT
    shown = len(galleries_of(document)["masks"]["choices"])
    assert 3 < shown < len(methods) * 5
    assert f"Shown are {shown} masks, at most one for each method and target" in Outline(document).text


BROKEN: dict[str, tuple[str, str | None, str]] = {
    "no tradeoff.csv": ("tradeoff.csv", None, "a run folder holds tradeoff.csv"),
    "empty tradeoff.csv": ("tradeoff.csv", "", "a run folder holds tradeoff.csv"),
    "a column is missing": (
        "tradeoff.csv",
        "point,method\n",
        "must have the columns target, cell_sparsity, metric_name",
    ),
    "text in a number": (
        "tradeoff.csv",
        "point,method,target,cell_sparsity,metric_name,value\ndense,dense,,x,accuracy,1\n",
        "column cell_sparsity must hold numbers",
    ),
    "a point twice": (
        "tradeoff.csv",
        "point,method,target,cell_sparsity,metric_name,value\na,dam,,0,accuracy,1\na,dam,,0,accuracy,1\n",
        "must name each point once, it names a several times",
    ),
    "kept.csv of another kind": (
        "kept.csv",
        "point,site\n",
        "kept.csv must have the columns head, position_class, kept",
    ),
    "masks are no arrays": ("masks.npz", "PK", "must hold arrays of masks, it does not"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_run_folder_is_one_line(tmp_path: Path, case: str) -> None:
    name, content, words = BROKEN[case]
    write_sweep(tmp_path, [row()])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(RunFolderError) as raised:
        write_report(tmp_path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros((1, 1, 2, 2))}, "must hold the array tokens (n,)"),
        ({"a": np.zeros((1, 1, 2, 3)), "tokens": np.array(["x", "y"])}, "of 2 tokens, a is (1, 1, 2, 3)"),
        ({"a": np.zeros((2, 2)), "tokens": np.array(["x", "y"])}, "of 2 tokens, a is (2, 2)"),
    ],
)
def test_masks_of_the_wrong_shape(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    write_sweep(tmp_path, [row()])
    np.savez(tmp_path / "masks.npz", allow_pickle=False, **arrays)
    with pytest.raises(RunFolderError, match=re.escape(words)):
        write_report(tmp_path)
