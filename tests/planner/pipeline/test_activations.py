"""What is held until W: the published layer, and the memory of zero-bubble schedules that follows from it."""

import pytest

from planner.pipeline.activations import held
from planner.pipeline.generators import generate
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
