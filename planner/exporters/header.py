"""What every exported file says of itself: the plan in words, its predicted numbers, and who wrote it."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from cluster_specs.units import GIB
from planner.evaluation.setting import batch_name, describe_trained
from planner.models.catalog import counted
from planner.plans import Estimate, Plan


def _version() -> str:
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "(source tree)"


def _estimate(estimate: Estimate, fed: str) -> Iterator[str]:
    low, high = estimate.step_time_interval_s
    yield (
        f"predicted: {estimate.step_time_s:.4g} s a step ({low:.4g} to {high:.4g}), "
        f"{estimate.tokens_per_s:,.0f} {fed}/s, MFU {estimate.mfu:.1%}"
    )
    yield (
        f"memory of the fullest device: {estimate.memory_bytes / GIB:.1f} of "
        f"{estimate.memory_limit_bytes / GIB:.1f} GiB at its peak ({estimate.peak_phase})"
    )


def describe(plan: Plan) -> tuple[str, ...]:
    """Lines, without comment marks, that say what was planned, what it is predicted to do, and of what to beware."""
    p, job, fed = plan.plan, plan.job, counted(plan.model)
    inputs = "sequences" if fed == "tokens" else fed
    axes = ("data", "tensor", "pipeline", "context", "expert")
    lines = [
        f"Written by meshwright {_version()} from a plan of schema {plan.schema_version}.",
        f"model {plan.model.name}, {p.num_devices} devices of {plan.cluster.name}",
        f"job: {batch_name(plan.model, job)} a step, {job.precision}, {job.optimizer}",
        "degrees: " + ", ".join(f"{axis} {getattr(p, axis)}" for axis in axes),
        f"states: ZeRO {p.zero_stage} ({p.sharding}) over {p.shard_degree} ranks; recompute: {p.recompute}",
        f"micro-batch: {p.micro_batch} {inputs} a data-parallel rank, {p.num_microbatches} of them a step",
    ]
    if job.adapter is not None:
        lines.insert(3, f"trained: {describe_trained(plan.model, job)}")
    return (*lines, *(_estimate(plan.estimate, fed) if plan.estimate else ()), *plan.warnings)


def comments(plan: Plan) -> str:
    """`describe` as comment lines of Python, YAML or TOML."""
    return "\n".join(f"# {line}" for line in describe(plan))
