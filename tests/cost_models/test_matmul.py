"""Matrix products: laws of the roofline, worked tiles, and measured kernels."""

import itertools
import json
import subprocess
import sys
from importlib.util import find_spec
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_device
from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError
from cost_models.matmul import (
    alignment_share,
    cast_seconds,
    matmul_seconds,
    systolic_seconds,
    tile_shapes,
    tiled_seconds,
    visited_rows,
)
from cost_models.roofline import element_bytes

DEVICES = {
    "a100": "a100-sxm-80g",
    "b200": "b200-sxm-180g",
    "gb300": "gb300-288g",
    "h100": "h100-sxm-80g",
    "h200": "h200-sxm-141g",
    "h800": "h800-sxm-80g",
    "tpu-v7x": "tpu-v7x",
}
SIDE = st.integers(1, 20000)


def seconds(device: DeviceSpec, m: float, n: float, k: float, **options: Any) -> float:
    return matmul_seconds(m, n, k, device, "bf16", **options).seconds


def test_a_product_of_whole_waves_runs_at_the_sustained_rate(device: DeviceSpec) -> None:
    # 16 x 8 tiles of 128 x 256 on 128 units: one wave, nothing wasted.
    assert seconds(device, 2048, 2048, 8192) == pytest.approx(2 * 2048 * 2048 * 8192 / 0.8e15)


def test_one_more_row_costs_a_tile_of_rows(device: DeviceSpec) -> None:
    whole, more = seconds(device, 2048, 2048, 8192), seconds(device, 2049, 2048, 8192)
    assert 1.03 * whole < more < 1.2 * whole


def test_the_last_wave_is_shared_when_that_pays(device: DeviceSpec) -> None:
    # 129 tiles on 128 units: two waves unshared; shared, 1 + 1/128 waves and the partial sums of 128 tiles.
    m, n, k = 128, 129 * 256, 65536  # memory would take longer: only arithmetic is looked at
    wave = 2 * 128 * 256 * k / (0.8e15 / 128)
    sums = 2 * 128 * 128 * 256 * 4 / 3.6e12
    assert tiled_seconds(m, n, k, 1, device, 0.8e15) == pytest.approx(wave * (1 + 1 / 128) + sums)
    assert tiled_seconds(m, n, 512, 1, device, 0.8e15) == pytest.approx(2 * wave / 128)  # sums cost more


def test_every_tile_is_filled_and_written_out(device: DeviceSpec) -> None:
    filled = device.model_copy(update={"tile_fill": 1e-6})
    for m in (2048, 3 * 2048):  # one wave of 16 x 8 tiles on 128 units, and three
        bare = tiled_seconds(m, 2048, 512, 1, device, 0.8e15)
        assert tiled_seconds(m, 2048, 512, 1, filled, 0.8e15) == pytest.approx(bare + m / 2048 * 1e-6)
    shared = tiled_seconds(
        128, 129 * 256, 65536, 1, device, 0.8e15
    )  # a last wave of one tile fills all units, too
    assert tiled_seconds(128, 129 * 256, 65536, 1, filled, 0.8e15) == pytest.approx(shared + 2e-6)


@pytest.mark.parametrize(
    ("name", "dtype", "kept"), [("h800", "fp8", 1263 / 1484), ("gb300", "bf16", 1749 / 1812)]
)
def test_little_depth_costs_hopper_a_share_of_its_rate(name: str, dtype: str, kept: float) -> None:
    """At 1,536 beside 16,384, as published of DeepGEMM on H800 and of cuBLAS on GB300 (between 1,024 and 2,048).

    Hopper's constant is from cuBLAS on H100.
    """
    device, width = load_device(DEVICES[name]), element_bytes(dtype)
    little, great = (
        matmul_seconds(8192, 8192, k, device, dtype, bytes_per_element=width).seconds / k
        for k in (1536, 16384)
    )
    assert great / little == pytest.approx(kept, rel=0.05)


def test_a_few_rows_are_bound_by_reading_the_weights(device: DeviceSpec) -> None:
    time = matmul_seconds(8, 8192, 8192, device, "bf16")
    assert time.bound == "memory"
    assert time.seconds == pytest.approx((8 * 8192 * 2 + 8192 * 8192) * 2 / 3.6e12)


def test_an_empty_product_is_free_and_a_tiny_one_a_launch(device: DeviceSpec) -> None:
    assert seconds(device, 0, 128, 128) == 0.0
    assert seconds(device, 8, 8, 8) == device.kernel_launch


def test_a_missing_rate_is_an_error(device: DeviceSpec) -> None:
    with pytest.raises(InputError, match="has no fp4 rate"):
        matmul_seconds(8, 8, 8, device, "fp4")


