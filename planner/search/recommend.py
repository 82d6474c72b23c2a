"""From the search's outcome to the answer: stages written out, alternatives with reasons, the paragraph of why."""

from collections.abc import Mapping, Sequence

from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.software import SoftwareSpec
from cluster_specs.units import format_change, format_count, format_seconds
from planner.evaluation.beyond_stack import choices_beyond
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.setting import caveats, caveats_of
from planner.graph import Graph
from planner.pipeline.generators import schedule_label
from planner.plans import Alternative, Estimate, Objective, Parallelism, Pins, Plan
from planner.search.best_first import USUAL_TOP, Progress, Search
from planner.search.branches import Answer
from planner.search.finishing import finished_plans
from planner.search.pins import check_pins
from planner.search.space import scale_up_size


def recommended(
    evaluator: Evaluator, pins: Pins, objective: Objective, top: int, progress: Progress | None = None
) -> Plan:
    """The best plan of stages that are alike, and the next best; errors as `planner.search.plan`."""
    check_pins(evaluator, pins)
    return answer_of(Search(evaluator, pins, objective), top, progress)


def answer_of(search: Search, top: int, progress: Progress | None = None) -> Plan:
    """The same of a search that is yet to be made."""
    evaluator, objective = search.evaluator, search.objective
    outcome = search.run(max(top, USUAL_TOP), progress)  # whatever is shown, the first is the same
    best, *others = finished_plans(search, outcome)[:top]
    return Plan(
        model=evaluator.model,
        cluster=evaluator.whole,
        job=evaluator.job,
        plan=best.plan,
        estimate=best.estimate,
        optimality=outcome.optimality,
        alternatives=tuple(alternative(other, best.estimate, objective) for other in others),
        explanation=explanation(evaluator, best, others),
        warnings=warnings_of(
            best.plan, best.estimate, evaluator.software, evaluator.graph, evaluator.cluster.device
        ),
    )


NAMED = (
    "data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batch", "zero_stage", "sharding",
    "recompute", "schedule",
)  # fmt: skip
"""Choices by which a plan is told from another."""


def set_apart(other: Parallelism, best: Parallelism) -> str:
    """What sets ``other`` apart from ``best``, in words."""
    changed = [
        f"{name.replace('_', ' ')} {getattr(other, name)}"
        for name in NAMED
        if getattr(other, name) != getattr(best, name)
    ]
    return ", ".join(changed) or "the same degrees"


NOTABLE = 0.01
"""What a plan loses by is named down to this share of what it loses most by."""

GIVES_BACK = 0.1
"""What it gains most by is named, too, from this share of that on: without it the losses do not add up."""


def differences(estimate: Estimate, best: Estimate) -> list[tuple[str, float]]:
    """Parts of the step in which ``estimate`` differs from ``best`` [s], the largest loss first."""
    names = {*estimate.time, *best.time}
    parts = [(name, estimate.time.get(name, 0.0) - best.time.get(name, 0.0)) for name in names]
    return sorted(parts, key=lambda part: (-part[1], part[0]))


def alternative(other: Answer, best: Estimate, objective: Objective) -> Alternative:
    """A plan that is not the best one, with what it loses by."""
    slower = other.estimate.step_time_s / best.step_time_s - 1
    apart = differences(other.estimate, best)
    losses = [
        f"{name.replace('_', ' ')} +{format_seconds(s, 2)}"
        for name, s in apart[:2]
        if s > 0 and s >= NOTABLE * apart[0][1]
    ]
    gained, gain = apart[-1]
    if losses and -gain >= GIVES_BACK * apart[0][1]:
        losses.append(f"{gained.replace('_', ' ')} -{format_seconds(-gain, 2)}")
    reason = f"{format_change(slower)} step time: " + (", ".join(losses) or "no single part stands out")
    if objective != "time":
        reason += f"; {format_count(other.plan.num_devices, 'device')}"
    return Alternative(plan=other.plan, estimate=other.estimate, loses_because=reason)


_LIMITS: Mapping[str, str] = {
    "compute": "the arithmetic of the model itself",
    "recompute": "recomputation in the backward pass, the price of fitting in memory",
    "tensor": "tensor-parallel communication, which cannot hide behind compute",
    "context": "the exchange of keys and values between context-parallel ranks",
    "expert": "the all-to-all of tokens between experts",
    "data": "data-parallel communication that does not fit behind compute",
    "overlap_slowdown": "compute slowed by the communication beside it",
    "bubble": "the pipeline's bubble",
    "optimizer": "the optimizer step",
    "stragglers": "stragglers at this scale",
}


def explanation(evaluator: Evaluator, best: Answer, others: Sequence[Answer]) -> str:
    """One paragraph: why this plan, and what limits it."""
    return " ".join(
        [
            _why_degrees(evaluator, best.plan),
            why_memory(best.plan, best.estimate),
            what_limits(best.estimate),
            _next_best(best, others[0]) if others else "",
        ]
    )


