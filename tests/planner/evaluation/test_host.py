"""A host that issues kernels one by one bounds small layers from below."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

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
