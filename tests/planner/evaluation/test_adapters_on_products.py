"""Adapters on tensor ranks, as Megatron Core's libraries have them: parts, exchanges, memory, and frozen fp8."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.errors import InputError
from planner.evaluation import Evaluator
from planner.evaluation.setting import graph_of
from planner.graph import BATCH, Graph, count_parameters
from planner.models.adapter_steps import RANK, narrow_product
from planner.models.adapters import Adapter, adapted
from planner.models.catalog import build_graph, load_model
from planner.plans import Estimate, Job, Parallelism
from planner.runs.mapping import plan_from_run
from planner.saving import KEEPS_INPUTS
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.pricing import Pricer
from planner.sharding.spec import Sizes

LAYERS, HIDDEN, QKV, FFN, RANKS, SEQ, STEPS = 32, 4096, 6144, 14336, 16, 4096, 8
"""Of Llama 3.1 8B, whose 8 heads of keys and values are a quarter of those of queries; sequences on one rank."""

TOKENS = 2.0 * SEQ * HIDDEN
"""Bytes of a sequence as wide as the model."""

NARROW = 2.0 * SEQ * RANKS
"""The same between an adapter's products."""

LINEAR = LAYERS * (HIDDEN * (QKV + HIDDEN) + 3 * HIDDEN * FFN)
ENDS = 2 * 128256 * HIDDEN + HIDDEN
MODEL = LINEAR + LAYERS * 2 * HIDDEN + ENDS


def job_of(adapter: Mapping[str, Any] | None = None, **job: Any) -> Job:
    given = Adapter(**{"r": RANKS, "target_modules": ("linear_qkv", "linear_proj"), **(adapter or {})})
    return Job(**{"global_batch": STEPS, "seq_len": SEQ, "stack": "megatron", "adapter": given, **job})


