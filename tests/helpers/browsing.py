"""A report in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def visiting(browser: Browser, report: Path, width: int = 1200, **options: Any) -> Iterator[Page]:
    """Open a report, its charts drawn; on leaving, nothing may have been logged, thrown or asked of any network."""
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(report.as_uri())
    wait(page, "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    yield page
    context.close()
    requests = [line for line in complaints if not line.startswith("data:")]
    assert requests == [report.as_uri()]


def wait(page: Page, condition: str) -> None:
    """Until a JavaScript condition holds; the page's policy forbids what Playwright's own waiting does."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")
