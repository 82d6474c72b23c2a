"""Collectives are counted as the compiler writes them: in loops, once for each channel, by what is sent."""

import pytest

from planner.errors import InputError
from planner.verification.programs.hlo import (
    Total,
    collectives,
    group_size,
    listed_collectives,
    shape_bytes,
)

MODULE = """HloModule step, num_partitions=8

%condition (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]) parameter(0)
  %limit = s32[] constant(5)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (p.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.1 = (s32[], f32[8]{0:T(128)}) parameter(0)
  %x = f32[8]{0:T(128)} get-tuple-element(%p.1), index=1
  %sum = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
  %again = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
  ROOT %out = (s32[], f32[8]) tuple(%i, %sum)
}

%fused (q: bf16[16]) -> bf16[128] {
  %q = bf16[16]{0} parameter(0)
  ROOT %gathered = bf16[128]{0} all-gather(%q), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
}

ENTRY %main (a: (s32[], f32[8]), b: bf16[16]) -> f32[8] {
  %a = (s32[], f32[8]) parameter(0)
  %b = bf16[16]{0} parameter(1)
  %loop = (s32[], f32[8]) while(%a), condition=%condition, body=%body
  %whole = bf16[128]{0} fusion(%b), kind=kLoop, calls=%fused
  %part = bf16[16]{0} reduce-scatter(%whole), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %sent = (bf16[16], bf16[16], u32[], u32[]) collective-permute-start(%b), source_target_pairs={{0,1}}
  ROOT %y = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_every_kind_is_counted_with_what_a_device_sends() -> None:
    assert collectives(MODULE, 8) == {
        "all_reduce": Total(5, 5 * 2 * 3 / 4 * 32),
        "all_gather": Total(1, 7 * 32),
        "reduce_scatter": Total(1, 3 / 4 * 256),
        "p2p": Total(1, 32),
    }


ASKED = """HloModule step, num_partitions=4

