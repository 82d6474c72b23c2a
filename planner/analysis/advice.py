"""What to change in an existing configuration: the best plan that its framework can express, beside it."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from cluster_specs.record import Record
from cluster_specs.units import format_change
from planner.analysis.comparison import Comparison, compare
from planner.errors import Infeasible, Unsupported
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.exporters.limits import Limits, lacking_axes
from planner.exporters.registry import LIMITS, nearest
from planner.exporters.stages import normal_form
from planner.importers.registry import Imported
from planner.pipeline.generators import SCHEDULES
from planner.plans import Pins, Plan, Sharding
from planner.search import plan as search
from planner.search.recommend import NAMED
from planner.search.space import SEARCHED_POLICIES

Progress = Callable[[int, int], None]

SHARDINGS: dict[int, tuple[Sharding, ...]] = {
    0: ("NO_SHARD",),
    1: ("NO_SHARD",),
    2: ("SHARD_GRAD_OP",),
    3: ("FULL_SHARD", "HYBRID_SHARD"),
}
"""ZeRO stage -> the shardings that are searched for it."""


FLAT_SCHEDULES = {name for name, entry in SCHEDULES.items() if entry.stages_per_rank == (1, 1)}
"""Schedules with one stage a rank."""


class Advice(Record):
    """An imported configuration, the best that its framework can do instead, and what that gains."""

    target: str
    """The framework: the name of an export target."""
    current: Plan
    best: Plan
    """The same as ``current`` where nothing better was found."""
    comparison: Comparison
    """A is ``current``, B is ``best``."""
    gain: float
    """Throughput of ``best`` over that of ``current``, minus one."""
    verdict: str
    """What to do, in a sentence."""


def advise(imported: Imported, progress: Progress | None = None) -> Advice:
    """The best plan for the same model, job and cluster that the configuration's framework can express.

    Raises ``Infeasible`` where neither the configuration nor anything else fits.
    """
    target = imported.format.target
    current = imported.plan.model_copy(update={"estimate": evaluate(imported.plan)})
    found = _best(current, target, LIMITS[target], progress)
    best = found if found is not None and _is_better(found, current) else current
    comparison = compare(current, best)
    return Advice(
        target=target,
        current=current,
        best=best,
        comparison=comparison,
        gain=comparison.tokens_per_s_ratio - 1,
        verdict=_verdict(current, best, comparison),
    )


def _best(current: Plan, target: str, limits: Limits, progress: Progress | None) -> Plan | None:
    """The fastest expressible plan over all searches; None where every search finds only what does not fit."""
    found: list[Plan] = []
    failure: Infeasible | None = None
    for pins in pins_within(Evaluator(current.model, current.cluster, current.job), limits):
        try:
            best = search(current.model, current.cluster, current.job, pins, progress=progress)
            expressible = nearest(best, target)
            found.append(expressible.model_copy(update={"plan": normal_form(expressible)}))
        except Infeasible as error:
            failure = error
        except Unsupported:
            continue  # the search's answer has no expressible neighbour that fits
    if not found and failure is not None and not (current.estimate and current.estimate.fits):
        raise failure
    priced = [p if p.estimate else p.model_copy(update={"estimate": evaluate(p)}) for p in found]
    return max(priced, key=_throughput, default=None)


def _throughput(plan: Plan) -> float:
    return plan.estimate.tokens_per_s if plan.estimate else 0.0


def _is_better(plan: Plan, other: Plan) -> bool:
    if plan.estimate is None or other.estimate is None:
        return False
    if plan.estimate.fits != other.estimate.fits:
        return plan.estimate.fits
    return _throughput(plan) > _throughput(other)


def pins_within(evaluator: Evaluator, limits: Limits) -> Iterator[Pins]:
    """Pins that keep the search inside ``limits``; several where one pin cannot say it."""
    fixed = {str(axis): 1 for axis in lacking_axes(limits)}
    if "pipeline" in limits.axes and set(limits.schedules) <= FLAT_SCHEDULES:
        fixed["virtual_stages"] = 1
    states = _states(evaluator.software.zero_stages, limits)
    for policy, (stage, sharding) in itertools.product(_policies(limits), states):
        yield Pins.model_validate({**fixed, "recompute": policy, "zero_stage": stage, "sharding": sharding})


def _policies(limits: Limits) -> list[str | None]:
    """None where the search looks only at policies that can be said; else each of those."""
    return [None] if set(SEARCHED_POLICIES) <= set(limits.recompute) else list(limits.recompute)


def _states(offered: Sequence[int], limits: Limits) -> list[tuple[int | None, Sharding | None]]:
    """ZeRO stages and shardings to pin, or none where the stack offers nothing else."""
    whole = {(stage, sharding) for stage in offered for sharding in SHARDINGS[stage]}
    allowed = [
        (stage, sharding)
        for stage, sharding in sorted(whole)
        if stage in limits.zero_stages and (sharding != "HYBRID_SHARD" or stage in limits.hybrid)
    ]
    return [(None, None)] if len(allowed) == len(whole) else list(allowed)


HEADLINES = frozenset({*NAMED, "offload"})
"""Choices that the verdict names; the comparison has all."""


def _verdict(current: Plan, best: Plan, comparison: Comparison) -> str:
    fits = current.estimate is not None and current.estimate.fits
    if best is current:
        misfit = "" if fits else " It is not predicted to fit, and nothing else is."
        return f"Keep it: nothing that this framework can express is predicted to be faster.{misfit}"
    changes = ", ".join(
        f"{choice.name.replace('_', ' ')} {_shown(choice.a)} -> {_shown(choice.b)}"
        for choice in comparison.choices
        if choice.name in HEADLINES
    )
    speed = f"{format_change(comparison.tokens_per_s_ratio - 1)} tokens/s"
    devices = ""
    if current.plan.num_devices != best.plan.num_devices:
        devices = f" on {best.plan.num_devices} devices instead of {current.plan.num_devices}"
    fitting = "" if fits else ", and it fits, which the configuration does not"
    return f"Change {changes or 'the cuts between stages'}: {speed}{devices}{fitting}."


def _shown(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
