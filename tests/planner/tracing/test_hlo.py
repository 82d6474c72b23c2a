"""Collectives read from the text of a compiled program."""

from planner.tracing.hlo import compiled_collectives

TEXT = """HloModule jit_run, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %all-reduce.1 = f32[8,16]{1,0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add, metadata={op_name="jit(run)/mw[scan.9]/while/body/mw[scan.9>dot_general.1]/dot_general"}
  %send = bf16[4]{0} collective-permute(%y), source_target_pairs={{0,1}}, metadata={op_name="jit(run)/mw[scan.9>conv.2]/conv"}
}

%condition (p: (s32[], f32[8,16])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %while = (s32[], f32[8,16]) while(%tuple), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  %all-gather = f32[8,64]{1,0} all-gather(%w), dimensions={1}, metadata={op_name="jit(run)/mw[embed]/sharding_constraint"}
  %scatter = f32[2,16]{1,0} reduce-scatter(%g), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add, metadata={op_name="jit(run)/mw[dot.3]/dot"}
  %exchange = (f32[4,1]{1,0}, f32[4,1]{1,0}) all-to-all(%u, %v), metadata={op_name="jit(run)/unnamed"}
}
"""  # noqa: E501


def test_kinds_bytes_operators_and_trip_counts() -> None:
    assert [tuple(c) for c in compiled_collectives(TEXT)] == [
        ("scan.9/dot_general.1", "all_reduce", 512.0, 4),
        ("scan.9/conv.2", "send", 8.0, 4),
        ("embed", "all_gather", 2048.0, 1),
        ("dot.3", "reduce_scatter", 512.0, 1),
        ("", "all_to_all", 32.0, 1),
    ]
