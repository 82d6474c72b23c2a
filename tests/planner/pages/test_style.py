"""Colours that everybody can tell from their background, in both schemes (WCAG 2.2, 1.4.3 and 1.4.11)."""

import re

import pytest

from planner.pages.page import template

TEXT, MARK = 4.5, 3.0
"""Least contrast of words, and of marks that carry meaning."""

SCHEMES = dict(
    zip(("light", "dark"), re.findall(r":root \{(.*?)\}", template("page.css"), re.DOTALL), strict=False)
)


def colours(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#\w+);", SCHEMES[scheme]))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#fff", "#000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_name_the_same_colours(scheme: str) -> None:
    assert colours(scheme).keys() == colours("light").keys()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "good", "limit", "accent"])
def test_words_can_be_read(scheme: str, name: str) -> None:
    known = colours(scheme)
    for background in ("back", "card"):
        assert contrast(known[name], known[background]) >= TEXT


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*(f"c{n}" for n in range(10)), "limit", "F", "B", "I", "W", "after"])
def test_marks_stand_out(scheme: str, name: str) -> None:
    known = colours(scheme)
    assert contrast(known[name], known["back"]) >= MARK


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["F", "B", "I", "W"])
def test_labels_on_bars_can_be_read(scheme: str, name: str) -> None:
    known = colours(scheme)
    assert contrast(known["label"], known[name]) >= TEXT
