"""A host that issues kernels one by one bounds small layers from below."""

import dataclasses

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.software import load_software
from cost_models.collectives import all_gather, all_reduce, broadcast
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism
from planner.sharding.pricing import Pricer

MICROBATCHES = 4


def estimate(stack: str = "deepspeed", cuda_graphs: bool = False, micro_batch: int = 1) -> Estimate:
    job = Job(global_batch=MICROBATCHES * micro_batch, seq_len=256, stack=stack, cuda_graphs=cuda_graphs)
    plan = Parallelism(tensor=8, micro_batch=micro_batch, num_microbatches=MICROBATCHES)
    return Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-a100-80g:1"), job).estimate(plan)


def test_small_layers_take_the_time_of_issuing_them() -> None:
    software = load_software("deepspeed")
    found = estimate()
    operators, layers = 11, 16  # of one Llama layer; forward once, backward twice
    least = MICROBATCHES * layers * 3 * operators * software.host_operator
    assert found.time["launch"] > 0
    assert least < found.step_time_s < 2 * least


def test_captured_graphs_take_the_host_out() -> None:
    graphs, eager = estimate(cuda_graphs=True), estimate()
    assert "launch" not in graphs.time
    assert graphs.step_time_s < eager.step_time_s / 2
    assert graphs.time["compute"] == pytest.approx(eager.time["compute"])


def test_larger_batches_hide_the_host() -> None:
    small, large = estimate(), estimate(micro_batch=64)
    assert large.time.get("launch", 0.0) < small.time["launch"] / 2


def pipelined(stack: str, nodes: int, pipeline: int, num_microbatches: int = 8, tensor: int = 8) -> Estimate:
    data = nodes * 8 // (pipeline * tensor)
    job = Job(global_batch=num_microbatches * data, seq_len=256, stack=stack)
    plan = Parallelism(data=data, tensor=tensor, pipeline=pipeline, num_microbatches=num_microbatches)
    return Evaluator(load_model("llama-3.2-1b"), load_cluster(f"dgx-h100:{nodes}"), job).estimate(plan)


@pytest.mark.parametrize(("pipeline", "neighbours"), [(2, 1), (4, 2), (8, 2)])
def test_polling_costs_each_tensor_handed_on_or_received_both_ways(pipeline: int, neighbours: int) -> None:
    each = load_software("nanotron-polling").handover_wait
    found = pipelined("nanotron-polling", 8, pipeline)
    filling = (pipeline - 1) / 2
    assert found.time["stage_wait"] == pytest.approx((8 + filling) * 2 * neighbours * each)
    assert "stage_wait" not in pipelined("nanotron", 8, pipeline).time


def test_without_a_pipeline_nothing_is_polled_for() -> None:
    assert "stage_wait" not in pipelined("nanotron-polling", 1, 1).time


def test_checked_collectives_cost_the_host_each_rank_of_them() -> None:
    """A layer gathers and scatters around attention and MLP, both ways, and gathers their inputs once more."""
    software, layers, ends, ranks, num_microbatches = load_software("nanotron-checked"), 16, 6, 8, 8
    # Sequences are so short that the host is all that takes time, checks or not.
    free, checked = (pipelined(stack, 1, 1).step_time_s for stack in ("nanotron", "nanotron-checked"))
    collectives = (checked - free) / (num_microbatches * ranks * software.host_check)
    assert collectives == pytest.approx(10 * layers + ends, rel=0.02)


def test_pipelines_that_poll_have_their_collectives_checked_too() -> None:
    assert load_software("nanotron-polling").host_check == load_software("nanotron-checked").host_check


def test_adding_gradients_up_takes_their_traffic_every_micro_batch() -> None:
    """nanotron reads a bf16 gradient and its fp32 sum, and writes the sum: 10 bytes per parameter."""
    job = Job(global_batch=1, seq_len=1024, stack="nanotron")
    evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:1"), job)
    plan = Parallelism(tensor=2)
    adds = evaluator.pricer(plan)
    fused = evaluator.software.model_copy(update={"accumulated_bytes": 0.0})
    without = dataclasses.replace(adds, software=fused, known={}, tables={})
    block = evaluator.graph.block[evaluator.main_layer]
    layout = evaluator.assignment(plan, block.name, {})

    def weight_seconds(pricer: Pricer) -> float:
        return sum(pricer.op(block, op, layout[op.name]).backward_weight for op in block.ops)

    parameters = 60_821_504 - 2 * 2048  # of one layer, its norms in whole
    bandwidth = evaluator.cluster.device.memory_bandwidth * evaluator.cluster.device.efficiency.memory
    expected = 10 * (parameters / 2 + 2 * 2048) / bandwidth
    assert weight_seconds(adds) - weight_seconds(without) == pytest.approx(expected, rel=0.2)


