"""How many micro-batches a stage has memory for."""

from hypothesis import given
from hypothesis import strategies as st

from planner.search.submeshes import most_below

LINES = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), min_size=1, max_size=4)
"""(start, slope) of straight lines: the fullest of several moments, each of which grows with what is in flight."""


@given(lines=LINES, limit=st.floats(0, 40), most=st.integers(1, 40))
def test_the_most_that_fits_is_what_counting_finds(
    lines: list[tuple[float, float]], limit: float, most: int
) -> None:
    def total(in_flight: int) -> float:
        return max(start + slope * in_flight for start, slope in lines)

    counted = max((n for n in range(1, most + 1) if total(n) <= limit), default=0)
    assert most_below(limit, total, most) == counted
