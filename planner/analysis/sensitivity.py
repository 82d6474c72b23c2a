"""What a plan's step time hangs on: the evaluator's answer with one number of the hardware a tenth better."""

from cluster_specs.changes import KNOBS, changed, knob_paths
from cluster_specs.record import Record
from planner.evaluation import evaluate
from planner.plans import Plan

BETTER = 1.1
"""A number that is a tenth better; times are divided by it."""

WORTH_NAMING = 0.001
"""Savings below this share of the step are not worth a line."""

FARTHEST = 16.0
"""The next bottleneck is looked for up to this many times the present number."""


class Sensitivity(Record):
    """One number of the hardware, and what it would bring if it were better."""

    number: str
    """Short name, one of ``cluster_specs.changes.KNOBS``."""
    what: str
    factor: float
    """By which the number was multiplied."""
    time_saved_fraction: float
    """Of the step, with the plan unchanged. More memory saves none: it takes another plan to use it."""


class Bottleneck(Record):
    """What limits the step now, and what would next."""

    now: str
    """The number whose improvement saves most."""
    next: str
    """The one that takes its place."""
    at_factor: float
    """Times the present number at which it does."""


def better(number: str, factor: float) -> str:
    """The change of a number that makes it better by ``factor``: latencies shrink."""
    return f"{1 / factor if number == 'latency' else factor!r}x"


def sensitivity(plan: Plan, factor: float = BETTER) -> tuple[Sensitivity, ...]:
    """Every number that the cluster has, the one that saves most first; the plan stays as it is.

    The plan is evaluated as it is written, so operators without a sharding have the usual one.
    """
    now = _seconds(plan, {})
    found = [
        Sensitivity(
            number=number,
            what=what,
            factor=1 / factor if number == "latency" else factor,
            time_saved_fraction=1 - _seconds(plan, {number: better(number, factor)}) / now,
        )
        for number, what in KNOBS.items()
        if knob_paths(plan.cluster, number)
    ]
    return tuple(sorted(found, key=lambda s: -s.time_saved_fraction))


def next_bottleneck(plan: Plan) -> Bottleneck | None:
    """The number that would matter most once the one that matters most now is good enough; None up to `FARTHEST`.

    The first is made better by tenths until another saves more.
    """
    first = sensitivity(plan)[0]
    factor = 1.0
    while factor < FARTHEST:
        factor *= BETTER
        cluster = changed(plan.cluster, {first.number: better(first.number, factor)})
        moved = plan.model_copy(update={"cluster": cluster})
        now = sensitivity(moved)[0]
        if now.number != first.number and now.time_saved_fraction >= WORTH_NAMING:
            return Bottleneck(now=first.number, next=now.number, at_factor=round(factor, 2))
    return None


def _seconds(plan: Plan, changes: dict[str, str]) -> float:
    moved = plan.model_copy(update={"cluster": changed(plan.cluster, changes)} if changes else {})
    return evaluate(moved).step_time_s