def _where_tensor_ranks_are(cluster: ClusterSpec, tensor: int) -> str:
    """Whether the innermost ranks stay inside one domain of the fastest links."""
    inner = "the torus" if cluster.torus is not None else cluster.links[0].name
    domain = scale_up_size(cluster)
    if domain % tensor == 0:
        return f"stays on {inner}"
    outer = cluster.links if cluster.torus is not None else cluster.links[1:]
    crossed = next((link.name for link in outer if link.devices % tensor == 0), outer[-1].name)
    return f"crosses {crossed}, as {inner} joins {domain} devices"


def _why_degrees(evaluator: Evaluator, plan: Parallelism) -> str:
    cluster = evaluator.cluster
    used = []
    if plan.tensor > 1:
        used.append(f"tensor parallelism {plan.tensor} {_where_tensor_ranks_are(cluster, plan.tensor)}")
    if plan.context > 1:
        used.append(f"the sequence is split over {plan.context} ranks")
    if plan.expert_ranks > 1:
        over = " and ".join(
            name
            for name, holds in (
                ("data", plan.expert > 1),
                ("context", plan.context_experts > 1),
                ("tensor", plan.expert_ranks > plan.expert),
            )
            if holds
        )
        used.append(f"experts are spread over {plan.expert_ranks} {over} ranks")
    if plan.pipeline > 1:
        stages = f"{plan.pipeline} stages" + (
            f" of {plan.virtual_stages} parts" if plan.virtual_stages > 1 else ""
        )
        used.append(f"{stages} pass micro-batches on ({schedule_label(plan.schedule)})")
    if plan.data > 1:
        kinds = {
            "HYBRID_SHARD": f"states sharded over {plan.shard_degree} near ranks and replicated "
            f"{plan.replicate_degree} times",
            "FULL_SHARD": "weights and states fully sharded",
            "SHARD_GRAD_OP": "gradients and states sharded",
        }
        kind = kinds.get(
            plan.sharding, "optimizer states sharded" if plan.zero_stage else "states replicated"
        )
        used.append(f"{plan.data} data ranks, {kind}")
    return (
        f"On {format_count(plan.num_devices, 'device')} "
        + ("; ".join(used) if used else "one device does everything")
        + "."
    )


def why_memory(plan: Parallelism, estimate: Estimate) -> str:
    """How full the fullest device is, with what."""
    share = estimate.memory_bytes / estimate.memory_limit_bytes
    largest = max(estimate.memory, key=lambda name: estimate.memory[name])
    policy = {
        "none": "so nothing is recomputed",
        "full": "with every layer recomputed in the backward pass",
    }.get(plan.recompute, f"with {plan.recompute} recomputation")
    if any(stage.recompute not in (None, plan.recompute) for stage in plan.stages):
        policy = "with recomputation that differs from stage to stage"
    return (
        f"The fullest device uses {share:.0%} of its memory (mostly {largest.replace('_', ' ')}) at the "
        f"{estimate.peak_phase} peak, {policy}."
    )


def what_limits(estimate: Estimate) -> str:
    """Share of compute, and the largest loss beside it."""
    useful = estimate.time.get("compute", 0.0) / estimate.step_time_s
    rest = sorted(((s, n) for n, s in estimate.time.items() if n != "compute"), reverse=True)
    if not rest:
        return f"Compute is {useful:.0%} of the step."
    seconds, name = rest[0]
    return (
        f"Compute is {useful:.0%} of the step; the largest loss is {_LIMITS.get(name, name.replace('_', ' '))} "
        f"({seconds / estimate.step_time_s:.1%})."
    )


def _next_best(best: Answer, other: Answer) -> str:
    loss = other.estimate.step_time_s / best.estimate.step_time_s - 1
    slower = f"{format_change(abs(loss)).lstrip('+')} {'slower' if loss >= 0 else 'faster'}"
    name, seconds = differences(other.estimate, best.estimate)[0]
    part = name.replace("_", " ")
    apart = set_apart(other.plan, best.plan)
    return f"The next best ({apart}) is {slower}, mostly by {part} (+{format_seconds(seconds, 2)})."


def doubts(answer: Plan) -> tuple[str, ...]:
    """What the numbers of any plan rest on that nobody measured, or that its stack does not have.

    The first of what `warnings_of` says, for answers that are about more than one plan.
    """
    return tuple(dict.fromkeys((*caveats_of(answer), *answer.model.notes)))


def warnings_of(
    plan: Parallelism, estimate: Estimate, software: SoftwareSpec, graph: Graph, device: DeviceSpec
) -> tuple[str, ...]:
    """What the user should know before trusting the plan."""
    return (*choices_beyond(plan, software), *caveats(graph, software, device), *strains(estimate))


def strains(estimate: Estimate) -> tuple[str, ...]:
    """Where a plan is near a limit: little memory is left, or the network is waited for."""
    found = []
    free = 1 - estimate.memory_bytes / estimate.memory_limit_bytes
    if 0 <= free < 0.08:
        found.append(
            f"only {free:.1%} of device memory is left: fragmentation or longer batches may exceed it"
        )
    exposed = estimate.time.get("data", 0.0) / estimate.step_time_s
    if exposed > 0.2:
        found.append(
            f"{exposed:.0%} of the step waits for data-parallel communication: a faster network would pay"
        )
    return tuple(found)
