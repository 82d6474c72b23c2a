"""Attention: pairs counted by brute force, the flash model's laws and published kernels."""

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.adjusted import device_on
from cluster_specs.catalog import load_device
from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.software import load_software
from cost_models.attention import (
    AttentionShape,
    attended_pairs,
    attention_flops,
    attention_seconds,
    flash_utilisation,
    head_utilisation,
    visited_blocks,
    window_utilisation,
)
from cost_models.matmul import matmul_seconds


def memory_rate(device: DeviceSpec) -> float:
    return device.memory_bandwidth * device.efficiency.memory


LONG = AttentionShape(
    batch=1, heads=32, q_len=8192, kv_len=8192, qk_dim=128, v_dim=128, kv_heads=8, causal=True
)


@given(
    q=st.integers(1, 40), kv=st.integers(1, 40), window=st.none() | st.integers(1, 50), causal=st.booleans()
)
def test_pairs_by_counting(q: int, kv: int, window: int | None, causal: bool) -> None:
    shape = AttentionShape(1, 1, q, kv, 1, 1, 1, causal, window)
    most = kv if window is None else min(window, kv)
    visible = [kv - i if causal else kv for i in range(q)]
    assert attended_pairs(shape) == sum(min(most, max(0, keys)) for keys in visible)


def test_flops_of_forward_and_backward_by_hand() -> None:
    shape = AttentionShape(2, 3, 4, 4, qk_dim=5, v_dim=7, kv_heads=3, causal=False)
    assert attention_flops(shape) == 2 * 3 * 16 * 2 * (5 + 7)
    assert attention_flops(shape, backward=True) == 2 * 3 * 16 * 2 * (3 * 5 + 2 * 7)


def test_equal_dimensions_cost_two_and_a_half_forwards_backward() -> None:
    assert attention_flops(LONG, backward=True) == 2.5 * attention_flops(LONG)


def test_long_sequences_approach_the_sustained_rate(device: DeviceSpec) -> None:
    shape = replace(LONG, q_len=1 << 18, kv_len=1 << 18)
    for backward, rate in ((False, 0.6e15), (True, 0.5e15)):
        time = attention_seconds(shape, device, "bf16", backward=backward).seconds
        assert 1 <= time / (attention_flops(shape, backward) / rate) < 1.01


def test_causal_is_half_the_work_and_a_little_more(device: DeviceSpec) -> None:
    causal = attention_seconds(LONG, device, "bf16").seconds
    full = attention_seconds(replace(LONG, causal=False), device, "bf16").seconds
    assert 0.5 < causal / full < 0.6


def test_a_window_bounds_the_cost_of_length(device: DeviceSpec) -> None:
    short = replace(LONG, window=1024, q_len=16384, kv_len=16384)
    long = replace(short, q_len=32768, kv_len=32768)
    ratio = attention_seconds(long, device, "bf16").seconds / attention_seconds(short, device, "bf16").seconds
    assert ratio == pytest.approx(2.0, rel=0.05)


def test_short_or_few_sequences_leave_units_idle(device: DeviceSpec) -> None:
    # One head of 1024 queries: 8 blocks for 128 units.
    small = AttentionShape(1, 1, 1024, 1024, 128, 128, 1, causal=False)
    assert flash_utilisation(small, device) == pytest.approx(8 / 128 * 8 / (8 + 2))
    many = replace(small, heads=16)  # 128 blocks: all busy
    assert flash_utilisation(many, device) == pytest.approx(8 / (8 + 2))
    more = replace(small, heads=17)  # 136 blocks: two waves
    assert flash_utilisation(more, device) == pytest.approx(136 / 256 * 8 / (8 + 2))


def test_sharing_key_heads_moves_fewer_bytes(device: DeviceSpec) -> None:
    alone, shared = replace(LONG, kv_heads=32), replace(LONG, kv_heads=8)
    assert (
        attention_seconds(alone, device, "bf16").memory
        == 64 / 40 * attention_seconds(shared, device, "bf16").memory
    )


