"""What PyTorch's allocator holds beside live tensors, where no replay says it."""

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

LAYER = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
WHOLE = 6_738_415_616
"""Parameters of Llama-2-7B, and of a layer of it."""


def test_buffers_of_gathers_are_beside_weights_that_a_pipeline_keeps() -> None:
    """In 16 bits, of two layers: what is gathered is copied out of them. Gradients, in fp32, are reduced last."""
    plan = Parallelism(
        data=8, pipeline=2, num_microbatches=4, zero_stage=2, shard_degree=8, sharding="SHARD_GRAD_OP", recompute="full"
    )  # fmt: skip
    job = Job(global_batch=32, seq_len=4096)
    found = Evaluator(load_model("llama-2-7b"), load_cluster("dgx-h100:2"), job).estimate(plan)
    assert found.reserved_bytes - found.tensor_bytes > 2 * 2 * LAYER + 4 * WHOLE / 2 / 8
