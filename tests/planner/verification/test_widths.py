"""Collectives that differ from the priced ones in the width of their numbers alone."""

from pathlib import Path

import pytest

from planner.tracing.sharded import CollectiveUse
from planner.verification.programs.hlo import listed_collectives
from planner.verification.with_program import CompiledUse, differences, narrow_operators, verify_program

OPERATOR = "dot_general.1"
PRICED = (
    CollectiveUse(operator=OPERATOR, collective="all_reduce", axes=("x",), full_bytes=8, seconds=0, times=2),
)


def compiled(kind: str, full_bytes: float, *types: str) -> list[CompiledUse]:
    return [
        CompiledUse(
            operator=OPERATOR,
            collective=kind,
            axes=(),
            full_bytes=full_bytes,
            seconds=0,
            times=2,
            types=types,
        )
    ]


@pytest.mark.parametrize(
    ("made", "narrow", "alone"),
    [
        (compiled("all_reduce", 16, "f32"), {OPERATOR}, True),
        (compiled("all_reduce", 16, "f32"), (), False),  # the program has 32 bits there itself
        (compiled("all_reduce", 16, "bf16"), {OPERATOR}, False),  # twice as many numbers
        (compiled("all_reduce", 16, "bf16", "f32"), {OPERATOR}, False),
        (compiled("all_reduce", 24, "f32"), {OPERATOR}, False),
        (compiled("all_gather", 16, "f32"), {OPERATOR}, False),
        (compiled("all_reduce", 16, "f32") + compiled("p2p", 4, "f32"), {OPERATOR}, False),
        ([], {OPERATOR}, False),
        ([u.model_copy(update={"rounded": True}) for u in compiled("all_reduce", 16, "f32")], (), False),
    ],
)
def test_width_alone_is_the_same_numbers_in_32_bits(
    made: list[CompiledUse], narrow: set[str], alone: bool
) -> None:
    assert [d.width_alone for d in differences(PRICED, made, narrow)] == [alone]


def test_what_agrees_is_no_difference() -> None:
    assert not list(differences(PRICED, compiled("all_reduce", 8, "bf16"), {OPERATOR}))


@pytest.mark.jax
def test_indices_make_no_operator_wide() -> None:
    jax = pytest.importorskip("jax")
    from planner.tracing.reading.from_jax import from_jax

    table, updates = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((8, 4), (6, 4)))
    rows, wide = jax.ShapeDtypeStruct((6,), "int32"), jax.ShapeDtypeStruct((8, 4), "float32")
    program = from_jax(lambda t, i, u, w: t.at[i].add(u) + w, table, rows, updates, wide)
    narrow = narrow_operators(program)
    by_primitive = {op.primitive: op.name for op in program.operations}
    assert by_primitive["scatter-add"] in narrow
    assert not {by_primitive["add"], by_primitive["lt"]} & narrow  # one adds fp32, one has indices alone


ROUNDED = """HloModule moves, num_partitions=2

%back (p: f32[8], q: f32[8]) -> bf16[8] {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  %narrow = bf16[8]{0} convert(%p)
  ROOT %added = bf16[8]{0} add(%narrow, %narrow)
}

ENTRY %main (a: f32[4], b: f32[4]) -> (bf16[8], f32[8]) {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %first = f32[8]{0} all-gather(%a), channel_id=1, replica_groups=[1,2]<=[2], dimensions={0}
  %turned = f32[8]{0} copy(%first)
  %second = f32[8]{0} all-gather(%b), channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}
  %used = bf16[8]{0} fusion(%turned, %second), kind=kLoop, calls=%back
  ROOT %both = (bf16[8]{0}, f32[8]{0}) tuple(%used, %second)
}
"""


def test_what_all_readers_round_had_16_bits_before() -> None:
    other = ROUNDED.replace("convert(%p)", "convert(%q)")
    assert [made.rounded for made in listed_collectives(ROUNDED, 2)] == [True, False]
    assert [made.rounded for made in listed_collectives(other, 2)] == [False, False]


PROGRAM = """
import jax
import jax.numpy as jnp


def loss(weights, x):
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.square(x.astype(jnp.float32)).mean()


layer = tuple(jax.ShapeDtypeStruct(sizes, jnp.bfloat16) for sizes in ((1024, 4096), (4096, 1024)))
example = jax.grad(loss), [layer, layer], jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
"""


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_sums_of_bf16_are_told_from_others_on_a_cpu(tmp_path: Path) -> None:
    """Of products over parts of what they contract, which XLA's CPU backend makes in fp32."""
    pytest.importorskip("jax")
    from planner import shard
    from planner.verification.programs.trace import trace

    (tmp_path / "step.py").write_text(PROGRAM)
    target = f"{tmp_path / 'step.py'}:example"
    program = trace({"function": target, "replicate_unknown": False, "trips": None})
    answer = verify_program(shard(program, "dgx-h100:1", {"data": 2, "model": 4}), target)
    assert answer.passed, answer.failures()
    assert {d.width_alone for d in answer.operators} == {True}
    assert all(d.compiled["sum"] == 2 * d.priced["sum"] for d in answer.operators)
    found = {c.name: c.found for c in answer.comparisons}
    assert found["operators that differ"] == 0
    assert any("multiplies and sums bf16" in note for note in answer.notes)
