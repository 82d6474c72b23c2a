"""What a plan's step time hangs on: the evaluator's answer with one rate of the hardware doubled."""

from collections.abc import Iterator, Mapping
from typing import Any

from cluster_specs.catalog import what_if
from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Record
from planner.evaluation import evaluate
from planner.plans import Plan

WORTH_NAMING = 0.005
"""Savings below this share of the step are not worth a line."""


class Lever(Record):
    """One rate, and what doubling it would save."""

    what: str
    time_saved_fraction: float
    """Of the step, with the plan unchanged."""


def levers(plan: Plan) -> tuple[Lever, ...]:
    """Rates of the hardware whose doubling would shorten the step, the strongest first."""
    now = evaluate(plan).step_time_s
    found = []
    for what, changes in _doublings(plan.cluster):
        then = evaluate(plan.model_copy(update={"cluster": what_if(plan.cluster, changes)})).step_time_s
        found.append(Lever(what=what, time_saved_fraction=1 - then / now))
    worth = [lever for lever in found if lever.time_saved_fraction >= WORTH_NAMING]
    return tuple(sorted(worth, key=lambda lever: -lever.time_saved_fraction))


def _doublings(cluster: ClusterSpec) -> Iterator[tuple[str, Mapping[str, Any]]]:
    device = cluster.device
    of = f"{device.name} " if cluster.others else ""  # rates of the first pool; the others stay
    peaks = {
        f"device.peak_flops_per_second.{d}": 2 * rate for d, rate in device.peak_flops_per_second.items()
    }
    yield f"{of}matrix FLOP/s", peaks
    yield f"{of}memory bandwidth", {"device.memory_bandwidth": 2 * device.memory_bandwidth}
    if cluster.torus is not None:
        yield f"{of}torus bandwidth", {"torus.bandwidth": 2 * cluster.torus.bandwidth}
    for link in cluster.links:
        yield f"{of}{link.name} bandwidth", {f"links.{link.name}.bandwidth": 2 * link.bandwidth}
