"""The plan nearest to one that a target cannot express: what differs is said, and what it costs.

Degrees stay as they are. Everything else that the target refuses is replaced by what it has; of all such plans
that fit, the fastest is taken, as `planner.evaluation.evaluate` prices them.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.evaluation.cuts import with_cuts
from planner.exporters.limits import SHARDINGS, Aspect, Limits, refusals, refuse
from planner.exporters.reductions import as_reduced_by, priced_type
from planner.exporters.scans import unsplit
from planner.exporters.stacks import started
from planner.exporters.stages import cuts_of, num_layers
from planner.pipeline.generators import refusal
from planner.plans import Estimate, Parallelism, Plan
from planner.search.recommend import doubts, strains


class Mend(NamedTuple):
    """One way to make an aspect of a plan expressible."""

    words: str
    plan: Mapping[str, object] = {}
    """Fields of `Parallelism` to replace."""
    job: Mapping[str, object] = {}
    """Fields of `Job` to replace."""
    even: bool = False
    """Stages are cut evenly."""


KEEP = Mend("")
"""Nothing to mend."""


def _layout(plan: Plan, limits: Limits) -> Iterator[Mend]:
    yield Mend("operators split as in Megatron's layout")


def _stages(plan: Plan, limits: Limits) -> Iterator[Mend]:
    p = plan.plan
    if num_layers(plan) % (p.pipeline * p.virtual_stages) == 0:
        yield Mend("equal stages", even=True)


def _recompute(plan: Plan, limits: Limits) -> Iterator[Mend]:
    for policy in limits.recompute:
        yield Mend(f"recompute {policy}", {"recompute": policy, "recompute_every": 1})


def _sequence(plan: Plan, limits: Limits) -> Iterator[Mend]:
    wanted = bool(limits.sequence_parallel)
    yield Mend(f"sequence parallelism {'on' if wanted else 'off'}", {"sequence_parallel": wanted})


def _schedule(plan: Plan, limits: Limits) -> Iterator[Mend]:
    p = plan.plan
    for name, v in itertools.product(limits.schedules, sorted({1, p.virtual_stages})):
        if not refusal(name, p.pipeline, v, p.num_microbatches):
            stages = f" with {v} stages a rank" if v != p.virtual_stages else ""
            yield Mend(
                f"schedule {name}{stages}",
                {"schedule": name, "virtual_stages": v},
                even=v != p.virtual_stages,
            )


def _states(plan: Plan, limits: Limits) -> Iterator[Mend]:
    ranks = plan.plan.data * plan.plan.context
    for stage in limits.zero_stages:
        shard = ranks if stage else 1
        fields = {"zero_stage": stage, "sharding": SHARDINGS[stage], "shard_degree": shard}
        yield Mend(f"ZeRO {stage} over {shard} ranks", {**fields, "replicate_degree": ranks // shard})


def _experts(plan: Plan, limits: Limits) -> Iterator[Mend]:
    over = not plan.plan.experts_over_tensor
    words = "whole experts on" if over else "parts of every expert on"
    yield Mend(f"{words} each tensor rank", {"experts_over_tensor": over})


def _loss(plan: Plan, limits: Limits) -> Iterator[Mend]:
    yield Mend("the whole logits at once", job={"fused_loss": False})


MENDS: Mapping[Aspect, Callable[[Plan, Limits], Iterator[Mend]]] = MappingProxyType(
    {
        "layout": _layout,
        "stages": _stages,
        "recompute": _recompute,
        "sequence": _sequence,
        "schedule": _schedule,
        "states": _states,
        "loss": _loss,
        "experts": _experts,
    }
)
"""Aspect -> ways to mend it; the others decide what is trained, on how many devices, or were asked for, and stay."""


SPARE: tuple[Aspect, ...] = ("states", "sequence", "experts", "recompute")
"""Aspects that are changed, too, where what has to be changed is not enough: rules of a single target may refuse
together what `Limits` allow of the first three, and recomputation makes room."""


def nearest_within(plan: Plan, target: str, limits: Limits, export: Callable[[Plan], object]) -> Plan:
    """``plan`` itself where ``target`` can express it, else the fastest plan of the same degrees that it can.

    ``export`` raises ``Unsupported`` where the target has rules beyond ``limits``. The answer's estimate is today's,
    and its warnings are of the answer, the last of what was changed and the loss of speed. Raises ``Unsupported`` where
    there is none: the degrees are the obstacle, or nothing expressible fits.
    """
    found = refusals(plan, limits)
    refuse(target, tuple(r.reason for r in found if r.aspect not in MENDS))
    why = "" if found else _refusal(plan, export)
    if not found and not why and as_reduced_by(plan, target) is plan:
        return plan
    aspects = tuple(dict.fromkeys(r.aspect for r in found))
    options = [tuple(MENDS[aspect](plan, limits)) for aspect in aspects]
    spare = [(KEEP, *MENDS[aspect](plan, limits)) for aspect in SPARE if aspect not in aspects]
    priced = _priced(plan, target, limits, options, export)
    priced = priced or _priced(plan, target, limits, [*options, *spare], export)
    if not priced:
        raise _none_fits(plan, target, limits, why or _lacking(plan, target, limits), aspects)
    best, mends = min(priced, key=lambda entry: _seconds(entry[0]))
    return _noted(plan, best, target, [mend.words for mend in mends if mend.words])


def _lacking(plan: Plan, target: str, limits: Limits) -> str:
    """What keeps the plan from being written as it is."""
    if found := refusals(plan, limits):
        return f"target {target} cannot express " + "; nor ".join(r.reason for r in found)
    return f"target {target} reduces gradients in {priced_type(as_reduced_by(plan, target))}, not {priced_type(plan)}"


def _none_fits(
    plan: Plan, target: str, limits: Limits, reason: str, aspects: Sequence[Aspect]
) -> Unsupported:
    """The refusal, and what to plan with instead."""
    stacks = started(plan, target)
    own = ""
    if plan.job.stack not in stacks:
        own = f" as {plan.job.stack} runs it; plan with --stack {stacks[0]}"
    elif "recompute" in aspects:
        own = f"; plan with --recompute {' or '.join(limits.recompute)}"
    return Unsupported(f"{reason}; no plan of the same degrees that it can express fits{own}")


def _noted(plan: Plan, best: Plan, target: str, changes: Sequence[str]) -> Plan:
    """``best`` with what is to be said of it, and last what was changed in ``plan``, and the loss of speed.

    What was said of ``plan`` goes with it: how much memory is left, and what would have made it faster.
    """
    before, after = priced_type(plan), priced_type(best)
    words = ", ".join([*changes, *([f"gradients reduced in {after}"] if after != before else [])])
    then, now = plan.estimate or evaluate(plan), best.estimate or evaluate(best)
    speed = _loss_of_speed(then, now.step_time_s)
    speed += _planned_for(plan, best) if now.step_time_s > then.step_time_s else ""
    own = dict.fromkeys((*doubts(best), *strains(now), *unsplit(best)))
    warnings = (*own, f"changed for target {target}: {words}; {speed}")
    nothing: dict[str, object] = {
        "explanation": "",
        "alternatives": (),
        "optimality": None,
        "faster_with": (),
    }
    return best.model_copy(update={"warnings": warnings, **nothing})


def _planned_for(plan: Plan, best: Plan) -> str:
    """How to have degrees that were searched with what all stages recompute now, where they were not."""
    policy = best.plan.recompute
    own = {stage.recompute or plan.plan.recompute for stage in plan.plan.stages} or {plan.plan.recompute}
    if own == {policy}:
        return ""
    return f"; planned with --recompute {policy} from the start, other degrees may be faster"


def _priced(
    plan: Plan,
    target: str,
    limits: Limits,
    options: Sequence[Sequence[Mend]],
    export: Callable[[Plan], object],
) -> list[tuple[Plan, tuple[Mend, ...]]]:
    """Expressible plans with their estimates: those that leave the job's headroom, else all that fit."""
    found = []
    for mends in itertools.product(*options):
        candidate = as_reduced_by(_mended(plan, mends), target)
        if not refusals(candidate, limits) and not _refusal(candidate, export):
            found.append((candidate.model_copy(update={"estimate": evaluate(candidate)}), mends))
    roomy = [entry for entry in found if _share(entry[0]) <= 1 - plan.job.memory_headroom]
    return roomy or [entry for entry in found if _share(entry[0]) <= 1]


