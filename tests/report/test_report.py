"""The report as a file: its parts, escaping, size, run folders with parts missing, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attnprobe.errors import RunFolderError
from attnprobe.report import finding, write_report
from attnprobe.report.maps import encode_maps
from attnprobe.report.page import LIMIT
from tests.helpers.outline import Outline, figures_of
from tests.helpers.run_folders import UNITS, write_run_folder

HOSTILE = "<script>alert(1)</script>"


def report_of(folder: Path, **options: Any) -> str:
    return write_report(write_run_folder(folder, **options)).read_text(encoding="utf-8")


def test_a_full_report(tmp_path: Path) -> None:
    document = report_of(tmp_path, class_heads=True)
    outline = Outline(document)
    assert set(figures_of(document)) == {
        "classes",
        "heads",
        "sites",
        "class-sites",
        "offsets",
        "entropy",
        "divergence",
    }
    sentence = finding(pd.read_csv(tmp_path / "importance.csv"))
    assert sentence.replace("-0.00", "−0.00") in outline.text
    assert sentence.startswith(
        "The diagonal matters least: removing it from every head changes the loss by -0.0040 nats"
    )
    for words in (
        "The model's accuracy over 500 examples is 0.966; without the diagonal it is 0.966.",
        "The other text never occurs in these inputs (n/a).",
        "Against as many random cells of the same rows, more depends on the previous token, the neighbourhood,",
        "0.966 → 0.949",
        "attnprobe importance minilm-trec --eval-file TREC_10.csv --methods ablation",
        "9f" * 32,
    ):
        assert words in outline.text
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len([tag for tag, _ in outline.tags if tag == "h1"]) == 1
    assert all(attributes.get("alt") is not None for tag, attributes in outline.tags if tag == "img")
    tables = sum(1 for tag, _ in outline.tags if tag == "table")
    assert tables == sum(1 for tag, _ in outline.tags if tag == "caption") > 6


def test_the_report_is_one_file_and_the_same_again(tmp_path: Path) -> None:
    first = report_of(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert write_report(tmp_path).read_text(encoding="utf-8") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not any("src" in attributes for tag, attributes in Outline(first).tags if tag in ("script", "iframe"))
    assert not [a for tag, a in Outline(first).tags if tag == "link" and a.get("href") != "data:,"]


def test_selectors_offer_what_was_measured(tmp_path: Path) -> None:
    figures = figures_of(report_of(tmp_path, methods=["mass"]))
    assert [len(figures[key]) for key in ("classes", "offsets")] == [2, 2]
    everything = figures_of(report_of(tmp_path / "all", methods=tuple(UNITS)))
    assert len(everything["classes"]) == sum(len(units) for units in UNITS.values())


def test_figures_are_drawn_where_they_are(tmp_path: Path) -> None:
    figure = figures_of(report_of(tmp_path))["classes"][0]
    measured, control = figure["data"]
    places = dict(zip(figure["layout"]["yaxis"]["ticktext"], figure["layout"]["yaxis"]["tickvals"], strict=True))
    at = measured["y"].index(places["diagonal"])
    assert measured["x"][at] == pytest.approx(-np.log10(1 + 0.004 / 0.001), rel=1e-3)
    assert measured["text"][at].startswith("diagonal: −0.0040 [")
    assert control["x"][at] == pytest.approx(np.log10(1 + 0.05 / 0.001), rel=1e-3)
    labels = {note["y"]: note["text"] for note in figure["layout"]["annotations"]}
    assert labels[places["other text"]] == "n/a"
    assert labels[places["[CLS] as query"]] == "+2.0"
    assert places["other text"] not in measured["y"]


@pytest.mark.parametrize("table", ["offsets.csv", "agreement.csv", "heads.csv", "maps.npz"])
def test_a_missing_table_is_said(tmp_path: Path, table: str) -> None:
    text = Outline(report_of(tmp_path, without=[table])).text
    assert f"This run left no {table}, so the sections made from them are missing." in text


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    write_run_folder(tmp_path)
    info = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(info | {"status": "running"}))
    assert "not complete (status: running)" in Outline(write_report(tmp_path).read_text(encoding="utf-8")).text


def test_text_from_data_stays_text(tmp_path: Path) -> None:
    write_run_folder(
        tmp_path,
        checkpoint=HOSTILE,
        warnings=[HOSTILE, "--><img src=x onerror=alert(1)>"],
        arguments={"text_column": [HOSTILE], "'\"": "'\"><svg onload=alert(1)>"},
    )
    for name in ("importance.csv", "offsets.csv", "agreement.csv"):
        table = pd.read_csv(tmp_path / name)
        for column in (
            "method",
            "position_class",
            "metric_name",
            "method_a",
            "level" if name == "agreement.csv" else "",
        ):
            if column in table:
                table.loc[table.index[:1], column] = HOSTILE
        table.to_csv(tmp_path / name, index=False)
    document = write_report(tmp_path).read_text(encoding="utf-8")
    outline = Outline(document)
    assert "<script>alert" not in document
    assert outline.text.count(HOSTILE) >= 6
    assert [tag for tag, _ in outline.tags].count("script") == 3
    assert not [attributes for _, attributes in outline.tags if any(name.startswith("on") for name in attributes)]
    charts = json.dumps(figures_of(document))
    assert "&lt;script&gt;alert(1)" in charts
    assert "<script" not in charts


def test_the_policy_lets_only_these_scripts_run(tmp_path: Path) -> None:
    policy = next(a["content"] for tag, a in Outline(report_of(tmp_path)).tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "http" not in policy


@pytest.mark.parametrize(("sites", "heads"), [(6, 12), (24, 16), (40, 32)])
def test_size(tmp_path: Path, sites: int, heads: int) -> None:
    write_run_folder(tmp_path, sites=sites, heads=heads, length=100, class_heads=sites < 40)
    assert write_report(tmp_path).stat().st_size < LIMIT


def test_maps_are_cut_and_thinned_with_a_note() -> None:
    maps = np.random.default_rng(0).random((25, 17, 60, 60), dtype=np.float32)
    counts = np.full((60, 60), 3)
    counts[50:] = counts[:, 50:] = 0
    images = encode_maps(maps, counts)
    assert (len(images.sites), len(images.heads), images.sites[-1], images.heads[-1]) == (24, 16, 24, 16)
    assert sum(len(uri) for row in images.uris for uri in row) <= 620_000
    assert images.positions < 50
    assert images.notes == [
        f"Maps are cut to the first {images.positions} of 50 positions.",
        "Shown are 24 of 25 sites and 16 of 17 heads, evenly spread.",
    ]
    assert encode_maps(maps[:2, :3], counts).notes == []


def test_a_run_without_overwritten_report_survives_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = report_of(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunFolderError, match=r"^can't write .*report.html: No space left on device$"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == first
    assert not list(tmp_path.glob(".*.tmp"))


BROKEN: dict[str, tuple[str, str | None, str]] = {
    "no run.json": ("run.json", None, "has no run.json"),
    "run.json is no JSON": ("run.json", "{", "is not a run's record"),
    "run.json is a list": ("run.json", "[]", "is not a run's record"),
    "a later schema": (
        "run.json",
        '{"schema_version": 99, "command": "importance", "status": "complete", "arguments": {}}',
        "has schema 99",
    ),
    "another command": (
        "run.json",
        '{"schema_version": 1, "command": "bench", "status": "complete", "arguments": {}}',
        "a report needs a run of importance",
    ),
    "no importance.csv": ("importance.csv", None, "a run folder holds importance.csv"),
    "empty importance.csv": ("importance.csv", "", "a run folder holds importance.csv"),
    "a column is missing": ("importance.csv", "method,level\n", "must have the columns position_class, site"),
    "text in a number": (
        "offsets.csv",
        "method,offset,value,unit\nmass,x,1,share\n",
        "column offset must hold numbers",
    ),
    "ragged": (
        "heads.csv",
        "site,head,special,entropy_median\n1,2,included,3,4,5,6\n1\n1,2,3,4,5,6,7,8,9",
        "heads.csv",
    ),
    "maps are no arrays": ("maps.npz", "PK", "must hold the arrays maps and counts"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_run_folder_is_one_line(tmp_path: Path, case: str) -> None:
    name, content, words = BROKEN[case]
    write_run_folder(tmp_path, sites=1, heads=2, length=5)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(RunFolderError) as raised:
        write_report(tmp_path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report.html").exists()


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no run\.json.*: check the path"):
        write_report(tmp_path / "nothing")


def test_maps_of_the_wrong_shape(tmp_path: Path) -> None:
    write_run_folder(tmp_path, sites=1, heads=2, length=5)
    np.savez(tmp_path / "maps.npz", maps=np.zeros((2, 5, 5)), counts=np.zeros((5, 5)))
    with pytest.raises(RunFolderError, match=r"must hold maps \(sites, heads, n, n\) and counts \(n, n\), it holds"):
        write_report(tmp_path)
