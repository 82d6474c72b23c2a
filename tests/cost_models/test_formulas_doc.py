"""docs/formulas.md: every section gives a source and an example, and every example holds."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "formulas.md"
INTRODUCTION, *SECTIONS = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def title(section: str) -> str:
    return section.splitlines()[0]


@pytest.mark.parametrize("section", SECTIONS, ids=title)
def test_section_has_a_source_and_a_worked_number(section: str) -> None:
    assert re.search(r"^Source: ", section, re.MULTILINE)
    assert "assert " in "".join(BLOCK.findall(section))


def test_examples_hold() -> None:
    names: dict[str, Any] = {}
    for section in (INTRODUCTION, *SECTIONS):
        for block in BLOCK.findall(section):
            exec(compile(block, title(section), "exec"), names)
