"""Intervals of step time."""

import pytest

from cost_models.intervals import Spread, interval, spread


def test_ends_are_as_far_as_the_spread_says_and_the_later_one_by_what_is_unexplained() -> None:
    assert interval(12.0, Spread(faster=0.5, slower=0.25)) == pytest.approx((8.0, 15.0))
    assert interval(12.0, Spread(faster=0.5, slower=0.25), unexplained=2.0) == pytest.approx((8.0, 17.0))


def test_models_with_experts_are_no_easier_to_predict() -> None:
    assert spread("experts").faster >= spread("dense").faster
    assert spread("experts").slower >= spread("dense").slower
