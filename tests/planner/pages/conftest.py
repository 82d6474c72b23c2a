"""A browser for the tests of pages, shared by a module; they are skipped where none is installed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser import Page, Show, browser_page, find_browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = find_browser()
    assert browser
    with browser_page(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def show(tab: Page, tmp_path: Path) -> Show:
    def open_page(text: str, **how: object) -> Page:
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        tab.open(file.as_uri(), **how)  # type: ignore[arg-type]
        return tab

    return open_page
