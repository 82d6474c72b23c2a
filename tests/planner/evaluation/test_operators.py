"""Operators of a plan, one by one: together they are the model's arithmetic, and none is above the roof."""

import pytest

from cluster_specs.catalog import load_cluster
from cost_models.roofline import peak
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.operators import operator_costs
from planner.models.catalog import load_model
from planner.operators import forward_flops
from planner.plans import Job, Parallelism, StagePlan

PLANS = {
    "data": Parallelism(data=8, num_microbatches=8),
    "tensor": Parallelism(data=2, tensor=4, num_microbatches=32),
    "context": Parallelism(data=2, tensor=2, context=2, micro_batch=2, num_microbatches=16),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt2"])
def test_together_they_are_the_forward_of_the_model(model: str, name: str) -> None:
    plan = PLANS[name]
    evaluator = Evaluator(load_model(model), load_cluster("dgx-h100:1"), Job(global_batch=64, seq_len=1024))
    costs = operator_costs(evaluator, plan)
    whole = sum(cost.flops * cost.instances for cost in costs) * plan.num_devices
    assert whole == pytest.approx(forward_flops(evaluator.graph, plan.micro_batch * plan.data), rel=1e-9)
    for cost in costs:
        assert cost.flops_per_second <= peak(evaluator.cluster.device, "bf16")
        assert cost.moved_bytes > 0


def test_a_product_moves_its_matrices_once() -> None:
    """The head of gpt2: 1024 x 768 times 768 x 50257 in two bytes each."""
    evaluator = Evaluator(load_model("gpt2"), load_cluster("dgx-h100:1"), Job(global_batch=8, seq_len=1024))
    head = next(c for c in operator_costs(evaluator, Parallelism(data=8)) if c.name == "lm_head")
    assert head.flops == 2 * 1024 * 768 * 50257
    assert head.moved_bytes == 2 * (1024 * 768 + 768 * 50257 + 1024 * 50257)


def test_a_sharding_written_in_the_plan_is_the_one_that_is_priced() -> None:
    evaluator = Evaluator(
        load_model("llama-3.2-1b"), load_cluster("dgx-h100:1"), Job(global_batch=64, seq_len=1024)
    )
    plan = Parallelism(data=2, tensor=4, num_microbatches=32)
    named = {c.name: c for c in operator_costs(evaluator, plan) if c.block == "layer"}
    layer = evaluator.assignment(plan, "layer", {})
    written = {op: dict(strategy) for op, strategy in layer.items()} | {"down": {"data": "batch"}}
    stage = StagePlan(
        blocks=(0, evaluator.graph.num_layers),
        devices=(0, 8),
        mesh={"tensor": 4, "data": 2},
        sharding={"layer": written},
    )
    costs = operator_costs(evaluator, plan.model_copy(update={"stages": (stage,)}))
    own = {c.name: c for c in costs if c.block == "layer"}
    assert own["down"].flops == 4 * named["down"].flops
    assert own["gate_up"] == named["gate_up"]


@pytest.mark.parametrize(
    ("stack", "per_logit"),
    [
        ("nanotron", 38),  # cast 2 + 4, maximum 4, difference 4 + 4, exponential 4 + 4, sum 4, quotient 4 + 4
        ("nemo", 3),
    ],
)
def test_a_loss_of_separate_kernels_moves_what_each_of_them_moves(stack: str, per_logit: float) -> None:
    job = Job(global_batch=8, seq_len=1024, stack=stack)
    evaluator = Evaluator(load_model("gpt2"), load_cluster("dgx-h100:1"), job)
    costs = operator_costs(evaluator, Parallelism(data=8))
    loss = next(c for c in costs if c.name == "loss")
    device = evaluator.cluster.device
    moved = loss.seconds * device.memory_bandwidth * device.efficiency.memory
    assert moved == pytest.approx(per_logit * 1024 * 50257, rel=1e-3)
