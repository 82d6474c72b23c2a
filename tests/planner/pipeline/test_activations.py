"""What is held until W: the published layer, and the memory of zero-bubble schedules that follows from it."""

import pytest

from planner.pipeline.activations import (
    GPT_SHARE,
    MatrixProduct,
    gpt_products,
    held,
    split_saved,
    until_weight_bytes,
)
from planner.pipeline.generators import generate
from planner.pipeline.simulator import StageTimes, simulate


def test_the_layer_of_table_1() -> None:
    """arXiv:2401.10241: 32 s b h bytes."""
    s, b, h = 1024, 6, 2304
    assert until_weight_bytes(gpt_products(h), s * b, 2) == 32 * s * b * h


def test_shared_inputs_count_once() -> None:
    """A gated MLP's gate and up read the same input: h + 2f, then f + h."""
    h, f = 10.0, 30.0
    gated = (MatrixProduct(h, f), MatrixProduct(h, f, shared=True), MatrixProduct(f, h))
    assert until_weight_bytes(gated, 1, 1) == (h + f) + f + (f + h)


@pytest.mark.parametrize(("name", "weights_late"), [("zb-h1", 1), ("zb-h2", 2)])
def test_zero_bubble_memory_with_the_default_split(name: str, weights_late: int) -> None:
    """arXiv:2401.10241, table 2: late stages hold M_W where early ones hold M_B, here 32/34 of it."""
    p, saved = 4, 34.0
    timeline = simulate(generate(name, p, 1, 16), StageTimes.uniform(p, 1.0, 1.0, 1.0))
    peaks = timeline.memory_over_time(split_saved((saved,) * p))
    full = [p - s if name == "zb-h1" else 2 * (p - s) - 1 for s in range(p)]
    expected = [34.0 * n + 32.0 * weights_late * s for s, n in enumerate(full)]
    assert [max(bytes_ for _, bytes_ in steps) for steps in peaks] == pytest.approx(expected)
    assert pytest.approx(32 / 34) == GPT_SHARE


def test_recomputation_makes_memory_grow_at_the_input_gradient() -> None:
    """Two bytes are kept, ten are there between I and W."""
    timeline = simulate(generate("zb-h1", 1, 1, 1), StageTimes.uniform(1, 1.0, 2.0, 1.0))
    steps = timeline.memory_over_time(held([2.0], [10.0]))[0]
    assert steps == ((0.0, 2.0), (3.0, 10.0), (4.0, 0.0))
