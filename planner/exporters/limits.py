"""What a target can say of a plan, as data: `Limits`; what it cannot, as sentences: `refusals`.

The same record tells an exporter what to refuse, `planner.exporters.nearest` what to change, and
`planner.analysis.advice` where to search.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from cluster_specs.software import Axis
from planner.errors import Unsupported
from planner.evaluation.cuts import sizes_of
from planner.exporters.stages import cuts_of, departures, has_experts, policies_of
from planner.plans import Plan

Aspect = Literal[
    "axes", "precision", "optimizer", "weights", "layout", "stages", "recompute", "sequence", "schedule",
    "states", "offload", "loss", "experts",
]  # fmt: skip

NOTHING: Mapping[str, str] = MappingProxyType({})

SHARDINGS = MappingProxyType({0: "NO_SHARD", 1: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"})
"""Sharding over all data-parallel ranks, by ZeRO stage."""


class Limits(NamedTuple):
    """What a target can express; mappings go from our words to the target's."""

    zero_stages: tuple[int, ...]
    recompute: Mapping[str, str]
    precision: Mapping[str, str]
    optimizers: Mapping[str, str]
    axes: tuple[Axis, ...] = ()
    """Axes besides ``data`` that may be larger than 1."""
    schedules: Mapping[str, str] = NOTHING
    hybrid: tuple[int, ...] = ()
    """ZeRO stages whose states may be sharded over a part of the data-parallel ranks."""
    uneven_stages: bool = False
    sequence_parallel: bool | None = None
    """What tensor parallelism does with norms and residuals here; None is as asked."""
    experts_over_context: bool = False
    """Experts may have more ranks than there are data ranks."""
    experts_over_tensor: bool | None = False
    """What tensor parallelism does with experts: gives each rank whole ones, or parts of each; None is as asked."""
    offload: tuple[str, ...] = ()
    fused_loss: bool = False
    """A loss in chunks can be asked for, or is the training script's own affair."""
    every: bool = False
    """Full recomputation can be asked for in every so many layers only."""
    half_weights: bool = False
    """Training without fp32 copies of the weights can be asked for."""


def lacking_axes(limits: Limits) -> tuple[Axis, ...]:
    """Axes over which the target splits nothing."""
    return tuple(axis for axis in get_args(Axis) if axis not in limits.axes)


class Refusal(NamedTuple):
    """Something of a plan that a target cannot say."""

    aspect: Aspect
    reason: str


def _axes(plan: Plan, limits: Limits) -> Iterator[str]:
    folded = plan.plan.context_experts > 1
    if folded and "expert" in limits.axes and not limits.experts_over_context:
        yield f"experts over context ranks (plan again with an --expert that divides data {plan.plan.data})"
    for axis in lacking_axes(limits):
        if getattr(plan.plan, axis) > 1:
            yield (
                f"{axis} parallelism (the plan has {axis} {getattr(plan.plan, axis)}; "
                f"plan again with --{axis} 1)"
            )


def _precision(plan: Plan, limits: Limits) -> Iterator[str]:
    if plan.job.precision not in limits.precision:
        yield f"precision {plan.job.precision} (it has {', '.join(limits.precision)})"


def _optimizer(plan: Plan, limits: Limits) -> Iterator[str]:
    if plan.job.optimizer not in limits.optimizers:
        yield f"optimizer {plan.job.optimizer} (it has {', '.join(limits.optimizers)})"


def _weights(plan: Plan, limits: Limits) -> Iterator[str]:
    if plan.job.precision != "fp32" and not plan.job.master_weights and not limits.half_weights:
        yield f"{plan.job.precision} weights without fp32 copies (plan with --master-weights)"


def _layout(plan: Plan, limits: Limits) -> Iterator[str]:
    found = sorted(set(departures(plan)))
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        yield f"operators split in another way than Megatron's layout ({shown})"


def _stages(plan: Plan, limits: Limits) -> Iterator[str]:
    sizes = sizes_of(cuts_of(plan))
    if not limits.uneven_stages and len(set(sizes)) > 1:
        yield f"uneven stages ({len(sizes)} of {min(sizes)} to {max(sizes)} layers)"


def _recompute(plan: Plan, limits: Limits) -> Iterator[str]:
    policies = policies_of(plan.plan)
    if len(policies) > 1:
        yield f"recomputation by stage ({', '.join(sorted(policies))})"
    every = plan.plan.recompute_every
    if every > 1 and not (limits.every and policies == {"full"}):
        yield f"recomputation in one of {every} layers only"
    for policy in sorted(policies - set(limits.recompute)):
        yield f"recompute {policy} (it has {', '.join(limits.recompute)})"