def test_plain_attention_is_its_products_and_passes(device: DeviceSpec) -> None:
    # 28 bytes per score: scale 2+2, mask 2+2, cast to fp32 2+4, softmax 4+4, cast 4+2.
    time = attention_seconds(LONG, device, "bf16", kernel="plain").seconds
    scores = 32 * 8192 * 8192
    products = matmul_seconds(8192, 8192, 128, device, "bf16", batch=32).seconds
    products += matmul_seconds(8192, 128, 8192, device, "bf16", batch=32).seconds
    assert time == pytest.approx(products + 28 * scores / 3.6e12)
    assert time > attention_seconds(LONG, device, "bf16").seconds


@pytest.mark.parametrize(("kernel", "score_bytes"), [("counted_softmax", 9), ("sdpa_math", 8), ("tiled", 6)])
def test_scores_of_wide_queries_are_as_wide(kernel: str, score_bytes: float) -> None:
    """A TPU multiplies fp32 as bf16, so that what fp32 adds is traffic: as much again for the passes alone."""
    tpu, shape = load_device("tpu-v4"), replace(LONG, batch=8, kv_heads=32, causal=False)
    narrow, wide = (attention_seconds(shape, tpu, dtype, kernel).seconds for dtype in ("bf16", "fp32"))
    scores = 8 * 32 * 8192**2
    assert wide - narrow > score_bytes * scores / memory_rate(tpu) * 0.999
    plain = [attention_seconds(shape, tpu, dtype, "plain").memory for dtype in ("bf16", "fp32")]
    assert plain[1] < 2 * plain[0]


@pytest.mark.parametrize(("causal", "tiles"), [(True, 10), (False, 16)])
def test_tiles_that_hold_no_pair_are_left_out(device: DeviceSpec, causal: bool, tiles: int) -> None:
    """Four tiles a side; passes over scores of 6 bytes forward, 8 backward, which multiplies five times."""
    shape = replace(LONG, q_len=4096, kv_len=4096, qk_dim=64, v_dim=64, causal=causal)
    product = matmul_seconds(1024, 1024, 64, device, "bf16", batch=32 * tiles, bytes_per_element=2).seconds
    across = matmul_seconds(1024, 64, 1024, device, "bf16", batch=32 * tiles, bytes_per_element=2).seconds
    scores = 32 * tiles * 1024**2
    there, back = (attention_seconds(shape, device, "bf16", "tiled", b).seconds for b in (False, True))
    assert there == pytest.approx(product + across + 6 * scores / memory_rate(device))
    assert back == pytest.approx(2 * product + 3 * across + 8 * scores / memory_rate(device))


def test_plain_backward_has_twice_the_products(device: DeviceSpec) -> None:
    # 28 bytes per score: cast 2+4, softmax 4+4+4, cast 4+2, scale 2+2.
    time = attention_seconds(LONG, device, "bf16", kernel="plain", backward=True).seconds
    shapes = [(8192, 8192, 128), (8192, 128, 8192), (8192, 128, 8192), (8192, 128, 8192)]
    products = sum(matmul_seconds(*shape, device, "bf16", batch=32).seconds for shape in shapes)
    assert time == pytest.approx(products + 28 * 32 * 8192 * 8192 / 3.6e12)


def test_no_pairs_take_no_time(device: DeviceSpec) -> None:
    assert attention_seconds(replace(LONG, batch=0), device, "bf16").seconds == 0.0


def test_bad_input_is_named(device: DeviceSpec) -> None:
    with pytest.raises(UnknownName, match="unknown attention kernel 'flsh'; did you mean flash"):
        attention_seconds(LONG, device, "bf16", kernel="flsh")
    with pytest.raises(InputError, match="no fp4 rate"):
        attention_seconds(LONG, device, "fp4")


@pytest.mark.parametrize(("name", "tolerance"), [("h100", 0.1), ("b200", 0.35)])
def test_published_kernels(rows: Any, name: str, tolerance: float) -> None:
    """Relative to the longest sequence of each source, so that only the shape's effect is judged."""
    spec = load_device({"h100": "h100-sxm-80g", "b200": "b200-sxm-180g"}[name])
    cases = [row for row in rows("kernels") if row["kind"] == "attention" and row["device"] == name]
    rates = [_rate(row, spec) for row in cases]
    best = max(range(len(cases)), key=lambda i: (not cases[i]["causal"], cases[i]["seq"]))
    for row, rate in zip(cases, rates, strict=True):
        predicted, measured = rate / rates[best], row["tflops"] / cases[best]["tflops"]
        assert abs(predicted / measured - 1) < tolerance, (row, predicted, measured)


