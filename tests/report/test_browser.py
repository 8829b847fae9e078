"""The report in headless Chromium: quiet, offline, drawn, themed, narrow, printed, by keyboard, safe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnprobe.report import write_report
from tests.helpers.browsing import visiting, wait
from tests.helpers.run_folders import write_run_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<script>document.title = 'hacked'</script>"
CHARTS = ("classes", "heads", "sites", "class-sites", "offsets", "entropy", "divergence")
Open = Callable[..., AbstractContextManager["Page"]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run_folder(
        tmp_path_factory.mktemp("run"),
        class_heads=True,
        checkpoint=HOSTILE,
        warnings=[HOSTILE],
        arguments={"x": HOSTILE},
    )
    return write_report(folder)


@pytest.fixture
def open_report(browser: Browser, report: Path) -> Open:
    """Opens the report; on leaving, nothing may have been logged, thrown or asked of any network."""
    return partial(visiting, browser, report)


def color(page: Page, selector: str, name: str) -> str:
    return str(page.eval_on_selector(selector, f"(node) => getComputedStyle(node)['{name}']"))


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def test_every_chart_is_drawn(open_report: Open) -> None:
    with open_report() as page:
        for chart in CHARTS:
            assert page.locator(f"#chart-{chart} .main-svg").count() >= 1, chart
            assert page.locator(f"#chart-{chart} .plot").get_attribute("aria-label")
        assert page.locator("#chart-classes .scatterlayer .point").count() >= 20
        assert page.locator("#chart-heads .heatmaplayer image").count() == 1
        assert overflow(page) <= 0
        assert page.locator(".grid img").evaluate_all("(images) => images.every((image) => image.naturalWidth > 5)")


def test_a_selector_changes_chart_table_and_description(open_report: Open) -> None:
    with open_report() as page:
        chart = page.locator("#chart-classes")
        before = chart.locator(".plot").get_attribute("aria-label")
        chart.locator("select").select_option(label="Attention mass: share")
        assert chart.locator(".plot").get_attribute("aria-label") != before
        assert chart.locator("table:visible").count() == 1
        assert "Share of all attention" in chart.locator("table:visible caption").inner_text()
        assert chart.locator(".key:visible").inner_text().endswith("uniform attention")


def test_dark_mode_changes_page_and_charts(open_report: Open) -> None:
    dot = "#chart-classes .point"
    with open_report(color_scheme="light") as page:
        light = color(page, "body", "backgroundColor"), color(page, dot, "fill")
        page.locator("#theme").click()
        dark = color(page, "body", "backgroundColor"), color(page, dot, "fill")
        assert light[0] != dark[0]
        assert light[1] != dark[1]
        assert page.locator("#theme").get_attribute("aria-pressed") == "true"
        page.locator("#theme").click()
        assert (color(page, "body", "backgroundColor"), color(page, dot, "fill")) == light
    with open_report(color_scheme="dark") as page:
        assert (color(page, "body", "backgroundColor"), color(page, dot, "fill")) == dark
        page.emulate_media(color_scheme="light")
        wait(page, "getComputedStyle(document.querySelector('#theme')).color === 'rgb(27, 30, 35)'")
        assert (color(page, "body", "backgroundColor"), color(page, dot, "fill")) == light


def test_narrow_without_sideways_scrolling(open_report: Open) -> None:
    with open_report(width=400) as page:
        assert overflow(page) <= 0
        for index in range(page.locator("summary").count()):
            if page.locator("summary").nth(index).is_visible():
                page.locator("summary").nth(index).click()
        assert overflow(page) <= 0
        page.locator(".grid button").first.click()
        assert overflow(page) <= 0


def test_maps_by_keyboard(open_report: Open) -> None:
    with open_report() as page:
        first = page.locator(".grid button").first
        first.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Enlarge site 0, head 1"
        page.keyboard.press("Enter")
        dialog = page.locator("#enlarged")
        assert dialog.is_visible()
        assert dialog.locator("h2").inner_text() == "Site 0, head 1"
        page.keyboard.press("ArrowUp")
        assert dialog.locator("h2").inner_text() == "Site 0, head 1"
        page.keyboard.press("ArrowDown")
        assert dialog.locator("h2").inner_text() == "Site 1, head 1"
        assert "Nearest head of the site below" in dialog.inner_text()
        assert "Ablation: change of the loss" in dialog.inner_text()
        page.keyboard.press("Escape")
        assert not dialog.is_visible()
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Enlarge site 1, head 1"


def test_everything_is_reached_by_tab_with_visible_focus(open_report: Open) -> None:
    with open_report() as page:
        seen: list[str] = []
        for _ in range(80):
            page.keyboard.press("Tab")
            where = page.evaluate(
                "(() => { const node = document.activeElement; const style = getComputedStyle(node);"
                "return [node.id || node.className || node.tagName, style.outlineStyle !== 'none'] })()"
            )
            seen.append(where[0])
            assert where[0] == "BODY" or where[1], where
        assert seen[:2] == ["skip", "theme"]
        assert seen.count("SELECT") >= len(CHARTS)
        assert seen.count("SUMMARY") >= 5


def test_print_is_light_without_controls_and_fits(open_report: Open) -> None:
    with open_report(width=1400, color_scheme="dark") as page:
        dark = color(page, "#chart-classes .point", "fill")
        page.emulate_media(media="print")
        wait(page, f"getComputedStyle(document.querySelector('#chart-classes .point')).fill !== '{dark}'")
        assert color(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("button#theme:visible, select:visible, nav:visible").count() == 0
        widths = page.locator(".plot .main-svg").evaluate_all("(all) => all.map((svg) => svg.clientWidth)")
        assert max(widths) <= 680
        page.emulate_media(media="screen")
        wait(page, f"getComputedStyle(document.querySelector('#chart-classes .point')).fill === '{dark}'")
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_scripts_in_data_stay_text(open_report: Open) -> None:
    with open_report() as page:
        assert page.title() == f"Which attention {HOSTILE} needs"
        assert HOSTILE in page.locator(".alerts").inner_text()
        assert HOSTILE in page.locator("#run dl").nth(4).inner_text()
        assert page.locator("body script").count() == 3
