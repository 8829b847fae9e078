"""The report of a sweep in headless Chromium: drawn, quiet, themed, narrow; masks crisp, the key a set of switches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnprobe.report import merge_runs, write_report
from tests.helpers.browsing import visiting
from tests.helpers.sweep_folders import TOKENS, write_sweep

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
WIDTHS = "(images) => images.map((image) => image.getBoundingClientRect().width)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("run") / "sweep")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return write_report(folder)


def test_charts_are_drawn_and_the_key_hides_lines(browser: Browser, report: Path) -> None:
    with visiting(browser, report) as page:
        for chart in ("curves", "comparisons", "kept", "kept-sites", "training"):
            assert page.locator(f"#chart-{chart} .main-svg").count() >= 1, chart
        curves = page.locator("#chart-curves")
        before = curves.locator(".scatterlayer .trace").count()
        name = curves.locator("[data-series]:visible").first
        name.click()
        assert name.get_attribute("aria-pressed") == "false"
        assert curves.locator(".scatterlayer .trace").count() < before
        curves.locator("select").select_option(index=2)
        assert curves.locator("[data-series]:visible").first.get_attribute("aria-pressed") == "false"
        curves.locator("[data-series]:visible").first.click()
        assert curves.locator(".scatterlayer .trace").count() == before
        assert page.evaluate(OVERFLOW) <= 0


def test_masks_are_crisp_and_have_their_tokens(browser: Browser, report: Path) -> None:
    with visiting(browser, report) as page:
        images = page.locator("#chart-masks .grid img")
        assert all(round(width, 3) % len(TOKENS) == 0 for width in images.evaluate_all(WIDTHS))
        assert page.eval_on_selector(".grid img", "(node) => getComputedStyle(node).imageRendering") == "pixelated"
        first = images.first.get_attribute("src")
        page.locator("#chart-masks select").select_option(index=3)
        assert images.first.get_attribute("src") != first
        page.locator("#chart-masks .grid button").nth(1).click()
        dialog = page.locator("#enlarged")
        assert dialog.locator("h2").inner_text() == "Site 0, head 1"
        assert dialog.locator(".down span").all_inner_texts() == list(TOKENS)
        (width,) = dialog.locator("img").evaluate_all(WIDTHS)
        assert round(width, 3) % len(TOKENS) == 0
        assert "Kept of this example" in dialog.locator("dl").inner_text()
        page.keyboard.press("Escape")
        assert not dialog.is_visible()


def test_narrow_and_dark(browser: Browser, report: Path) -> None:
    with visiting(browser, report, width=400) as page:
        assert page.evaluate(OVERFLOW) <= 0
        line = "(node) => getComputedStyle(node).stroke"
        light = page.eval_on_selector("#chart-curves .js-line", line)
        page.locator("#theme").click()
        assert page.eval_on_selector("#chart-curves .js-line", line) != light
        page.locator("#chart-masks .grid button").first.click()
        assert page.evaluate(OVERFLOW) <= 0


def test_merged(browser: Browser, folder: Path, tmp_path: Path) -> None:
    (path,) = merge_runs([folder], tmp_path / "merged", formats=["html"])
    with visiting(browser, path) as page:
        assert page.locator("#chart-curves-0 .main-svg").count() >= 1
        assert page.evaluate(OVERFLOW) <= 0