def _refusal(plan: Plan, export: Callable[[Plan], object]) -> str:
    """Why ``export`` refuses the plan, or nothing."""
    try:
        export(plan)
    except Unsupported as error:
        return str(error)
    return ""


def _share(plan: Plan) -> float:
    """Memory over what the device has."""
    return plan.estimate.memory_bytes / plan.estimate.memory_limit_bytes if plan.estimate else float("inf")


def _seconds(plan: Plan) -> float:
    return plan.estimate.step_time_s if plan.estimate else float("inf")


def _loss_of_speed(before: Estimate, after: float) -> str:
    change = after / before.step_time_s - 1
    word = "slower" if change >= 0 else "faster"
    return f"predicted {after:.4g} s a step instead of {before.step_time_s:.4g} ({abs(change):.1%} {word})"


def _mended(plan: Plan, mends: tuple[Mend, ...]) -> Plan:
    """``plan`` after ``mends``; stages keep their cuts unless one evens them, and lose their own choices.

    Without any it is ``plan`` itself.
    """
    if all(mend is KEEP for mend in mends):
        return plan
    fields: dict[str, object] = {}
    for mend in mends:
        fields |= mend.plan
    job = plan.job.model_copy(update={name: value for mend in mends for name, value in mend.job.items()})
    changed = Parallelism.model_validate({**plan.plan.model_dump(exclude={"stages"}), **fields})
    bare = plan.model_copy(update={"job": job, "plan": changed})
    cuts = cuts_of(bare if any(mend.even for mend in mends) else plan)
    return bare.model_copy(update={"plan": with_cuts(changed, num_layers(plan), cuts)})
