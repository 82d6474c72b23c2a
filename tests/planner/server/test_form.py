"""The form in a real browser: it asks by itself, follows its knobs, and says in words what is wrong."""

import pytest
from browser import Page, needs_browser

for package in ("starlette", "uvicorn", "vl_convert"):
    pytest.importorskip(package)

DRAWN = "document.documentElement.dataset.drawn === 'yes'"


def turn(page: Page, name: str, value: str | int) -> None:
    """Set a field of the form as a person would."""
    field = f"document.getElementById({name!r}) || document.getElementById('ask').elements[{name!r}]"
    page.evaluate(
        f"(() => {{ const field = {field}; field.value = {str(value)!r};"
        "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def settled(page: Page) -> None:
    page.wait_for("document.getElementById('state').textContent.startsWith('Answered')", 60)


@pytest.fixture
def opened(tab: Page, address: str) -> Page:
    tab.open(f"{address}/", offline=False)
    turn(tab, "model", "llama-3.2-1b")
    tab.wait_for("document.querySelector('h1').textContent.startsWith('llama-3.2-1b')", 60)
    settled(tab)
    return tab


@needs_browser
def test_it_answers_by_itself_and_draws(opened: Page, address: str) -> None:
    assert opened.complaints(address) == []
    assert "It fits" in opened.text("#answer")
    assert opened.count("#time svg [role=graphics-symbol]") > 0
    assert opened.count("#memory-by-rank svg [role=graphics-symbol]") > 0


@needs_browser
def test_it_follows_the_sliders(opened: Page, address: str) -> None:
    rate = "document.querySelector('.cards div:nth-child(2) dd').firstChild.textContent"
    before = opened.evaluate(rate)
    turn(opened, "sizes", 2)
    opened.wait_for("document.querySelector('h1').textContent.includes('dgx-h100:3')", 60)
    settled(opened)
    assert opened.evaluate(rate) != before
    turn(opened, "compute", 6)
    opened.wait_for("document.getElementById('state').textContent.startsWith('Searching')")
    settled(opened)
    assert "2x" in opened.text("label:has([name=compute]) .value")
    assert opened.text("#state").endswith("with what came close.")  # a new question, answered in two steps
    assert opened.count("#contenders") == 1
    assert opened.complaints(address) == []


@needs_browser
def test_a_pipeline_is_drawn_where_one_is_asked_for(opened: Page, address: str) -> None:
    turn(opened, "pins.pipeline", 4)
    opened.wait_for("document.querySelectorAll('#gantt rect.F').length > 0", 60)
    opened.point(*opened.middle_of("#gantt rect.lane"))
    assert "rank 0" in opened.text("#tip")
    turn(opened, "pins.pipeline", "")
    opened.wait_for("document.querySelector('#gantt') === null", 60)
    assert opened.complaints(address) == []


@needs_browser
def test_what_does_not_work_is_said_in_a_sentence(opened: Page) -> None:
    turn(opened, "model", "llama-3.1-405b")
    opened.wait_for("document.querySelector('#state.bad') !== null", 60)
    assert opened.text("#state").strip()
    turn(opened, "model", "llama-3.2-1b")
    settled(opened)
    assert opened.count("#state.bad") == 0


@needs_browser
@pytest.mark.parametrize("width", [1280, 420])
def test_it_has_room_and_labels(tab: Page, address: str, width: int) -> None:
    tab.open(f"{address}/", dark=True, width=width, offline=False)
    settled(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    fields = "[...document.querySelectorAll('#ask select, #ask input:not([type=hidden])')]"
    assert tab.evaluate(f"{fields}.length") > 15
    assert tab.evaluate(f"{fields}.every(field => field.labels.length === 1)")
