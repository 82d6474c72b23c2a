"""Where parameters lie: counted against the model, and against meshes worked out by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import stage, tiny_model, tiny_plan

from cluster_specs.errors import InputError
from planner.errors import Unsupported
from planner.evaluation.states import shards_of
from planner.evaluation.weights import WeightGroup
from planner.exporters.partition_specs import batch_spec, keyed_parameters, mesh_sizes, parameter_spec
from planner.exporters.placements import DataMesh, data_mesh, layout_of, state_mesh
from planner.graph import count_parameters
from planner.models.catalog import list_models, load_model
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh

EXPERTS = tiny_model(
    model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, hidden_size=128, intermediate_size=128
)

POWERS = st.sampled_from([1, 2, 4])

SEQ_LENS = {"vit-b-16": 197, "vit-l-16": 197, "vit-h-14": 257, "resnet-50": 1, "dit-xl-2": 256}
"""Models whose inputs have one length."""


@pytest.mark.parametrize("name", list_models())
def test_parameters_add_up_to_the_model(name: str) -> None:
    """Every weight of every layer in exactly one parameter, tied ones once."""
    layout = layout_of(tiny_plan(load_model(name), {"seq_len": SEQ_LENS.get(name, 16)}), "test")
    times = {block.name: count for block, count in layout.graph.instances()}
    total = sum(math.prod(d.extent for d in p.dims) * times[p.block] for p in layout.parameters)
    assert total == count_parameters(layout.graph)


DATA_MESHES: dict[str, tuple[dict[str, Any], DataMesh]] = {
    "replicas": ({"data": 8}, DataMesh(8, 1, 1)),
    "full": ({"data": 8, "zero_stage": 3, "shard_degree": 8}, DataMesh(1, 8, 1)),
    "hybrid": (
        {"data": 8, "zero_stage": 3, "shard_degree": 2, "replicate_degree": 4},
        DataMesh(4, 2, 1),
    ),
    "over context": (
        {"data": 4, "context": 2, "zero_stage": 3, "shard_degree": 8},
        DataMesh(1, 4, 1, over_context=True),
    ),
    "hybrid over context": (
        {"data": 4, "context": 2, "zero_stage": 3, "shard_degree": 4, "replicate_degree": 2},
        DataMesh(2, 2, 1, over_context=True),
    ),
    "over experts": (
        {"data": 8, "expert": 4, "zero_stage": 3, "shard_degree": 8},
        DataMesh(1, 2, 4, over_expert=True),
    ),
    "experts, whole states": ({"data": 8, "expert": 4}, DataMesh(2, 1, 4)),
}


@pytest.mark.parametrize("case", DATA_MESHES)
def test_data_ranks_are_cut_as_the_states_are_sharded(case: str) -> None:
    degrees, expected = DATA_MESHES[case]
    assert data_mesh(Parallelism(**degrees)) == expected


def test_shard_degree_must_divide_the_data_ranks() -> None:
    with pytest.raises(InputError, match="shard_degree 3 does not divide 8 data and context ranks"):
        data_mesh(Parallelism(data=8, zero_stage=3, shard_degree=3))


def test_sharding_groups_must_hold_whole_expert_groups() -> None:
    with pytest.raises(Unsupported, match="2 ranks cut groups of 4 context- and expert-parallel ranks"):
        data_mesh(Parallelism(data=8, expert=4, zero_stage=3, shard_degree=2, replicate_degree=4))


CUT_MESHES: dict[str, tuple[dict[str, Any], DataMesh]] = {
    "half of the experts' ranks": (
        {"data": 8, "expert": 4, "zero_stage": 3, "shard_degree": 2},
        DataMesh(2, 1, 4, over_expert=True, expert_copies=2),
    ),
    "context, and half of the experts' ranks": (
        {"data": 4, "expert": 4, "context": 2, "zero_stage": 3, "shard_degree": 4},
        DataMesh(1, 1, 4, over_expert=True, over_context=True, expert_copies=2),
    ),
    "half of the context": (
        {"data": 2, "context": 4, "zero_stage": 3, "shard_degree": 2},
        DataMesh(2, 1, 1, over_context=True, context_copies=2),
    ),
}


@pytest.mark.parametrize("case", CUT_MESHES)
def test_groups_are_cut_where_states_are_sharded_over_a_part_of_them(case: str) -> None:
    degrees, expected = CUT_MESHES[case]
    assert state_mesh(Parallelism(**degrees)) == expected


@given(data=POWERS, expert=POWERS, context=POWERS, shard=st.sampled_from([1, 2, 4, 8, 16]))
def test_states_are_split_over_as_many_ranks_as_they_are_priced_for(
    data: int, expert: int, context: int, shard: int
) -> None:
    shard = math.gcd(shard, data * expert * context)
    plan = tiny_plan(
        EXPERTS, data=data * expert, expert=expert, context=context, zero_stage=3, shard_degree=shard,
        replicate_degree=data * expert * context // shard,
    )  # fmt: skip
    layout = layout_of(plan, "test")
    sizes = mesh_sizes(layout)
    mesh = Mesh(plan.cluster, layout.axes)
    assert math.prod(sizes.values()) == plan.plan.num_devices
    for _, parameter in keyed_parameters(layout):
        if not parameter.is_matrix:
            continue
        own = [a for entry in parameter_spec(layout, parameter, sharded=False) for a in entry]
        states = [a for entry in parameter_spec(layout, parameter, sharded=True) for a in entry]
        synced = (
            ("context", "data") if "expert" in own or "expert_copy" in own else ("context", "expert", "data")
        )
        priced = shards_of(WeightGroup(synced, 1), mesh, shard).inner.size
        found = math.prod(sizes[a] for a in states if a not in own)
        assert len(states) == len(set(states))
        assert found == priced or (expert > 1 < context and found > priced)  # the context axis whole


@given(data=POWERS, context=POWERS, tensor=POWERS, replicate=POWERS, zero=st.sampled_from([0, 1, 2, 3]))
def test_the_mesh_has_every_device_and_specs_split_evenly(
    data: int, context: int, tensor: int, replicate: int, zero: int
) -> None:
    """No axis twice in a spec, no uneven split, and ZeRO shards matrices over all ranks that share states."""
    shard = data * context if zero else 1
    plan = tiny_plan(
        data=data * replicate, context=context, tensor=tensor, zero_stage=zero,
        shard_degree=shard, replicate_degree=data * replicate * context // shard,
    )  # fmt: skip
    layout = layout_of(plan, "test")
    sizes = mesh_sizes(layout)
    assert math.prod(sizes.values()) == plan.plan.num_devices
    assert math.prod(sizes[a] for a in batch_spec(layout)[0]) == plan.plan.data
    for _, parameter in keyed_parameters(layout):
        spec = parameter_spec(layout, parameter, sharded=zero > 0)
        axes = [a for entry in spec for a in entry]
        assert len(axes) == len(set(axes))
        for dim, entry in zip(parameter.dims, spec, strict=True):
            assert dim.extent % math.prod(sizes[a] for a in entry) == 0
        if parameter.is_matrix:
            assert math.prod(sizes[a] for a in axes) == shard * tensor


def test_layers_that_disagree_get_patterns_of_their_own() -> None:
    """Dense layers 0 and mixtures 1, 2 of one model: attention by heads in the first, whole in the others."""
    model = tiny_model(
        model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, mlp_only_layers=[0], decoder_sparse_step=1, num_hidden_layers=3,
    )  # fmt: skip
    whole = {name: dict(s) for name, s in layout_of(tiny_plan(model), "test").strategies.items()}
    kinds = list(layout_of(tiny_plan(model), "test").layers)
    degrees = {"tensor": 2}
    chosen = {kinds[1]: {op: {} for op in whole[kinds[1]]}}
    layout = layout_of(tiny_plan(model, stages=(stage(Parallelism(**degrees), chosen),), **degrees), "test")
    specs = {key: parameter_spec(layout, p, sharded=False) for key, p in keyed_parameters(layout)}
    assert specs["model.layers.{0}.self_attn.q_proj.weight"] == ((), ("tensor",), ())
    assert specs["model.layers.{1-2}.self_attn.q_proj.weight"] == ((), (), ())
    assert specs["model.layers.{layer}.input_layernorm.weight"] == ((),)


def test_an_unknown_operator_is_named() -> None:
    sharding = {"layer": {"qkvv": {"tensor": "heads"}}}
    with pytest.raises(InputError, match="block layer: no operator named qkvv"):
        layout_of(tiny_plan(tensor=2, stages=(stage(Parallelism(tensor=2), sharding),)), "test")


def test_experts_over_context_ranks_have_no_mesh_that_is_written_down() -> None:
    """States are cut as ever: over context ranks, then over the data ranks that are expert ranks too."""
    folded = tiny_plan(EXPERTS, data=2, context=2, expert=4, zero_stage=3, shard_degree=4)
    assert state_mesh(folded.plan) == DataMesh(1, 1, 2, over_expert=True, over_context=True)
    with pytest.raises(Unsupported, match="plan again with an --expert that divides data 2"):
        layout_of(folded, "test")