def _rate(row: dict[str, Any], spec: DeviceSpec) -> float:
    shape = AttentionShape(
        row["batch"],
        row["heads"],
        row["seq"],
        row["seq"],
        row["head_dim"],
        row["head_dim"],
        row["heads"],
        row["causal"],
    )
    return attention_flops(shape) / attention_seconds(shape, spec, "bf16").seconds


@pytest.mark.parametrize("name", ["gb200-186g", "gb300-288g", "h200-sxm-141g"])
def test_what_a_library_measured(rows: Any, name: str) -> None:
    """Rates are those of 8,192 tokens and heads of 128; other lengths, and latent heads, follow within 20 %."""
    spec = load_device(name)
    cases = [row for row in rows("kernels") if row["kind"] == "attention_training" and row["device"] in name]
    assert len(cases) == 12
    for row in cases:
        lengths, dims = (row["seq"], row["seq"]), (row["qk_dim"], row["v_dim"])
        shape = AttentionShape(row["batch"], row["heads"], *lengths, *dims, row["kv_heads"])
        predicted = attention_seconds(shape, spec, "bf16", backward=row["pass"] == "backward").seconds
        assert abs(predicted / row["seconds"] - 1) < 0.2, (row, predicted)


def test_what_two_flash_attentions_reach_on_hopper(rows: Any) -> None:
    """Causal, from 2,048 tokens on, heads of 64 to 256: only the rates of heads of 128 not causal are known before."""
    h100 = load_device("h100-sxm-80g")
    stacks = {"FlashAttention-2": "torch-fsdp2", "FlashAttention-3": "megatron"}
    devices = {kernel: device_on(h100, load_software(stack)) for kernel, stack in stacks.items()}
    cases = [row for row in rows("kernels") if row["kind"] == "attention_figure"]
    assert len(cases) == 24
    errors = [_rate(row, devices[row["kernel"]]) / (row["tflops"] * 1e12) - 1 for row in cases]
    assert max(map(abs, errors)) < 0.2
    assert median(map(abs, errors)) < 0.05


@pytest.mark.parametrize(("name", "tolerance"), [("h100-pcie-80g", 0.1), ("h20-96g", 0.21)])
def test_what_other_hopper_boards_reach(rows: Any, name: str, tolerance: float) -> None:
    """On H20, whose matrix units are slow, blocks lose less at their ends than is taken: it errs to one side."""
    cases = [row for row in rows("kernels") if row["kind"] == "attention_board" and row["device"] == name]
    assert len(cases) == 4
    for row in cases:
        assert _rate(row, load_device(name)) == pytest.approx(row["tflops"] * 1e12, rel=tolerance), row


@pytest.mark.parametrize(
    ("kernel", "forward", "backward"),
    [("fused_softmax", 16, 13), ("counted_softmax", 9, 11), ("sdpa_math", 8, 6), ("wide_softmax", 16, 20)],
)
def test_a_fused_softmax_saves_passes_over_the_scores(
    device: DeviceSpec, kernel: str, forward: int, backward: int
) -> None:
    # Scores of `LONG` in 16 bits: fewer bytes in place of 28 each way.
    scores = LONG.batch * LONG.heads * LONG.q_len * LONG.kv_len
    for back, moved in ((False, forward), (True, backward)):
        plain = attention_seconds(LONG, device, "bf16", kernel="plain", backward=back).seconds
        fused = attention_seconds(LONG, device, "bf16", kernel=kernel, backward=back).seconds
        assert plain - fused == pytest.approx((28 - moved) * scores / memory_rate(device))


@pytest.mark.parametrize(
    ("seq", "combined_ms", "backward_ms"),
    [(512, 1.33, 0.77), (1024, 4.21, 2.42), (2048, 16.50, 8.43)],
)
def test_megatrons_attention_takes_as_long_as_was_measured(
    seq: int, combined_ms: float, backward_ms: float
) -> None:
    # arXiv:2205.14135, tables 10 and 11, with dropout and masking; the bytes come from the longest.
    a100, shape = load_device("a100-sxm-40g"), AttentionShape(16, 8, seq, seq, 64, 64, 8, causal=False)
    forward, backward = (
        attention_seconds(shape, a100, "fp16", "fused_softmax", back).seconds * 1e3 for back in (False, True)
    )
    assert forward + backward == pytest.approx(combined_ms, rel=0.25 if seq == 512 else 0.02)
    assert backward == pytest.approx(backward_ms, rel=0.3 if seq == 512 else 0.15)


