"""Second runs in the body of another scan: which rows they read."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from planner.tracing.applying.rows_anew import RowsAnew  # noqa: E402


def made(title: str, *operands: Any) -> Any:
    return SimpleNamespace(equation=title, title=title, operands=operands, place=0)


@pytest.mark.parametrize(("reads", "row"), [("second/slice.1", "as planned"), ("", "the last one")])
def test_of_a_value_that_is_collected_twice_the_row_is_read_that_the_plan_says(reads: str, row: str) -> None:
    """Also through a view, which is made for each reader; what no plan names is the last that was collected."""
    value, view, product = "value", "view", "product"
    names = {"value": "first/exp.2"}
    rows = object.__new__(RowsAnew)
    rows.sharding, rows.reads = {}, {"product": {"first/exp.2": reads}}
    rows.runner = SimpleNamespace(
        outside={},
        sites={"product": SimpleNamespace(operation=SimpleNamespace(name="product"))},
        copies=SimpleNamespace(name_of=lambda array: names.get(array, "")),
        second=SimpleNamespace(made={id(view): made("view", value), id(product): made("product", view)}),
        placed=lambda equation, title, site, operands: [(title, *operands)],
    )
    known: dict[int, Any] = {id(value): "the last one"}
    found = rows._anew(product, known, {"second/slice.1": "as planned"})
    assert found == ("product", ("view", row))
    assert id(product) in known
    assert id(view) not in known
