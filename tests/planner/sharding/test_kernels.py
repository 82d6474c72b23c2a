"""Experts' layers as fused kernels spare what passed over memory between their products, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.evaluation import evaluate
from planner.plans import Plan
from planner.runs.mapping import plan_from_run

ROWS = (Path(__file__).parents[2] / "published" / "runs_gpu.jsonl").read_text().splitlines()
QWEN = next(
    row for row in map(json.loads, ROWS) if row["id"].startswith("bridge/26.06/qwen3_30b_a3b/DGX-GB200")
)


def compute(**changes: Any) -> float:
    """Seconds of compute of Qwen3-30B's step on eight GB200, of the same kernel of attention in all."""
    plan = plan_from_run(QWEN)[0]
    job = plan.job.model_copy(update={"attention": "native", **changes})
    return evaluate(Plan(model=plan.model, cluster=plan.cluster, job=job, plan=plan.plan)).time["compute"]


def test_fused_experts_spare_activations_and_casts() -> None:
    """Of 131,072 rows of 768: 1.5 passes of the activation both ways, and four bytes for each cast element."""
    activation = 1.5 * ((2 + 1) + (2 * 2 + 1)) * 2
    casts = 4 * (1 + 2)
    spared = 48 * 16 * 131_072 * 768 * (activation + casts) / (8e12 * 0.8)
    assert compute(stack="nemo-25.11") - compute() == pytest.approx(spared, rel=0.01)


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"cuda_graphs": False}])
def test_other_types_and_steps_that_the_host_issues_have_kernels_of_their_own(
    changes: dict[str, Any],
) -> None:
    assert compute(**changes) == pytest.approx(compute(stack="nemo-25.11", **changes))