def test_heads_fill_half_of_a_matrix_unit_twice_as_wide() -> None:
    v5p, v6e = map(load_device, ("tpu-v5p", "tpu-v6e"))
    heads = AttentionShape(1, 8, 4096, 4096, 128, 128, 8)
    wide = AttentionShape(1, 8, 4096, 4096, 256, 256, 8)
    assert (head_utilisation(heads, v5p), head_utilisation(heads, v6e)) == (1.0, 0.5)
    assert head_utilisation(wide, v6e) == 1.0
    assert attention_seconds(wide, v6e, "bf16").seconds == attention_seconds(heads, v6e, "bf16").seconds


def test_heads_off_alignment_lose_the_matrix_units() -> None:
    # BLOOM's topology study on A100: heads of 225 or 108 take far longer than heads of 224 (docs/accuracy.md).
    a100 = load_device("a100-sxm-80g")
    aligned, odd, padded = (
        attention_seconds(
            AttentionShape(4, 8, 2048, 2048, dim, dim, 8), a100, "fp16", "fused_softmax"
        ).seconds
        for dim in (224, 225, 232)
    )
    assert odd > 3 * aligned
    assert padded < 1.1 * aligned


@pytest.mark.parametrize(
    ("attention_forward", "measured"), [(648 / 989.4, 497e12), (370 / 989.4, 324e12), (595 / 989.4, 413e12)]
)
def test_exponentials_slow_small_heads_as_published(attention_forward: float, measured: float) -> None:
    """FlashAttention-3, FlashAttention-2 and cuDNN on H100 (arXiv:2407.08608, figure 5, 16k tokens, not causal)."""
    h100 = load_device("h100-sxm-80g")
    efficiency = h100.efficiency.model_copy(update={"attention_forward": attention_forward})
    device = h100.model_copy(update={"efficiency": efficiency})
    shape = AttentionShape(1, 32, 16384, 16384, 64, 64, 32, causal=False)
    rate = attention_flops(shape) / attention_seconds(shape, device, "bf16").seconds
    assert rate == pytest.approx(measured, rel=0.13)


@pytest.mark.parametrize("dim", [128, 192, 256])
def test_exponentials_cost_nothing_beyond_the_measured_heads(dim: int) -> None:
    h100 = load_device("h100-sxm-80g")
    shape = replace(LONG, qk_dim=dim, v_dim=dim)
    free = h100.model_copy(update={"exponentials": None})
    assert attention_seconds(shape, h100, "bf16") == attention_seconds(shape, free, "bf16")


@pytest.mark.parametrize(("length", "window"), [(8192, 128), (8192, 1024), (4096, 600), (8192, None)])
def test_blocks_that_a_tpu_visits_are_those_of_the_mask_of_jax(length: int, window: int | None) -> None:
    pytest.importorskip("jax")
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import process_mask

    square = (length, length)
    one = masks.CausalMask(square) if window is None else masks.LocalMask(square, (window - 1, 0), 0)
    info, _ = process_mask(masks.MultiHeadMask([one]), (512, 512))
    shape = AttentionShape(1, 1, length, length, 128, 128, 1, causal=True, window=window)
    assert visited_blocks(shape, 512) == (info.block_mask > 0).sum()


def test_a_short_window_costs_a_tpu_whole_blocks() -> None:
    """Of 16 blocks of queries all but the first see two blocks of keys, where whole attention visits 136."""
    shape = AttentionShape(1, 1, 8192, 8192, 128, 128, 1, causal=True, window=128)
    device = load_device("tpu-v5p")
    ratio = (
        attention_seconds(shape, device, "bf16").seconds
        / attention_seconds(replace(shape, window=None), device, "bf16").seconds
    )
    assert ratio == pytest.approx(31 / 136, rel=1e-6)
    assert window_utilisation(replace(shape, window=8192)) == 1.0
