"""Second runs in the body of another scan: which rows they read."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from planner.tracing.applying.rows_anew import RowsAnew  # noqa: E402


def made(title: str, *operands: Any) -> Any:
    return SimpleNamespace(equation=title, title=title, operands=operands, place=0)


def rows_of(arrays: dict[str, Any], again: tuple[str, ...] = (), **names: Any) -> RowsAnew:
    """Of ``arrays`` and what they were made by, in two scans, ``first`` and another; each operator has a site."""
    by = {id(array): step for array, step in arrays.items()}
    rows = object.__new__(RowsAnew)
    rows.sharding, rows.reads = dict.fromkeys(again), {"first/product": names}
    rows.runner = SimpleNamespace(
        outside={},
        sites={
            step.title: SimpleNamespace(
                operation=SimpleNamespace(name=step.title), _replace=lambda sharding: sharding
            )
            for step in arrays.values()
            if not step.title.endswith("view")
        },
        copies=SimpleNamespace(name_of=lambda array: {"value": "first/exp.2"}.get(array, "")),
        second=SimpleNamespace(made=by, maker=lambda array: by[id(array)].title),
        placed=lambda equation, title, site, operands: [(title, *operands)],
    )
    return rows


@pytest.mark.parametrize(("reads", "row"), [("second/slice.1", "as planned"), ("", "the last one")])
def test_of_a_value_that_is_collected_twice_the_row_is_read_that_the_plan_says(reads: str, row: str) -> None:
    """Also through a view, which is made for each reader; what no plan names is the last that was collected."""
    value, view, product = "value", "view", "product"
    rows = rows_of(
        {view: made("first/view", value), product: made("first/product", view)}, **{"first/exp.2": reads}
    )
    known: dict[int, Any] = {id(value): "the last one"}
    found = rows._anew(product, "first", known, {"second/slice.1": "as planned"})
    assert found == ("first/product", ("first/view", row))
    assert id(product) in known
    assert id(view) not in known


@pytest.mark.parametrize(("again", "read"), [((), "memory"), (("encoder",), ("encoder", "x"))])
def test_what_lies_outside_of_both_is_there(again: tuple[str, ...], read: Any) -> None:
    """An encoder that a decoder step reads: it ran in the second scan's body, and again summed what it had summed.

    Only what has a second run of its own is made anew.
    """
    memory, product = "memory", "product"
    rows = rows_of({memory: made("encoder", "x"), product: made("first/product", memory)}, again)
    assert rows._anew(product, "first", {}, {}) == ("first/product", read)
