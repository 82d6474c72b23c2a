"""Live tensors by moment: totals of PyTorch's tracker, and what each habit of a stack adds."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator, evaluate
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run

ROWS = Path(__file__).parents[2] / "published" / "torch_memory.jsonl"
TRACKED: dict[str, Any] = {row["id"]: row for row in map(json.loads, ROWS.read_text().splitlines())}


@pytest.mark.parametrize(
    ("run", "phase"),
    [
        ("torch/8b-dp8-full", "loss"),
        ("torch/1b-dp8-none-mb1", "loss"),
        ("torch/1b-hsdp4x2", "loss"),
        ("torch/1b-untied-block", "loss"),
        ("torch/34b-dp64-tp2-full", "backward"),
        ("torch/70b-dp64-tp8-full", "backward"),
    ],
)
def test_the_tracker_saw_as_much_at_the_same_moment(run: str, phase: str) -> None:
    plan, _ = plan_from_run(parse_run(TRACKED[run]))
    estimate = evaluate(plan)
    assert estimate.tensor_bytes / 2**30 == pytest.approx(
        TRACKED[run]["measured"]["tensor_gib_per_gpu"], rel=0.015
    )
    assert estimate.peak_phase == phase


def estimate(stack: str, **changes: Any) -> Estimate:
    options = {"data": 8, "zero_stage": 1, "shard_degree": 8, "num_microbatches": 2} | changes
    plan = Parallelism(**options)
    job = Job(global_batch=8 * plan.num_microbatches, seq_len=2048, stack=stack)
    return Evaluator(load_model("llama-2-7b"), load_cluster("dgx-h100:1"), job).estimate(plan)


def test_stacks_that_cast_where_they_gather_keep_no_copy_in_16_bits() -> None:
    assert not load_software("torch-fsdp2").keeps_copy
    sharded = estimate("torch-fsdp2", zero_stage=3)
    assert "weights" not in sharded.memory
    kept = estimate("megatron")
    assert kept.memory["weights"] == pytest.approx(2 * 6_738_415_616, rel=1e-3)


def test_one_microbatch_leaves_sharded_gradients_out_of_the_peak() -> None:
    one = estimate("torch-fsdp2", zero_stage=3, num_microbatches=1)
    two = estimate("torch-fsdp2", zero_stage=3)
    assert "gradients" not in one.memory
    assert two.memory["gradients"] == pytest.approx(4 * 6_738_415_616 / 8, rel=1e-2)
