"""Layers with experts where kernel after kernel goes over the copies of tokens, and where they are repeated whole."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

STACK = "torch-compiled-loss"
LAYERS, TOKENS, TOPK, HIDDEN = 48, 32768, 8, 2048


def estimate(
    recompute: str = "none", stack: str = STACK, exchange: str = "all_to_all", ranks: int = 8, expert: int = 8
) -> Estimate:
    job = Job.model_validate(
        {"global_batch": 8 * ranks, "seq_len": 4096, "stack": stack, "token_exchange": exchange}
    )
    plan = Parallelism(
        data=ranks, expert=expert, zero_stage=3, shard_degree=ranks, micro_batch=8, recompute=recompute
    )
    return Evaluator(load_model("qwen3-30b-a3b"), load_cluster("dgx-b200:1"), job).estimate(plan)


def test_passes_over_the_copies_of_tokens_take_the_memory_s_time() -> None:
    """30 passes over eight copies of 32,768 tokens and two gradients of picked rows, in place of those of fused kernels
    over what each operator has."""
    kernels, fused = estimate(), estimate(exchange="deepep")
    device = load_cluster("dgx-b200:1").device
    copies = TOKENS * TOPK * HIDDEN * 2
    counted = load_software(STACK).routing_kernels
    assert counted is not None
    passes = counted.dispatch_forward + counted.dispatch_backward
    passes += counted.combine_forward + counted.combine_backward
    # Forward: tokens and copies, twice; backward: what is read counts twice.
    instead = load_software(STACK).routing_passes * (2 * (1 + 1 / TOPK) + (1 + 2 / TOPK) + (2 + 1 / TOPK))
    of_one_pass = LAYERS * copies / (device.memory_bandwidth * device.efficiency.memory)
    saved = kernels.time["compute"] - fused.time["compute"]
    picks = LAYERS * 2 * TOKENS * TOPK * HIDDEN * counted.picked_element  # instead of the dispatch's backward
    expected = (passes - counted.dispatch_backward - instead) * of_one_pass + picks
    assert saved == pytest.approx(expected, abs=0.02 * passes * of_one_pass)


@pytest.mark.parametrize(("rows", "columns", "seconds"), [(196608, 2048, 1.848e-3)])
def test_gradients_of_picked_rows_take_what_was_measured(rows: int, columns: int, seconds: float) -> None:
    """pytorch/ao pull request 4623, B200: longer than three passes over memory would."""
    counted, device = load_software(STACK).routing_kernels, load_cluster("dgx-b200:1").device
    assert counted is not None
    assert rows * columns * counted.picked_element == pytest.approx(seconds, rel=0.01)
    assert 3 * 2 * rows * columns / (device.memory_bandwidth * device.efficiency.memory) < seconds / 4


def test_layers_that_are_compiled_whole_go_over_copies_less_often() -> None:
    """15 passes where there were 36, of which three and six are gradients of one pick, and of two."""
    whole, apart = estimate(stack="torch-layers-whole", expert=1), estimate(expert=1)
    picked = load_software(STACK).routing_kernels
    assert picked is not None
    device = load_cluster("dgx-b200:1").device
    of_one_pass = TOKENS * TOPK * HIDDEN * 2 / (device.memory_bandwidth * device.efficiency.memory)
    pick = TOKENS * TOPK * HIDDEN * picked.picked_element
    saved = LAYERS * ((6 - 2 + 24 - 10) * of_one_pass + pick)
    assert apart.time["compute"] - whole.time["compute"] == pytest.approx(saved, rel=0.01)


def test_a_loss_that_is_compiled_alone_leaves_layers_as_they_are() -> None:
    """pytorch/torchtitan's configurations of DeepSeek-V3: time is saved at the loss, none in layers."""
    eager, alone, whole = (estimate(stack=stack) for stack in ("torch-eager", "torch-loss-alone", STACK))
    assert whole.time["compute"] < alone.time["compute"] < eager.time["compute"]
    loss = eager.time["compute"] - alone.time["compute"]
    logits = TOKENS * 151936 * 2
    device = load_cluster("dgx-b200:1").device
    of_one_pass = logits / (device.memory_bandwidth * device.efficiency.memory)
    passes = (7.0 - 1) + 2 * (5.5 - 1)  # read forward, read and written backward
    assert loss == pytest.approx(passes * of_one_pass, rel=0.02)


def test_layers_that_are_repeated_whole_send_everything_once_more() -> None:
    """There and back, each way, and again: both for a policy that keeps nothing, none where what arrives is kept."""
    sent = {
        policy: estimate(policy).communication["all_to_all"]
        for policy in ("none", "full", "alternate_local", "alternate")
    }
    assert sent["full"] == pytest.approx(6 / 4 * sent["none"])
    assert sent["alternate_local"] == pytest.approx(6 / 4 * sent["none"])
    assert sent["alternate"] == pytest.approx(sent["none"])