def _sequence(plan: Plan, limits: Limits) -> Iterator[str]:
    wanted, p = limits.sequence_parallel, plan.plan
    if p.tensor > 1 and wanted is not None and p.sequence_parallel != wanted:
        yield f"tensor parallelism {'without' if wanted else 'with'} sequence parallelism"


def _schedule(plan: Plan, limits: Limits) -> Iterator[str]:
    if plan.plan.pipeline > 1 and "pipeline" in limits.axes and plan.plan.schedule not in limits.schedules:
        yield f"schedule {plan.plan.schedule} (it has {', '.join(limits.schedules)})"


def _states(plan: Plan, limits: Limits) -> Iterator[str]:
    p = plan.plan
    ranks = p.data * p.context
    if ranks == 1:
        return
    if p.zero_stage not in limits.zero_stages:
        yield f"ZeRO {p.zero_stage} (it has {', '.join(map(str, limits.zero_stages))})"
    elif p.zero_stage and p.shard_degree < ranks and p.zero_stage not in limits.hybrid:
        yield f"ZeRO {p.zero_stage} over {p.shard_degree} of {ranks} ranks (it shards over all of them)"


def _offload(plan: Plan, limits: Limits) -> Iterator[str]:
    for what in sorted(set(plan.plan.offload) - set(limits.offload)):
        yield f"offload of the {what} (it has {', '.join(limits.offload) or 'none'})"


def _experts(plan: Plan, limits: Limits) -> Iterator[str]:
    wanted, p = limits.experts_over_tensor, plan.plan
    if p.tensor > 1 and wanted is not None and p.experts_over_tensor != wanted and has_experts(plan):
        yield "tensor ranks with " + ("parts of every expert" if wanted else "whole experts")


def _loss(plan: Plan, limits: Limits) -> Iterator[str]:
    if plan.job.fused_loss and not limits.fused_loss:
        yield "a loss computed in chunks"


CHECKS: Mapping[Aspect, Callable[[Plan, Limits], Iterator[str]]] = MappingProxyType(
    {
        "axes": _axes,
        "precision": _precision,
        "optimizer": _optimizer,
        "weights": _weights,
        "layout": _layout,
        "stages": _stages,
        "recompute": _recompute,
        "sequence": _sequence,
        "schedule": _schedule,
        "states": _states,
        "offload": _offload,
        "loss": _loss,
        "experts": _experts,
    }
)


def refusals(plan: Plan, limits: Limits) -> tuple[Refusal, ...]:
    """Everything of ``plan`` that a target with ``limits`` cannot say."""
    return tuple(
        Refusal(aspect, reason) for aspect, check in CHECKS.items() for reason in check(plan, limits)
    )


def refuse(target: str, reasons: Iterator[str] | tuple[str, ...]) -> None:
    """Raise ``Unsupported`` with all ``reasons``, if there are any."""
    found = tuple(reasons)
    if found:
        raise Unsupported(f"target {target} cannot express " + "; nor ".join(found))


def check_limits(plan: Plan, target: str, limits: Limits) -> None:
    """Raise ``Unsupported`` that names everything which ``target`` cannot say."""
    refuse(target, tuple(refusal.reason for refusal in refusals(plan, limits)))


def expresses(limits: Limits) -> tuple[str, ...]:
    """``limits`` in words, for the catalogue of targets."""
    lines = [
        ", ".join(("data", *limits.axes)) + " parallelism",
        "ZeRO " + ", ".join(map(str, limits.zero_stages))
        + (f"; hybrid sharding of ZeRO {', '.join(map(str, limits.hybrid))}" if limits.hybrid else ""),
        "recompute " + ", ".join(limits.recompute),
        "precision " + ", ".join(limits.precision),
    ]  # fmt: skip
    if limits.schedules:
        stages = "stages of any size" if limits.uneven_stages else "equal stages"
        lines.append(f"schedules {', '.join(limits.schedules)}; {stages}")
    if limits.offload:
        lines.append("offload of " + " and ".join(limits.offload))
    return tuple(lines)


def refused(limits: Limits) -> tuple[str, ...]:
    """What no plan may have, in words, for the catalogue of targets."""
    axes = lacking_axes(limits)
    stages = [str(stage) for stage in range(4) if stage not in limits.zero_stages]
    lines = [f"{', '.join(axes)} parallelism"] if axes else []
    lines += [f"ZeRO {', '.join(stages)}"] if stages else []
    lines += ["uneven stages"] if limits.schedules and not limits.uneven_stages else []
    return (*lines, "recomputation by stage", "operators split in another way than Megatron's layout")
