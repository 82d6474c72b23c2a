"""Stages cut by cost, as nanotron cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.runs.splits import layers_of_stages


@pytest.mark.parametrize(
    ("layers", "head", "stages", "counts"),
    [
        (4, 0, 2, (2, 2)),  # a stage ends with the layer that reaches its share
        (16, 4, 4, (5, 5, 5, 1)),
        (16, 4.1, 4, (6, 5, 5, 0)),
        (3, 0, 3, (1, 1, 1)),
        (5, 0.5, 2, (3, 2)),
    ],
)
def test_cuts_of_equal_layers(layers: int, head: float, stages: int, counts: tuple[int, ...]) -> None:
    assert layers_of_stages([1.0] * layers, head, stages) == counts


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.floats(0, 20), st.integers(1, 8))
def test_every_layer_is_somewhere_and_no_stage_goes_on_beyond_its_share(
    layers: list[float], head: float, stages: int
) -> None:
    counts = layers_of_stages(layers, head, stages)
    assert sum(counts) == len(layers)
    reached, share = 0, (sum(layers) + head) / stages
    for stage, count in enumerate(counts):
        reached += count
        if count > 1:
            assert sum(layers[: reached - 1]) <= share * (stage + 1) * (1 + 1e-9)
