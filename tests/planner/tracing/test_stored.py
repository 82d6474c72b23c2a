"""One-hot matrices: multiplied densely everywhere, and on TPUs never stored."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

from planner import ShardedProgram, from_jax, shard  # noqa: E402

pytestmark = pytest.mark.jax
ROWS, WIDTH, TOKENS = 32768, 2048, 8192
TABLE, RESULT, ONE_HOT, INDICES = ROWS * WIDTH * 2, TOKENS * WIDTH * 2, TOKENS * ROWS * 2, TOKENS * 4


def planned(cluster: str, read_beside: bool = False) -> ShardedProgram:
    def step(table: Any, indices: Any) -> Any:
        rows = jax.nn.one_hot(indices, ROWS, dtype=table.dtype)
        return rows @ table, rows.sum(0) if read_beside else indices

    arguments = (
        jax.ShapeDtypeStruct((ROWS, WIDTH), "bfloat16"), jax.ShapeDtypeStruct((TOKENS,), "int32"),
    )  # fmt: skip
    return shard(from_jax(step, *arguments), cluster, {"data": 1})


def test_a_tpu_holds_the_table_and_the_result() -> None:
    """As compiled for one v5e: 134,250,496 bytes of arguments, 33,554,432 of results, nothing temporary."""
    on_tpu, on_gpu = planned("tpu-v5e:2x4"), planned("dgx-h100:1")
    assert on_tpu.memory_bytes == TABLE + RESULT + INDICES == 134_250_496 + 33_554_432
    assert on_gpu.memory_bytes == TABLE + RESULT + INDICES + ONE_HOT


def test_it_multiplies_densely() -> None:
    """1,099,780,063,232 FLOPs by XLA's count; a v5e has at most 197 TFLOP/s."""
    flops = 2 * TOKENS * ROWS * WIDTH
    assert flops == pytest.approx(1_099_780_063_232, rel=1e-3)
    assert planned("tpu-v5e:2x4").compute_seconds >= flops / 197e12


def test_what_is_read_elsewhere_too_is_stored() -> None:
    assert planned("tpu-v5e:2x4", read_beside=True).memory_bytes > TABLE + RESULT + ONE_HOT