def test_nothing_hides_the_steps_of_a_ring_over_nodes() -> None:
    """A tensor group over nodes with EFA waits for every step of a ring, however long its products are."""
    cluster = load_cluster("p5.48xlarge:2")
    network = cluster.links[-1]
    free = cluster.model_copy(
        update={"links": (*cluster.links[:-1], network.model_copy(update={"ring_step": 0.0}))}
    )

    def step_seconds(where: ClusterSpec, micro_batch: int) -> float:
        job = Job(global_batch=micro_batch, seq_len=4096, stack="nanotron")
        plan = Parallelism(tensor=16, micro_batch=micro_batch)
        return Evaluator(load_model("llama-2-7b"), where, job).estimate(plan).step_time_s

    small, large = (step_seconds(cluster, size) - step_seconds(free, size) for size in (16, 32))
    assert small == pytest.approx(large, rel=0.02)
    layers, steps = 32, 15
    per_layer = small / (layers * steps * network.ring_step)
    # A gather and a scatter around attention and MLP, both ways; their inputs once more; and the ends.
    assert 10 < per_layer < 10.5


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_nanotron_sums_gradients_of_zero_1_whole_and_after_the_backward(micro_batches: int) -> None:
    """One all-reduce of all fp32 gradients, one gather of bf16 weights, and the host's cutting and copying."""
    ranks, weights = 64, 1_235_814_400
    job = Job(global_batch=ranks * micro_batches, seq_len=2048, stack="nanotron")
    plan = Parallelism(data=ranks, num_microbatches=micro_batches, zero_stage=1, shard_degree=ranks)
    evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("p5.48xlarge:8"), job)
    estimate = evaluator.estimate(plan)
    share = 2 * (ranks - 1) / ranks
    assert estimate.communication["all_reduce"] == pytest.approx(share * 4 * weights)
    assert "reduce_scatter" not in estimate.communication
    group = evaluator.mesh(plan).group(("data",))
    tensors = 16 * 6 + 3  # two norms, QKV, output, gate with up and down; embedding, last norm and tied head
    moved = all_reduce(4 * weights, group).seconds + all_gather(2 * weights, group).seconds
    host = tensors * ranks * load_software("nanotron").host_part
    assert estimate.time["data"] == pytest.approx(moved + host, rel=0.01)


def test_internevo_broadcasts_the_weights_of_each_rank_in_turn() -> None:
    """Gradients hide behind the last backward, and slow it; 64 broadcasts of a 64th of the bf16 weights show."""
    ranks, weights = 64, 1_235_814_400
    job = Job(global_batch=4 * ranks, seq_len=8192, stack="internevo")
    plan = Parallelism(data=ranks, micro_batch=4, zero_stage=1, shard_degree=ranks)
    evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:8"), job)
    each = broadcast(2 * weights / ranks, evaluator.mesh(plan).group(("data",))).seconds
    slowed = evaluator.software.overlap_slowdown * evaluator.stages(plan)[0].sync.reduce
    assert evaluator.estimate(plan).time["data"] == pytest.approx(ranks * each + slowed, rel=0.01)


def test_a_gather_after_the_step_is_exposed_where_the_stack_does_not_overlap_it() -> None:
    def data_seconds(stack: str) -> float:
        job = Job(global_batch=64, seq_len=2048, stack=stack)
        plan = Parallelism(data=64, zero_stage=1, shard_degree=64)
        evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:8"), job)
        return evaluator.estimate(plan).time.get("data", 0.0)

    assert load_software("megatron-serial").overlap_gather < load_software("megatron").overlap_gather
    assert data_seconds("megatron-serial") > data_seconds("megatron") + 1e-3


def test_logits_stay_on_the_device() -> None:
    """Only layers' activations travel: the same with a vocabulary ten times as wide but for its products."""
    job = Job(global_batch=8, seq_len=8192, stack="jax-xla")
    model, cluster = load_model("llama-3.2-1b"), load_cluster("tpu-v6e:2x4")
    plan = Parallelism(data=8, zero_stage=3, shard_degree=8, recompute="full")
    evaluator = Evaluator(model, cluster, job)
    kept, moved = (
        evaluator.estimate(plan.model_copy(update={"offload": offload})) for offload in ((), ("activations",))
    )
    logits = 8192 * evaluator.graph.dims["vocab"] * 2 / cluster.device.host_bandwidth
    assert moved.step_time_s - kept.step_time_s < logits


@pytest.mark.parametrize(("precision", "width"), [("fp16", 2), ("bf16", 4)])
def test_megatron_sums_gradients_in_fp32_for_bfloat16_alone(precision: str, width: int) -> None:
    job = Job(global_batch=16, seq_len=1024, stack="megatron", precision=precision)
    evaluator = Evaluator(load_model("gpt2"), load_cluster("dgx-a100-80g:1"), job)
    sent = evaluator.estimate(Parallelism(data=8, num_microbatches=2)).communication
    assert sent == {"all_reduce": pytest.approx(2 * 7 / 8 * width * 124_439_808)}
