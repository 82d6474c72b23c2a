"""Predicted times of collectives against measured tables; what is asserted nothing was fitted on."""

from collections.abc import Callable
from typing import Any

import collectives
import pytest


@pytest.fixture(scope="module")
def tables() -> list[Any]:
    return collectives.judge()


def test_every_table_has_a_setting(tables: list[Any]) -> None:
    assert [table.row["id"] for table in tables] == list(collectives.SETTINGS)


def test_no_source_is_in_both_splits(tables: list[Any]) -> None:
    splits = {split: {t.source for t in tables if t.split == split} for split in ("fit", "report")}
    assert splits["fit"]
    assert splits["report"]
    assert not splits["fit"] & splits["report"]


@pytest.mark.parametrize(("least", "most"), [(0, float("inf")), collectives.MIDDLE])
def test_tables_that_nothing_was_fitted_on_are_within_15_percent_in_the_median(
    tables: list[Any], least: float, most: float, record_property: Callable[[str, float], None]
) -> None:
    errors = collectives.errors_of([t for t in tables if t.split == "report"], least, most)
    record_property("median_abs_error", collectives.median_abs(errors))
    assert len(errors) > 20
    assert collectives.median_abs(errors) < 0.15


def test_rings_over_nodes_follow_the_published_bandwidths() -> None:
    """A fit of two constants to 18 figures, within which bus bandwidth falls by a factor of 16."""
    errors = [error for by_nodes in collectives.over_nodes().values() for error in by_nodes.values()]
    assert len(errors) == 18
    assert collectives.median_abs(errors) < 0.25
    assert max(map(abs, errors)) < 0.8


@pytest.mark.parametrize("table", collectives.SETTINGS)
def test_large_messages_match_measured_tables(tables: list[Any], table: str) -> None:
    found = [t for t in tables if t.row["id"] == table]
    large = collectives.errors_of(found, least=1 << 29)
    assert large
    assert all(abs(error) < 0.15 for error in large), large