def estimated(
    plan: Mapping[str, Any],
    adapter: Mapping[str, Any] | None = None,
    cluster: str = "dgx-h100:2",
    **job: Any,
) -> Estimate:
    choice = Parallelism(num_microbatches=STEPS // plan.get("data", 1), **plan)
    model, devices = load_model("llama-3.1-8b"), load_cluster(cluster)
    return Evaluator(model, devices, job_of(adapter, **job)).estimate(choice)


def graph_with(targets: tuple[str, ...], stack: str = "megatron") -> Graph:
    return graph_of(load_model("llama-3.1-8b"), job_of({"target_modules": targets}, stack=stack))


def pricer_of(tensor: int, job: Job) -> Pricer:
    graph = graph_of(load_model("llama-3.1-8b"), job)
    mesh = Mesh(load_cluster("dgx-h100:1"), {"tensor": tensor})
    return Pricer(graph, Sizes(graph, mesh, 1), job, load_software(job.stack))


def test_a_fused_product_has_one_adapter_and_a_part_of_it_its_own() -> None:
    """NeMo's ``linear_qkv`` shares the product down; only queries adapted are CanonicalLoRA's ``linear_q``."""
    whole, spelled = graph_with(("linear_qkv",)), graph_with(("q_proj", "k_proj", "v_proj"))
    assert count_parameters(whole) == count_parameters(spelled) == LAYERS * RANKS * (HIDDEN + QKV)
    assert count_parameters(graph_with(("q_proj",))) == LAYERS * RANKS * (HIDDEN + HIDDEN)
    apart = graph_with(("q_proj", "k_proj", "v_proj"), stack="hf-fsdp")
    assert count_parameters(apart) == LAYERS * RANKS * (3 * HIDDEN + QKV)
    mlp = graph_with(("linear_fc1", "linear_fc2"))
    assert count_parameters(mlp) == LAYERS * RANKS * (HIDDEN + 2 * FFN + FFN + HIDDEN)
    assert graph_with(("all-linear",)) == graph_with(
        ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    )


def test_products_have_their_names_on_stacks_that_have_them_only() -> None:
    with pytest.raises(InputError, match="'linear_qkv'; adapters go on down_proj"):
        graph_with(("linear_qkv",), stack="hf-fsdp")
    mixtral = load_model("mixtral-8x7b")
    with pytest.raises(InputError, match="is called 'linear_fc1'; adapters go on gate, k_proj, linear_proj"):
        graph_of(mixtral, job_of({"target_modules": ("linear_fc1",)}))


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_parts_of_adapters_add_up_to_the_whole(tensor: int, sequence_parallel: bool) -> None:
    """FLOPs and weights of all tensor ranks: no rank repeats what another does."""
    pricer = pricer_of(tensor, job_of({"target_modules": ("all-linear",), "lora_dropout": 0.1}))
    block = pricer.graph.block["layer"]
    layout = named_layout(block, pricer.sizes, sequence_parallel)
    products = [op for op in block.ops if narrow_product(op, block)]
    assert len(products) == 2 * 4
    dims = pricer.graph.dims
    for op in products:
        for weight in map(block.tensor.__getitem__, op.weights):
            every = {*weight.dims, *block.tensor[op.inputs[0]].dims} - {BATCH}
            local = math.prod(pricer.sizes.local(d, layout[op.name]) for d in every)
            assert tensor * local == math.prod(dims[d] for d in every)
            axes = pricer.sync_axes(weight, layout[op.name])
            assert axes == ()  # each has a part of its own, whose gradient is whole


@pytest.mark.parametrize("tensor", [2, 8])
def test_ranks_split_what_the_source_says(tensor: int) -> None:
    """``linear_in``: the rank beside columns, what it reads beside rows; ``linear_out`` its columns always."""
    pricer = pricer_of(tensor, job_of())
    layout = named_layout(pricer.graph.block["layer"], pricer.sizes)
    split = {name: dict(strategy).get("tensor") for name, strategy in layout.items() if "_lora_" in name}
    assert split == {
        "wq_lora_a": RANK,
        "wq_lora_b": "heads",
        "wq_lora_add": "heads",
        "wo_lora_a": "heads",
        "wo_lora_b": "hidden",
        "wo_lora_add": "seq",
    }


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_frozen_weights_have_no_gradients_no_masters_and_no_states(tensor: int) -> None:
    trained = LAYERS * RANKS * (HIDDEN + QKV + HIDDEN + HIDDEN) / tensor
    memory = estimated({"tensor": tensor}).memory
    assert memory["weights"] == pytest.approx(2 * trained)
    assert memory["gradients"] == memory["master_weights"] == pytest.approx(4 * trained)
    assert memory["optimizer"] == pytest.approx(8 * trained)
    norms = LAYERS * 2 * HIDDEN + HIDDEN
    assert memory["frozen_weights"] == pytest.approx(2 * (norms + (MODEL - norms) / tensor))


@pytest.mark.parametrize("tensor", [1, 4])
def test_frozen_weights_in_8_bits_take_a_byte_and_others_casts_beside_two(tensor: int) -> None:
    """Linear weights of layers: 1, or 2 and a cast in either layout (`SoftwareSpec.cast_layouts`)."""
    always_cast = estimated({"tensor": tensor}, precision="fp8").memory
    stored = estimated({"tensor": tensor}, {"base": "fp8"}, precision="fp8").memory
    assert always_cast["frozen_weights"] - stored["frozen_weights"] == pytest.approx(LINEAR / tensor)
    assert always_cast["kept_casts"] == pytest.approx(2 * LINEAR / tensor)
    assert "kept_casts" not in stored


def test_stored_fp8_is_transposed_in_every_backward() -> None:
    """A byte read and one written of each linear weight: a little more than at the peak of memory; not on Blackwell."""

    def beyond_cast(cluster: str) -> float:
        stored, cast = (
            estimated({}, {"base": base}, cluster, precision="fp8").time["compute"] for base in ("fp8", None)
        )
        return stored - cast

    least = STEPS * 2 * LINEAR / load_cluster("dgx-h100:1").device.memory_bandwidth
    assert least < beyond_cast("dgx-h100:1") < 1.5 * least
    assert beyond_cast("dgx-b200:1") == pytest.approx(0, abs=1e-9)


def test_adapters_are_multiplied_in_16_bits_beside_products_in_8() -> None:
    pricer = pricer_of(2, job_of(precision="fp8"))
    block = pricer.graph.block["layer"]
    for op in (op for op in block.ops if op.weights and op.kind == "matmul"):
        made = pricer.matmul_dtype(block, block.tensor[op.inputs[0]], block.tensor[op.outputs[0]])
        assert made == ("bf16" if narrow_product(op, block) else "fp8")


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_ranks_exchange_what_the_source_says(tensor: int) -> None:
    """Every layer forward and backward: what tensor parallelism does, and by the source of adapters, forward two thin
    arrays, one gathered and one summed, and one as wide as the model, gathered; backward two thin sums and another
    such gather. No input is gathered again, as no frozen weight has a gradient."""
    sent, share = estimated({"tensor": tensor}).communication, (tensor - 1) / tensor
    times = STEPS * LAYERS * share
    ends = STEPS * share * TOKENS  # of the embedding's sum, of the head's input
    assert sent["all_gather"] == pytest.approx(times * (4 * TOKENS + 2 * TOKENS + NARROW) + 2 * ends)
    assert sent["reduce_scatter"] == pytest.approx(times * 4 * TOKENS + 2 * ends)
    loss = 3 * 4 * SEQ * STEPS
    assert sent["all_reduce"] == pytest.approx(2 * times * 3 * NARROW + 2 * share * loss)


def test_ranks_may_exchange_columns_for_tokens() -> None:
    """``a2a_experimental``: each way a part of the array in place of the whole."""
    gathered, exchanged = estimated({"tensor": 4}), estimated({"tensor": 4}, {"a2a_experimental": True})
    times, share = 2 * STEPS * LAYERS * TOKENS, 3 / 4
    assert exchanged.communication["all_to_all"] == pytest.approx(times * share / 4)
    less = gathered.communication["all_gather"] - exchanged.communication["all_gather"]
    assert less == pytest.approx(times * share)
    assert exchanged.step_time_s < gathered.step_time_s


def test_without_shared_sequences_gradients_of_inputs_are_summed_apart() -> None:
    """The product's own sum and the adapter's (``disable_grad_reduce`` is of shared sequences); dropout or not."""
    plain = estimated({"tensor": 2, "sequence_parallel": False}).communication["all_reduce"]
    dropped = estimated({"tensor": 2, "sequence_parallel": False}, {"lora_dropout": 0.1}).communication
    own = STEPS * LAYERS * (2 + 2 + 1) * TOKENS + STEPS * (TOKENS + TOKENS)
    thin = STEPS * LAYERS * 3 * NARROW + 3 * 4 * SEQ * STEPS
    assert plain == dropped["all_reduce"] == pytest.approx(own + thin)


def test_where_gathers_overlap_an_adapter_gathers_by_itself() -> None:
    """Transformer Engine hands on no gathered input where its gathers overlap (``ub_overlap_ag``)."""
    alone, shared = (estimated({"tensor": 2}, stack=stack).communication for stack in ("nemo", "nemo-2024"))
    once = STEPS * LAYERS * TOKENS / 2
    assert alone["all_gather"] - shared["all_gather"] == pytest.approx(once)
    assert alone["reduce_scatter"] - shared["reduce_scatter"] == pytest.approx(once)


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp8", 1)])
def test_dropout_keeps_a_mask_of_whole_sequences_on_every_rank(
    tensor: int, precision: str, width: int
) -> None:
    """It is applied to what was gathered, which the product down keeps either way.

    Of what the norm made, which is then kept for itself, a rank has its part, as its product reads it.
    """
    targets = {"target_modules": ("linear_qkv",)}
    without = estimated({"tensor": tensor}, targets, precision=precision).memory["activations"]
    dropout = {**targets, "lora_dropout": 0.1}
    dropped = estimated({"tensor": tensor}, dropout, precision=precision).memory["activations"]
    assert dropped - without == pytest.approx(LAYERS * SEQ * HIDDEN * (1 + width / tensor))


@pytest.mark.parametrize(
    ("name", "module", "keeping"),
    [
        ("llama-3.1-8b", "linear_qkv", ["qkv"]),
        ("llama-3.1-8b", "o_proj", []),
        ("deepseek-v3", "q_a_proj", []),
    ],
)
def test_a_norm_is_one_module_with_the_product_that_alone_reads_it(
    name: str, module: str, keeping: list[str]
) -> None:
    """Of DeepSeek-V3, two products make latents of what one norm made."""
    adapter = Adapter(r=8, target_modules=(module,))
    graph = adapted(build_graph(load_model(name), SEQ), adapter, load_software("megatron"))
    ops = (op for block in graph.blocks for op in block.ops)
    assert [op.name for op in ops if KEEPS_INPUTS in op.attributes] == keeping


def test_context_ranks_share_tokens_and_sum_gradients_of_adapters() -> None:
    """Fp32 gradients of all trained weights, scattered or summed over all ranks that see other tokens."""
    trained = LAYERS * RANKS * (HIDDEN + QKV + HIDDEN + HIDDEN)
    one, two = estimated({"data": 2}), estimated({"data": 2, "context": 2})
    assert one.communication["all_reduce"] == pytest.approx(2 * 4 * trained / 2)
    assert two.communication["all_reduce"] == pytest.approx(2 * 4 * trained * 3 / 4)
    assert two.memory["activations"] == pytest.approx(one.memory["activations"] / 2)


def test_the_distributed_optimizer_shares_states_of_adapters_only() -> None:
    trained = LAYERS * RANKS * (HIDDEN + QKV + HIDDEN + HIDDEN)
    states = {"data": 8, "zero_stage": 1, "sharding": "SHARD_GRAD_OP", "shard_degree": 8}
    found = estimated(states)
    assert found.memory["optimizer"] == pytest.approx(8 * trained / 8)
    assert found.memory["frozen_weights"] == pytest.approx(2 * MODEL)
    assert found.communication["all_gather"] == pytest.approx(2 * trained * 7 / 8)
    assert found.communication["reduce_scatter"] == pytest.approx(4 * trained * 7 / 8)


def test_a_tensor_degree_of_one_is_data_parallelism() -> None:
    """Nothing but gradients is exchanged, and how sequences would be shared does not matter."""
    shared, whole = (estimated({"data": 4, "sequence_parallel": shared}) for shared in (True, False))
    assert shared == whole
    assert set(shared.communication) == {"all_reduce"}
    alone = estimated({"data": 1})
    assert alone.time["compute"] == pytest.approx(4 * shared.time["compute"])


def test_stages_hold_their_own_layers() -> None:
    one, four = estimated({}), estimated({"pipeline": 4, "data": 2})
    layers = 2 * (LINEAR + LAYERS * 2 * HIDDEN) / 4
    assert four.memory["frozen_weights"] == pytest.approx(layers + 2 * 128256 * HIDDEN, rel=1e-4)
    assert four.memory["optimizer"] == pytest.approx(one.memory["optimizer"] / 4)
    assert four.communication["send"] > 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["megatron", "nemo", "nemo-2024", "megatron-bridge"]),
    st.sampled_from([("q_proj",), ("linear_qkv", "linear_proj"), ("all-linear",)]),
    st.sampled_from([("bf16", None), ("fp8", None), ("fp8", "fp8")]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
)
def test_more_tensor_ranks_never_hold_more(
    tensor: int,
    stack: str,
    targets: tuple[str, ...],
    types: tuple[str, str | None],
    sequence_parallel: bool,
    dropout: float,
) -> None:
    adapter = {"target_modules": targets, "base": types[1], "lora_dropout": dropout}
    few, many = (
        estimated(
            {"tensor": degree, "sequence_parallel": sequence_parallel},
            adapter,
            stack=stack,
            precision=types[0],
        )
        for degree in (tensor, 2 * tensor)
    )
    for component in ("frozen_weights", "weights", "gradients", "optimizer", "activations"):
        assert many.memory[component] <= few.memory[component]
    assert many.memory.get("kept_casts", 0.0) <= few.memory.get("kept_casts", 0.0)
    assert many.time["compute"] < few.time["compute"]