@given(m=SIDE, n=SIDE, k=SIDE, batch=st.integers(1, 32))
def test_never_faster_than_the_roofline(device: DeviceSpec, m: int, n: int, k: int, batch: int) -> None:
    time = seconds(device, m, n, k, batch=batch)
    assert time >= 2 * m * n * k * batch / 0.8e15 * (1 - 1e-12)
    assert time >= 2 * batch * (m * k + k * n + m * n) / 3.6e12 * (1 - 1e-12)


@given(m=SIDE, n=SIDE, k=SIDE, step=st.integers(1, 64))
def test_more_rows_depth_or_batches_never_take_less(
    device: DeviceSpec, m: int, n: int, k: int, step: int
) -> None:
    base = seconds(device, m, n, k) * (1 - 1e-12)
    assert seconds(device, m + step, n, k) >= base
    assert seconds(device, m, n, k + 8 * step) >= base
    assert seconds(device, m, n, k, batch=1 + step) >= base


@given(n=SIDE, k=SIDE)
def test_padding_an_odd_width_pays(n: int, k: int) -> None:
    assert alignment_share(8 * n, 8 * k, 2) == 1.0
    assert alignment_share(2 * n + 1, 8 * k, 2) == alignment_share(8 * n, 2 * k + 1, 2) == 0.62


def test_alignment_falls_by_equal_ratios() -> None:
    shares = [alignment_share(width, 8, 2) for width in (8, 4, 2, 1)]
    ratios = [b / a for a, b in zip(shares, shares[1:], strict=False)]
    assert ratios == pytest.approx([0.62 ** (1 / 3)] * 3)
    assert alignment_share(3, 4, 4) == pytest.approx(shares[2])  # rows of 12 bytes: 4-byte access
    assert alignment_share(0.5, 8, 2) == pytest.approx(0.62 ** (4 / 3))


def test_hopper_leaves_its_own_kernels_for_any_row_that_is_not_whole() -> None:
    hopper = load_device("h100-sxm-80g")
    whole, short, odd = (
        matmul_seconds(16384, 8192, k, hopper, "bf16").seconds / k for k in (8192, 8196, 8193)
    )
    assert short / whole == pytest.approx(130.56 / 36.96, rel=0.01)  # as measured with 588 and 592 for k
    assert odd == pytest.approx(short, rel=0.01)


def test_tiles_are_the_usual_one_and_its_halves() -> None:
    shapes = {(rows, columns): share for rows, columns, share in tile_shapes((128, 256))}
    assert shapes[128, 256] == shapes[256, 128] == 1.0
    assert shapes[128, 128] == pytest.approx(64 / (128 * 256 / 384))
    assert min(shapes.values()) == shapes[64, 64]


@pytest.mark.parametrize(
    ("shape", "padded"),
    [
        ((256, 256, 256), 256**3),
        ((256, 257, 256), 264 * 256 * 256),  # the odd side streams, in groups of 8
        ((1, 4096, 4096), 4096 * 256 * 4096),  # weights stream past a padded row block
        ((1024, 100, 100), 1024 * 256 * 256),
    ],
)
def test_systolic_padding_by_hand(shape: tuple[int, int, int], padded: float) -> None:
    assert systolic_seconds(*shape, 1, 1.0, (256, 256)) == 2 * padded


def test_measured_products(rows: Any) -> None:
    """Within a tenth where the work fills the device, and never less than half the measured time."""
    for row in rows("kernels"):
        if row["kind"] != "matmul":
            continue
        m, n, k = row["m"], row["n"], row["k"]
        dtype = row.get("dtype", "bf16")
        product = matmul_seconds(
            m, n, k, load_device(DEVICES[row["device"]]), dtype, bytes_per_element=element_bytes(dtype)
        )
        ratio = product.seconds * row["tflops"] * 1e12 / (2 * m * n * k)
        assert 0.3 < ratio < 1.5, row
        if m >= 4096:
            assert 0.9 < ratio < 1.1, row


def test_squares_on_a100_take_as_long_as_cublas(rows: Any) -> None:
    """From 1,408 to 3,200. One size, 1,792, takes 1.4 times as long."""
    ratios = []
    for row in (row for row in rows("kernels") if row["kind"] == "matmul_table"):
        side, device = row["m"], load_device(DEVICES[row["device"]])
        product = matmul_seconds(side, side, side, device, row["dtype"])
        ratios.append(product.seconds * row["tflops"] * 1e12 / (2 * side**3))
    assert len(ratios) == 15
    assert 0.95 < median(ratios) < 1.05
    assert sum(0.84 < ratio < 1.12 for ratio in ratios) == 14


