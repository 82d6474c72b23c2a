"""Many products at once are what each is by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_device
from cluster_specs.errors import InputError
from cost_models.matmul import matmul_seconds
from cost_models.products import products_seconds, streams_seconds
from cost_models.roofline import stream_seconds

SIDE = st.one_of(st.integers(0, 300), st.integers(0, 14).map(lambda n: 2**n), st.integers(1, 200_000))
SHAPES = st.lists(st.tuples(SIDE, SIDE, SIDE, st.integers(0, 64)), min_size=1, max_size=8)


@given(
    SHAPES,
    st.sampled_from(["h100-sxm-80g", "b200-sxm-180g", "tpu-v5p"]),
    st.sampled_from([("bf16", 2.0), ("bf16", 4.0), ("fp8", 1.0), ("fp8", 0.5), ("fp4", 9 / 16)]),
)
def test_each_is_what_it_is_alone(
    shapes: list[tuple[int, int, int, int]], name: str, kind: tuple[str, float]
) -> None:
    device, (dtype, size) = load_device(name), kind
    if dtype not in device.peak_flops_per_second:
        with pytest.raises(InputError, match=f"has no {dtype} rate"):
            products_seconds(np.array(shapes), device, dtype, size)
        return
    alone = [matmul_seconds(m, n, k, device, dtype, batch, size).seconds for m, n, k, batch in shapes]
    assert products_seconds(np.array(shapes), device, dtype, size).tolist() == alone


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1e12)), min_size=1, max_size=8),
    st.sampled_from(["h100-sxm-80g", "b200-sxm-180g", "tpu-v5p"]),
)
def test_streams_together_are_what_each_is_alone(sizes: list[float], name: str) -> None:
    device = load_device(name)
    alone = [stream_seconds(size, device).seconds for size in sizes]
    assert streams_seconds(np.array(sizes), device).tolist() == alone