%condition (p: (f32[], f32[8])) -> pred[] {
  %p = (f32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %sum = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
  %none = s32[] constant(0)
  %most = f32[] reduce(%sum, %none), dimensions={0}, to_apply=%largest
  %least = f32[] get-tuple-element(%p), index=0
  ROOT %more = pred[] compare(%most, %least), direction=GT
}

%body (p.1: (f32[], f32[8])) -> (f32[], f32[8]) {
  %p.1 = (f32[], f32[8]) parameter(0)
  %y = f32[8]{0} get-tuple-element(%p.1), index=1
  %sums = f32[8]{0} all-reduce(%y), channel_id=2, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %out = (f32[], f32[8]) tuple(%least, %sums)
}

ENTRY %main (a: (f32[], f32[8])) -> f32[8] {
  %a = (f32[], f32[8]) parameter(0)
  %loop = (f32[], f32[8]) while(%a), condition=%condition, body=%body, metadata={op_name="jit(f)/while"}
  ROOT %z = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_what_a_loop_asks_runs_once_more_than_its_body() -> None:
    """A constant beside other work is no number of passes."""
    made = listed_collectives(ASKED, 4, trips=3)
    assert [(c.scope, c.times) for c in made] == [("jit(f)/while/body", 3), ("jit(f)/while/cond", 4)]


WRITTEN = """HloModule step, num_partitions=4

ENTRY %main (b: bf16[16], c: bf16[16]) -> bf16[16] {
  %b = bf16[16]{0} parameter(0)
  %c = bf16[16]{0} parameter(1)
  %one = bf16[16]{0} collective-permute(%b), channel_id=1, metadata={op_name="jit(f)/shard_map/ppermute"}
  ROOT %two = bf16[16]{0} collective-permute(%c), channel_id=1, metadata={op_name="jit(f)/shard_map/ppermute"}
}
"""


def test_collectives_of_a_program_itself_share_a_channel_and_each_count() -> None:
    """Two hops in one ``shard_map``, as JAX 0.10 compiles them."""
    assert collectives(WRITTEN, 4) == {"p2p": Total(2, 64)}


UNLIKE = """HloModule step, num_partitions=4

ENTRY %main (b: bf16[16], c: bf16[32]) -> bf16[32] {
  %b = bf16[16]{0} parameter(0)
  %c = bf16[32]{0} parameter(1)
  %one = bf16[16]{0} all-reduce(%b), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %two = bf16[32]{0} all-reduce(%c), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
}
"""


def test_sums_of_unlike_sizes_share_a_channel_and_each_count() -> None:
    """As libtpu 0.0.52 compiles BERT: sums of four of a layer's gradients, and one of the embedding's."""
    assert collectives(UNLIKE, 4) == {"all_reduce": Total(2, 2 * 3 / 4 * (32 + 64))}


FUSED = """HloModule step, num_partitions=8

%all-reduce-scatter.clone (input: bf16[16]) -> bf16[4] {
  %input = bf16[16]{0} parameter(0)
  %all-reduce.1 = bf16[16]{0} all-reduce(%input), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %dynamic-slice.2 = bf16[4]{0} dynamic-slice(%all-reduce.1, %row, %start), dynamic_slice_sizes={4}
}

ENTRY %main (b: bf16[16]) -> bf16[4] {
  %b = bf16[16]{0} parameter(0)
  ROOT %part = bf16[4]{0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.clone
}
"""


def test_a_fused_sum_that_keeps_its_part_is_a_reduce_scatter() -> None:
    assert collectives(FUSED, 8) == {"reduce_scatter": Total(1, 3 / 4 * 32)}
    whole = FUSED.replace("ROOT %dynamic-slice.2", "%dynamic-slice.2")
    assert collectives(whole, 8) == {"all_reduce": Total(1, 2 * 3 / 4 * 32)}


TOGETHER = """HloModule step, num_partitions=8

%all-reduce-scatter.clone (one: bf16[16], two: bf16[16]) -> (bf16[4], bf16[4]) {
  %one = bf16[16]{0} parameter(0)
  %two = bf16[16]{0} parameter(1)
  %all-reduce.1 = (bf16[16]{0}, bf16[16]{0}) all-reduce(%one, %two), channel_id=1, replica_groups=[2,4]<=[8]
  %first = bf16[16]{0} get-tuple-element(%all-reduce.1), index=0
  %part = bf16[4]{0} dynamic-slice(%first, %start), dynamic_slice_sizes={4}
  %second = bf16[16]{0} get-tuple-element(%all-reduce.1), index=1
  %other = bf16[4]{0} dynamic-slice(%second, %start), dynamic_slice_sizes={4}
  ROOT %both = (bf16[4]{0}, bf16[4]{0}) tuple(%part, %other)
}

ENTRY %main (b: bf16[16], c: bf16[16]) -> (bf16[4], bf16[4]) {
  %b = bf16[16]{0} parameter(0)
  %c = bf16[16]{0} parameter(1)
  ROOT %parts = (bf16[4]{0}, bf16[4]{0}) fusion(%b, %c), kind=kCustom, calls=%all-reduce-scatter.clone
}
"""


def test_a_fused_sum_of_several_arrays_that_keeps_a_part_of_each_is_a_reduce_scatter() -> None:
    """As libtpu 0.0.52 writes the gradients of two small weights; one that is kept whole makes it none."""
    assert collectives(TOGETHER, 8) == {"reduce_scatter": Total(1, 3 / 4 * 64)}
    whole = TOGETHER.replace("tuple(%part, %other)", "tuple(%part, %second)")
    assert collectives(whole, 8) == {"all_reduce": Total(1, 2 * 3 / 4 * 64)}


UNROLLED = MODULE.replace(
    "ROOT %out", "%two = s32[] constant(2)\n  %next = s32[] add(%i, %two)\n  ROOT %out"
).replace("tuple(%i, %sum)", "tuple(%next, %sum)")


def test_an_unrolled_loop_runs_as_often_as_its_counter_steps() -> None:
    assert "%next, %sum" in UNROLLED
    assert collectives(UNROLLED, 8)["all_reduce"].times == 3


def test_steps_of_a_collective_within_an_inner_loop_are_part_of_the_one_outside() -> None:
    outside = "  %start = f32[8]{0} all-reduce(%b), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}\n"
    module = MODULE.replace("  %whole", outside + "  %whole")
    assert collectives(module, 8)["all_reduce"].times == 1


def ring(kind: str, parts: str) -> str:
    """A loop in which four devices send a part both ways, twice, and a last send after it."""
    pairs = "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    scope = 'metadata={op_name="jit(step)/dot_general"}'
    send = f"bf16[{parts}]{{0}} collective-permute(%x), {pairs}, {scope}, channel_id"
    return f"""HloModule step, num_partitions=4

%condition (p: (s32[], bf16[{parts}])) -> pred[] {{
  %p = (s32[], bf16[{parts}]) parameter(0)
  %limit = s32[] constant(4)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}

%wide.windowed_dot_general_body_{kind}.1 (p.1: (s32[], bf16[{parts}])) -> (s32[], bf16[{parts}]) {{
  %p.1 = (s32[], bf16[{parts}]) parameter(0)
  %i = s32[] get-tuple-element(%p.1), index=0
  %x = bf16[{parts}]{{0}} get-tuple-element(%p.1), index=1
  %left = {send}=1
  %right = {send}=2
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  ROOT %out = (s32[], bf16[{parts}]) tuple(%next, %right)
}}

ENTRY %main (a: (s32[], bf16[{parts}])) -> bf16[{parts}] {{
  %a = (s32[], bf16[{parts}]) parameter(0)
  %loop = (s32[], bf16[{parts}]) while(%a), condition=%condition, body=%wide.windowed_dot_general_body_{kind}.1
  %x = bf16[{parts}]{{0}} get-tuple-element(%loop), index=1
  ROOT %last = {send}=3
}}
"""


@pytest.mark.parametrize(("loop", "kind"), [("ag", "all_gather"), ("rs", "reduce_scatter")])
def test_a_ring_beside_a_product_counts_as_what_it_does(loop: str, kind: str) -> None:
    """Five sends, of which three do it."""
    assert collectives(ring(loop, "16"), 4) == {kind: Total(1, 3 * 32), "p2p": Total(2, 2 * 32)}


UNROLLED_RING = """HloModule step, num_partitions=3

ENTRY %main (x: bf16[16]) -> bf16[16] {
  %x = bf16[16]{0} parameter(0)
  %start = (bf16[16], bf16[16]) collective-permute-start(%x), channel_id=1, PAIRS
  %done = bf16[16]{0} collective-permute-done(%start)
  %part = bf16[16]{0} add(%done, %x)
  %start.1 = (bf16[16], bf16[16]) collective-permute-start(%part), channel_id=2, PAIRS
  ROOT %done.1 = bf16[16]{0} collective-permute-done(%start.1)
}
"""


def test_an_unrolled_ring_scatters_if_it_sends_on_sums() -> None:
    pairs = 'source_target_pairs={{0,1},{1,2},{2,0}}, metadata={op_name="jit(step)/dot_general"}'
    module = UNROLLED_RING.replace("PAIRS", pairs)
    assert collectives(module, 3) == {"reduce_scatter": Total(1, 2 * 32)}
    assert collectives(module.replace("(%part)", "(%done)"), 3) == {"all_gather": Total(1, 2 * 32)}


def test_a_sum_that_is_moved_before_it_is_sent_on_is_still_a_scatter() -> None:
    """Into memory on the chip: a copy that starts and is done."""
    pairs = 'source_target_pairs={{0,1},{1,2},{2,0}}, metadata={op_name="jit(step)/dot_general"}'
    moved = """
  %move = (bf16[16]{0:S(1)}, bf16[16]{0}, u32[]) copy-start(%part)
  %moved = bf16[16]{0:S(1)} copy-done(%move)
  %start.1"""
    module = UNROLLED_RING.replace("PAIRS", pairs).replace("\n  %start.1", moved, 1)
    assert collectives(module.replace("(%part), ch", "(%moved), ch"), 3) == {
        "reduce_scatter": Total(1, 2 * 32)
    }


def test_permutes_of_programs_stay_what_they_are() -> None:
    """Of ``jax.lax.ppermute``, and those of a chain with ends."""
    around = 'source_target_pairs={{0,1},{1,2},{2,0}}, metadata={op_name="jit(step)/ppermute"}'
    assert collectives(UNROLLED_RING.replace("PAIRS", around), 3) == {"p2p": Total(2, 64)}
    chain = 'source_target_pairs={{0,1},{1,2}}, metadata={op_name="jit(step)/dot_general"}'
    assert collectives(UNROLLED_RING.replace("PAIRS", chain), 3) == {"p2p": Total(2, 64)}


def test_a_noted_trip_count_goes_before_the_condition() -> None:
    noted = MODULE.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}')
    assert collectives(noted, 8)["all_reduce"].times == 3


def test_a_loop_that_may_end_before_its_counter_does_runs_as_often_as_is_said() -> None:
    either = MODULE.replace("direction=LT", "direction=LT\n  ROOT %both = pred[] and(%less, %small)")
    for text, times in ((MODULE, 5), (either.replace("ROOT %less", "%less"), 7)):
        (summed,) = (c for c in listed_collectives(text, 8, trips=7) if c.kind == "all_reduce")
        assert summed.times == times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups={{0,1},{2,3}}", 2),
        ("replica_groups={}", 8),
        ("replica_groups=mesh['x'=2,'y'=2,'z'=2] {'x','z'}", 4),
        ("replica_groups=mesh['x'=1,'y'=2,'z'=4], device_ids=([4,2]T(1,0)) {'y'}, dimensions={2}", 2),
    ],
)
def test_group_sizes_in_every_notation(text: str, expected: int) -> None:
    assert group_size(text, 8) == expected


def test_shapes_may_be_tuples() -> None:
    assert shape_bytes("(bf16[2,3]{1,0:T(8,128)}, f32[], pred[4])") == 12 + 4 + 4
    assert shape_bytes("c64[4]") == 32
    with pytest.raises(InputError, match="arrays of f12"):
        shape_bytes("f12[4]")
