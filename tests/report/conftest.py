"""A browser, for the tests that look at a report in one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.helpers.browsing import ARGUMENTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: test)")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield launched
        launched.close()