def test_little_depth_costs_a100_a_share_of_its_rate(rows: Any) -> None:
    """Layers 768 and 3,072 deep, of 768 to 786,432 rows: one rate for both, where without the filling there are two.

    The largest of either depth are what the constant is from.
    """

    def taken(device: DeviceSpec, depth: int) -> float:
        layers = [row for row in rows("kernels") if row["kind"] == "linear" and row["k"] == depth]
        assert len(layers) == (5 if depth == 768 else 4)
        return median(
            matmul_seconds(row["m"], row["n"], depth, device, row["dtype"]).seconds / row["seconds"]
            for row in layers
        )

    a100 = load_device("a100-sxm-80g")
    assert taken(a100, 768) == pytest.approx(taken(a100, 3072), rel=0.015)
    unfilled = a100.model_copy(update={"tile_fill": 0.0})
    assert taken(unfilled, 768) < 0.96 * taken(unfilled, 3072)


def test_quantising_reads_16_bits_and_writes_8_twice(device: DeviceSpec) -> None:
    assert cast_seconds(9e9, device, "fp8").seconds == pytest.approx(4 * 9e9 / 3.6e12)


def test_quantising_to_4_bits_reads_three_times_and_writes_a_scale_for_every_16(device: DeviceSpec) -> None:
    written = 2 * (16 * 4 + 8) / 16 / 8
    assert cast_seconds(9e9, device, "fp4").seconds == pytest.approx((3 * 2 + written) * 9e9 / 3.6e12)


def test_fp8_products_keep_their_share_of_the_rate(device: DeviceSpec) -> None:
    efficiency = device.efficiency.model_copy(update={"fp8": 0.5})
    rates = {**device.peak_flops_per_second, "fp8": 2e15}
    half = device.model_copy(update={"efficiency": efficiency, "peak_flops_per_second": rates})
    products = [matmul_seconds(2048, 2048, 8192, half, dtype).seconds for dtype in ("bf16", "fp8")]
    assert products[0] == pytest.approx(products[1])


PRINTED = {
    "rtx4090": {"bf16": 165.2},
    "a6000": {"bf16": 123.34},
    "l40s": {"bf16": 269.15},
    "l4": {"bf16": 70.89},
    "h20-96g": {"bf16": 142.1},
    "h100-pcie-80g": {"bf16": 495.93},
    "t4": {"fp16": 41.93, "fp32": 4.35},
    "v100-sxm2-32g": {"fp16": 94.84, "fp32": 14.06},
}
"""Best square product of 1024 to 10240 in PyTorch, the median of boards [TFLOP/s].
Source: zzc0721/torch-performance-test-data@9d82827 ``database.md``."""


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, each in PRINTED.items() for dtype in each]
)
def test_large_products_reach_the_printed_rate(name: str, dtype: str) -> None:
    side, board = 10240, load_device(name)
    width = element_bytes(dtype)
    found = matmul_seconds(side, side, side, board, dtype, bytes_per_element=width).seconds
    assert 2 * side**3 / found == pytest.approx(1e12 * PRINTED[name][dtype], rel=0.02)


VISITS = """
import itertools, json, sys, jax, numpy
from jax.experimental.pallas.ops.tpu.megablox.gmm import make_group_metadata

def visited(groups, mean, tile):
    drawn = numpy.random.default_rng(0).multinomial(groups * mean, [1 / groups] * groups)
    metadata = jax.jit(lambda sizes: make_group_metadata(
        group_sizes=sizes, m=groups * mean, tm=tile, start_group=jax.numpy.array([0])[0],
        num_nonzero_groups=groups, visit_empty_groups=False,
    ))
    return int(metadata(drawn.astype("int32"))[1])

print(json.dumps([visited(*sizes, tile) for sizes, tile in itertools.product(*json.loads(sys.argv[1]))]))
"""
"""In a process of its own: JAX has threads, beside which no other test could fork."""

GROUPS, TILES = [(8, 4096), (16, 1536), (128, 1024)], [128, 512]


@pytest.fixture(scope="module")
def tiles_visited() -> dict[tuple[tuple[int, int], int], int]:
    """By groups, their mean rows, and rows of a tile."""
    command = [sys.executable, "-c", VISITS, json.dumps([GROUPS, TILES])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(zip(itertools.product(GROUPS, TILES), json.loads(printed), strict=True))


@pytest.mark.jax
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("groups", "mean"), GROUPS)
def test_rows_of_groups_in_one_array_are_those_that_the_kernel_of_jax_visits(
    groups: int, mean: int, tile: int, tiles_visited: dict[tuple[tuple[int, int], int], int]
) -> None:
    visited = tiles_visited[(groups, mean), tile]
    assert groups * visited_rows(mean, groups, tile) == pytest.approx(visited * tile, rel=0.01)


def test_one_group_has_no_tile_to_share() -> None:
    assert visited_rows(1000, 1, 512) == 1000
    assert visited_rows(0, 8, 512) == 0
