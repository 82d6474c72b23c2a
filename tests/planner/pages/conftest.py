"""Pages that are given as text, in a browser that the tests of a module share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser import Page, Show
from browser import tab as tab


@pytest.fixture
def show(tab: Page, tmp_path: Path) -> Show:
    def open_page(text: str, **how: object) -> Page:
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        tab.open(file.as_uri(), **how)  # type: ignore[arg-type]
        return tab

    return open_page
