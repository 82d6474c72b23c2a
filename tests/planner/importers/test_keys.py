"""Keys of a configuration, and who never asked for them."""

from typing import Any

import pytest

from planner.errors import InputError
from planner.importers.keys import Keys

DATA = {
    "stage": 3,
    "text": "8",
    "float": 8.0,
    "half": 0.5,
    "on": "Yes",
    "off": False,
    "table": {"a": 1, "b": {"c": "AUTO", "d": "auto"}},
    "nothing": None,
    "list": [1],
}


def keys() -> Keys:
    return Keys(DATA, "file.yaml")


def test_tables_are_joined_by_dots() -> None:
    k = keys()
    assert k.get("table.a") == 1
    assert k.has("table.b")
    assert not k.has("tab")


def test_null_and_auto_are_absent() -> None:
    k = keys()
    assert (k.get("nothing"), k.get("table.b.d"), k.get("missing")) == (None, None, None)
    assert k.get("table.b.c") == "AUTO"


@pytest.mark.parametrize(("key", "value"), [("stage", 3), ("text", 8), ("float", 8), ("missing", None)])
def test_numbers(key: str, value: int | None) -> None:
    assert keys().integer(key) == value


@pytest.mark.parametrize(
    ("method", "key", "expected"),
    [
        ("integer", "half", "a whole number of at least 1, found 0.5"),
        ("integer", "on", "a whole number"),
        ("integer", "off", "a whole number"),
        ("number", "list", "a number"),
        ("flag", "text", "true or false, found '8'"),
    ],
)
def test_refusals_name_file_and_key(method: str, key: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"file.yaml: {key} must be {expected}"):
        getattr(keys(), method)(key)


def test_words_are_looked_up_in_any_case() -> None:
    assert keys().word("on", {"yes": 1, "no": 0}, 7) == 1
    assert keys().word("missing", {"yes": 1}, 7) == 7
    with pytest.raises(InputError, match="text must be one of yes, no, found '8'"):
        keys().word("text", {"yes": 1, "no": 0}, 7)


def test_what_nobody_asked_for_is_unknown() -> None:
    k = keys()
    for key in ("stage", "text", "float", "half"):
        k.get(key)
    k.ignore("on|off", r"table\.b\..*")
    assert k.unknown() == ("table.a", "nothing", "list")


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("false", False), (1, True), (None, False), ("", False)]
)
def test_flags(value: Any, expected: bool) -> None:
    assert Keys({"key": value}, "file").flag("key") is expected


@pytest.mark.parametrize(("key", "value"), [("stage", 3.0), ("text", 8.0), ("half", 0.5), ("missing", None)])
def test_positive_numbers(key: str, value: float | None) -> None:
    """Arguments of a script are text."""
    assert keys().number(key) == value


@pytest.mark.parametrize(("key", "value"), [("half", 0.5), ("missing", 0.1)])
def test_shares(key: str, value: float) -> None:
    assert keys().share(key, 0.1) == value


@pytest.mark.parametrize("key", ["on", "off", "list"])
def test_broken_numbers_are_refused(key: str) -> None:
    for read in (lambda k: k.number(key), lambda k: k.share(key, 0.1)):
        with pytest.raises(InputError, match=f"file.yaml: {key} must be a number, found"):
            read(keys())
    with pytest.raises(InputError, match="text must be from 0 to 1, found '8'"):
        keys().share("text", 0.1)