def test_ranks_that_gather_all_tokens_send_each_once_to_all_others() -> None:
    """Whatever number of experts a token has: gathered before experts and their gradients, scattered after either."""
    exchanged, gathered = (
        estimate(exchange=exchange, stack="torch-fsdp2") for exchange in ("all_to_all", "all_gather")
    )
    assert "all_to_all" not in gathered.communication
    each_way = 2 * LAYERS * (8 - 1) * TOKENS * HIDDEN * 2  # by 8 ranks
    for collective in ("all_gather", "reduce_scatter"):
        more = gathered.communication[collective] - exchanged.communication[collective]
        assert more == pytest.approx(each_way)
    assert 2 * each_way == pytest.approx(exchanged.communication["all_to_all"])  # as 8 copies over 8 ranks


def test_scatters_take_as_long_as_elements_are_added() -> None:
    """What experts make, and gradients of what they read; each instead of passes over copies and tokens."""
    scattered, gathered = estimate(stack="levanter-quack"), estimate(stack="levanter-sonic")
    device, stack = load_cluster("dgx-b200:1").device, load_software("levanter-quack")
    assert stack.scattered_rate is not None
    copies = TOKENS * TOPK * HIDDEN
    instead = stack.routing_passes * 2 * copies * ((1 + 1 / TOPK) + (1 + 2 / TOPK))
    instead /= device.memory_bandwidth * device.efficiency.memory
    expected = LAYERS * (2 * copies / stack.scattered_rate - instead)
    assert scattered.time["compute"] - gathered.time["compute"] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("stack", "device", "dispatch", "combine"),
    [
        ("levanter", "tpu-v5p:2x2x1", (23e-9, 75e-9), (75e-9, 23e-9)),
        ("jax-xla", "tpu-v5p:2x2x1", (23e-9, 23e-9), (23e-9, 23e-9)),
    ],
)
def test_tpus_go_from_row_to_row(
    stack: str, device: str, dispatch: tuple[float, float], combine: tuple[float, float]
) -> None:
    """Copies of tokens, 8 of 8,192 on each of 4 ranks: Levanter adds by index, MaxText takes rows either way."""
    job = Job.model_validate({"global_batch": 8, "seq_len": 4096, "stack": stack})
    plan = Parallelism(data=4, expert=1, zero_stage=3, shard_degree=4, micro_batch=2)
    evaluator = Evaluator(load_model("qwen3-30b-a3b"), load_cluster(device), job)
    pricer, block = evaluator.pricer(plan), next(b for b, n in evaluator.graph.instances() if n == LAYERS)
    assigned = evaluator.assignment(plan, block.name, {})
    for op in (op for op in block.ops if op.kind in ("dispatch", "combine")):
        forward, backward = dispatch if op.kind == "dispatch" else combine
        cost = pricer.op(block, op, assigned[op.name])
        assert cost.forward == pytest.approx(8 * 8192 * forward)
        assert cost.backward_input == pytest.approx(8 * 8192 * backward)


def test_a_dispatcher_that_sums_tokens_itself_leaves_nothing_to_scatter() -> None:
    scattered, gathered = (
        estimate(stack=stack, exchange="deepep") for stack in ("levanter-quack", "levanter-sonic")
    )
    assert scattered.time["compute"] == gathered.time["compute"]


def test_tokens_that_stay_where_they_are_leave_no_exchange_to_keep() -> None:
    """pytorch/torchtitan ``_get_default_save_ops``: all_to_all_single is listed, which one rank never calls."""
    kept, local = (
        estimate(policy, expert=1).memory["activations"] for policy in ("alternate", "alternate_local")
    )
    sent = estimate("alternate").memory["activations"] - estimate("alternate_local").memory["activations"]
    assert kept == local
    assert sent > LAYERS * TOKENS * TOPK * HIDDEN * 2


def test_stopping_early_spares_experts_last_product() -> None:
    """A third of what experts multiply, and its way back: torch-fsdp2 stops where nothing is read any more."""
    whole, early = estimate("full"), estimate("full", stack="torch-fsdp2")
    assert whole.communication["all_to_all"] == pytest.approx(6 / 5 * early.communication["all_to_all"])
    assert whole.time["recompute"] > 1.2 * early.time["recompute"]


def test_the_gradient_of_a_batched_sum_takes_as_much_longer_as_its_removal_saved() -> None:
    """For 16 sequences 4.5 ms a layer, or 6.5 of its whole backward, of the 6 to 9 ms that the kernel takes.

    Source: pytorch/torchtitan pull request 2466, Qwen3-30B-A3B on B200; here 8 sequences.
    """
    batched, fused = (estimate(stack=stack).time["compute"] for stack in ("torch-batched-combine", STACK))
    assert 4.5e-3 <= 2 * (batched - fused) / LAYERS <= 9e-3
