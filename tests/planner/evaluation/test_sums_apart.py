"""Modules that read one input and sum their parts of its gradient over tensor ranks each by itself."""

import pytest

from cluster_specs.catalog import load_cluster
from cost_models.collectives import wire_bytes
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

LAYERS, HIDDEN, SEQUENCE, MICROBATCHES, RANKS = 16, 2048, 4096, 2, 4


def summed_bytes(stack: str, sequence_parallel: bool = False, kind: str = "all_reduce") -> float:
    """Sent in all-reduces, or what ``kind`` says, by one of four tensor ranks of Llama 3.2 1B."""
    job = Job(global_batch=MICROBATCHES, seq_len=SEQUENCE, stack=stack)
    plan = Parallelism(tensor=RANKS, num_microbatches=MICROBATCHES, sequence_parallel=sequence_parallel)
    evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-a100-80g:1"), job)
    return evaluator.estimate(plan).communication.get(kind, 0.0)


@pytest.mark.parametrize(("stack", "more"), [("aleph-alpha-scaling", 1), ("atorch-deepspeed", 3)])
def test_each_module_sums_the_gradient_of_its_input(stack: str, more: int) -> None:
    """Where Megatron's two fused products sum twice a layer: gate and up apart, queries, keys and values too."""
    once = wire_bytes("all_reduce", 2 * SEQUENCE * HIDDEN, RANKS)
    difference = summed_bytes(stack) - summed_bytes("megatron-2022")
    assert difference == pytest.approx(MICROBATCHES * LAYERS * more * once)


def test_a_split_sequence_is_scattered_once() -> None:
    assert summed_bytes("aleph-alpha-scaling", True) == pytest.approx(summed_bytes("megatron", True))


def test_modules_that_gather_the_sequence_by_themselves_scatter_by_themselves() -> None:
    """Five products read what two norms make: three gradients a layer more are scattered, and no gather is added."""
    once = wire_bytes("reduce_scatter", 2 * SEQUENCE * HIDDEN, RANKS)
    apart, together = (summed_bytes(s, True, "reduce_scatter") for s in ("kempner-forge", "torch-fsdp2"))
    assert apart - together == pytest.approx(MICROBATCHES * LAYERS * 3 * once)
    assert summed_bytes("kempner-forge", True, "all_gather") == summed_bytes(
        "torch-fsdp2", True, "all_gather"
    )
