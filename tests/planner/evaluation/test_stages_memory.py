"""Live tensors of every stage of PyTorch's pipelines, as its tracker counts them (benchmarks/tracking_stages.py)."""

import pytest
from memory_rows import rows_of

from planner.evaluation import Evaluator
from planner.evaluation.memory import DeviceMemory, memory_by_rank
from planner.runs import parse_run, plan_from_run

TRACKED = rows_of("torch_stages.jsonl")

AT_ONCE = {
    "torch-stages/7b-8/pp4-dp4-none-2048-m8-gpipe": 0.015,
    "torch-stages/7b-8/pp2-dp4-full-4096-m6-gpipe": 0.02,
    "torch-stages/1b-8/pp4-dp2-none-4096-m4": 0.01,
}
"""Steps of which some rank has all micro-batches in flight at once -> tolerance."""


def by_rank(run: str) -> dict[int, DeviceMemory]:
    plan, _ = plan_from_run(parse_run(TRACKED[run]))
    evaluator = Evaluator(plan.model, plan.cluster, plan.job)
    parallelism = plan.plan
    mesh, stages = evaluator.mesh(parallelism), evaluator.stages(parallelism)
    return dict(memory_by_rank(evaluator.setting, parallelism, mesh, stages))


@pytest.mark.parametrize(("run", "tolerance"), AT_ONCE.items())
def test_all_in_flight_and_all_sums_are_not_there_at_once(run: str, tolerance: float) -> None:
    measured = TRACKED[run]["measured"]["tensor_gib_by_stage"]
    for rank, memory in by_rank(run).items():
        assert memory.tensors / 2**30 == pytest.approx(measured[rank], rel=tolerance)
