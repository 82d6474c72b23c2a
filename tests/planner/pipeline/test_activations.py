"""What is held until W: the published layer, and the memory of zero-bubble schedules that follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.activations import held
from planner.pipeline.dependencies import arranged, moments_in_flight, peak_bytes
from planner.pipeline.generators import generate, refusal
from planner.pipeline.simulator import StageTimes, simulate


@pytest.mark.parametrize(("name", "weights_late"), [("zb-h1", 1), ("zb-h2", 2)])
def test_zero_bubble_memory_of_the_published_layer(name: str, weights_late: int) -> None:
    """arXiv:2401.10241, table 2: late stages hold M_W where early ones hold M_B, here 32/34 of it."""
    p = 4
    timeline = simulate(generate(name, p, 1, 16), StageTimes.uniform(p, 1.0, 1.0, 1.0))
    peaks = timeline.memory_over_time(held([34.0] * p, [32.0] * p))
    full = [p - s if name == "zb-h1" else 2 * (p - s) - 1 for s in range(p)]
    expected = [34.0 * n + 32.0 * weights_late * s for s, n in enumerate(full)]
    assert [max(bytes_ for _, bytes_ in steps) for steps in peaks] == pytest.approx(expected)


def test_recomputation_makes_memory_grow_at_the_input_gradient() -> None:
    """Two bytes are kept, ten are there between I and W."""
    timeline = simulate(generate("zb-h1", 1, 1, 1), StageTimes.uniform(1, 1.0, 2.0, 1.0))
    steps = timeline.memory_over_time(held([2.0], [10.0]))[0]
    assert steps == ((0.0, 2.0), (3.0, 10.0), (4.0, 0.0))


@given(
    shape=st.sampled_from(
        [("1f1b", 1), ("eager-1f1b", 1), ("zb-h2", 1), ("interleaved", 2), ("interleaved", 3), ("zb-v", 2)]
    ),
    p=st.integers(2, 5),
    m=st.integers(1, 40),
    each=st.lists(st.floats(0, 3), min_size=15, max_size=15),
)
def test_the_moments_that_count_are_those_of_all_microbatches(
    shape: tuple[str, int], p: int, m: int, each: list[float]
) -> None:
    """Against the peak over every action, whatever a microbatch keeps on each stage."""
    name, v = shape
    if refusal(name, p, v, m):
        return
    kept = each[: p * v]
    every = peak_bytes(arranged(name, p, v, m), kept, [0.0] * (p * v))
    moments = moments_in_flight(name, p, v, m)
    assert [max(float(held @ kept) for held in rank) for rank in moments] == pytest.approx(every)
