"""Linear recurrences in chunks: FLOPs by hand, laws of their time, and the kernels' table."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import UnknownName
from cost_models.constants import constants
from cost_models.scans import (
    ARRAYS,
    PRODUCTS,
    RULES,
    ScanShape,
    held_bytes,
    recurrence_flops,
    scan_flops,
    scan_seconds,
)

MAMBA = ScanShape(tokens=8192, groups=8, heads=128, key_dim=128, value_dim=64, chunk=128)


def test_a_recurrence_reads_and_writes_its_state_for_each_token() -> None:
    shape = ScanShape(tokens=10, groups=1, heads=2, key_dim=3, value_dim=5, chunk=4)
    assert recurrence_flops("ssd", shape) == 10 * 2 * (2 * 3 * 5 + 2 * 3 * 5)
    assert recurrence_flops("delta", shape) == 10 * 2 * 3 * (2 * 3 * 5)


def test_products_of_chunks_by_hand() -> None:
    """Mamba-2: pairs of queries and keys of a group, half of the pairs times values, states written and read."""
    shape = ScanShape(tokens=8, groups=1, heads=2, key_dim=3, value_dim=5, chunk=4)
    pairs, values, states = 2 * 4 * 3, 2 * 2 * 4 * 5 / 2, 2 * 2 * (2 * 3 * 5)
    assert scan_flops("ssd", shape) == 8 * (pairs + values + states)


@pytest.mark.parametrize("rule", RULES)
@given(chunk=st.sampled_from((32, 64, 128, 256)))
def test_products_with_states_do_not_depend_on_the_chunk(rule: str, chunk: int) -> None:
    """What grows with the chunk is linear in it; what is left is the recurrence itself."""
    at, none = (scan_flops(rule, replace(MAMBA, chunk=c)) for c in (chunk, 1e-9))
    assert at > none
    assert none == pytest.approx(recurrence_flops(rule, MAMBA))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_time_is_at_least_that_of_products_and_of_traffic(rule: str, way: str, device: DeviceSpec) -> None:
    time = scan_seconds(rule, MAMBA, device, "bf16", way)  # type: ignore[arg-type]
    assert time.seconds >= max(time.arithmetic, time.memory)
    busy = scan_flops(rule, MAMBA, way) / (device.peak_flops_per_second["bf16"] * device.efficiency.matmul)  # type: ignore[arg-type]
    assert time.arithmetic >= busy * (1 - 1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_twice_the_sequences_take_less_than_twice_the_time(rule: str, device: DeviceSpec) -> None:
    """Units that idle on one sequence, where chunks go in order, have the other."""
    one = scan_seconds(rule, replace(MAMBA, heads=16), device, "bf16").seconds
    two = scan_seconds(rule, replace(MAMBA, heads=16, tokens=16384, sequences=2), device, "bf16").seconds
    assert one < two <= 2 * one * (1 + 1e-9)


def test_few_heads_leave_units_idle_where_chunks_go_in_order(device: DeviceSpec) -> None:
    long = ScanShape(tokens=1 << 20, groups=1, heads=1, key_dim=128, value_dim=64, chunk=64)
    alone = scan_seconds("delta", long, device, "bf16").arithmetic
    crowd = scan_seconds("delta", replace(long, sequences=256.0), device, "bf16").arithmetic
    assert alone > 10 * crowd


def test_an_unknown_rule_is_refused(device: DeviceSpec) -> None:
    for ask in (
        lambda: scan_flops("selective", MAMBA),
        lambda: recurrence_flops("selective", MAMBA),
        lambda: scan_seconds("selective", MAMBA, device, "bf16"),
        lambda: held_bytes("selective", MAMBA, "bf16"),
    ):
        with pytest.raises(UnknownName, match="delta, ssd"):
            ask()


@pytest.mark.parametrize("rule", RULES)
def test_every_word_of_the_table_is_known(rule: str) -> None:
    facts = constants("scans")[rule]
    for kernel in chain(facts["forward"], facts["backward"], (facts["held"],)):
        assert set(kernel) <= {"kernel", "products", "moved", "wide", "in_order"}
        assert set(kernel.get("products", {})) <= set(PRODUCTS)
        assert {*kernel.get("moved", {}), *kernel.get("wide", {})} <= set(ARRAYS)