@pytest.mark.parametrize(
    ("plan", "adapter", "job", "words"),
    [
        ({"tensor": 4}, {"r": 6}, {}, "rank 6 cannot be split over 4 tensor ranks"),
        ({}, {"base": "nf4"}, {}, "one of fp8, bf16 on stack megatron, found base nf4"),
        ({}, {"base": "fp8"}, {}, "fp8 are multiplied in fp8, found precision bf16"),
        ({}, {}, {"precision": "fp4"}, "one of bf16, fp16, fp32, fp8 on stack megatron, found precision fp4"),
        ({"data": 2, "expert": 2}, {}, {}, "on all experts' ranks alike, found expert 2"),
        (
            {},
            {"target_modules": ("q_proj",), "a2a_experimental": True},
            {"stack": "hf-fsdp"},
            "a2a_experimental is of adapters on tensor ranks, which stack hf-fsdp has none of",
        ),
    ],
)
def test_what_is_not_known_is_refused(
    plan: dict[str, Any], adapter: dict[str, Any], job: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        estimated(plan, adapter, **job)


def test_recomputation_repeats_an_adapters_exchanges_too() -> None:
    """All of the forward: four gathers and scatters, two thin arrays and one gather as wide as the model."""
    kept, again = (estimated({"tensor": 2, "recompute": policy}).communication for policy in ("none", "full"))
    times = STEPS * LAYERS / 2
    assert again["all_gather"] - kept["all_gather"] == pytest.approx(times * (2 * TOKENS + TOKENS + NARROW))
    assert again["all_reduce"] - kept["all_reduce"] == pytest.approx(2 * times * NARROW)


def test_a_rank_beside_rows_is_not_split() -> None:
    """``RowParallelLinear`` splits what it reads: any rank goes."""
    assert estimated({"tensor": 4}, {"r": 6, "target_modules": ("linear_proj",)}).step_time_s > 0


def test_a_run_says_what_its_library_says() -> None:
    """NeMo's words beside peft's: frozen weights in fp8, tokens exchanged."""
    run = {
        "id": "made up",
        "model": {"name": "llama-3.1-8b", "seq": 4096},
        "hardware": "dgx-h100:1",
        "adapter": {
            "r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.1,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "base": "fp8",
            "a2a_experimental": True,
        },
        "parallel": {
            "dp": 2,
            "tp": 2,
            "cp": 2,
            "pp": 1,
            "micro_batch": 1,
            "global_batch": 8,
            "precision": "fp8",
            "recompute": "none",
            "sequence_parallel": True,
            "zero_stage": 0,
            "sharding": "NO_SHARD",
            "stack": "nemo",
        },
    }
    plan = plan_from_run(run)[0]
    adapter = plan.job.adapter
    assert adapter is not None
    assert (adapter.base, adapter.a2a_experimental, plan.job.precision) == ("fp8", True, "fp8")
    found = Evaluator(plan.model, plan.cluster, plan.job).estimate(plan.plan)
    assert found.communication["all_to_all"] > 0
    named = {**run["adapter"], "target_modules": ["linear_qkv", "linear_proj"]}  # type: ignore[dict-item]
    again = plan_from_run({**run, "adapter": named})[0]
    assert Evaluator(again.model, again.cluster, again.job).estimate(again.plan) == found


def test_an_adapter_is_written_without_an_exchange_that_it_has_not() -> None:
    assert "a2a_experimental" not in Adapter(r=8).model_dump(mode="json")
    written = Adapter(r=8, a2a_experimental=True).model_dump(mode="json")
    assert Adapter.model_validate(written).a2a_experimental


def test_the_whole_model_is_what_it_was() -> None:
    assert count_parameters(build_graph(load_model("llama-3.1-8b"), SEQ)) == MODEL
