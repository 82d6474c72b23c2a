"""Sizes of one kind of cluster that may meet a goal: where they begin, and when larger ones are no use."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Given, validated
from cluster_specs.shipped import cluster_files
from cluster_specs.sizing import default_sizes, sized
from cluster_specs.software import load_software
from cost_models.compute import product_peak
from cost_models.economics import HOUR, least_device_hours
from planner.analysis.economics import Terms, price_of
from planner.errors import InputError
from planner.models.adapters import Adapter, adapted
from planner.models.catalog import build_graph, load_model
from planner.operators import model_flops
from planner.search.stack_limits import check_devices
from planner.sweep.records import Point

MOST_DEVICES = 16384
"""Sizes beyond this are not tried unless asked."""

WORTH_GROWING = 0.02
"""Sizes that shorten the run by less than this share of it are hardly faster."""

PATIENCE = 2
"""So many sizes that are hardly faster end a kind."""


class Goal(Given):
    """What has to be met; None does not bind."""

    deadline_s: float | None = Field(default=None, gt=0)
    budget: float | None = Field(default=None, gt=0)


def time(point: Point) -> float:
    """To train [s]; infinite without a plan."""
    return math.inf if point.economics is None else point.economics.time_to_train_s


def money(point: Point) -> float:
    """Infinite where no price is known."""
    known = point.economics is not None and point.economics.cost is not None
    return (
        point.economics.cost if known and point.economics and point.economics.cost is not None else math.inf
    )


def in_time(point: Point, goal: Goal) -> bool:
    """Whether the deadline holds."""
    return point.economics is not None and (goal.deadline_s is None or time(point) <= goal.deadline_s)


def meets(point: Point, goal: Goal) -> bool:
    """Whether deadline and budget hold."""
    return in_time(point, goal) and (goal.budget is None or money(point) <= goal.budget)


def miss(point: Point, goal: Goal) -> float:
    """By what factor a point overshoots the bound that it misses most."""
    late = time(point) / goal.deadline_s if goal.deadline_s else 0.0
    dear = money(point) / goal.budget if goal.budget else 0.0
    return max(late, dear)


def best(points: Sequence[Point], goal: Goal) -> int | None:
    """Index of the cheapest point that meets the goal, or of the nearest miss; None where nothing has a plan."""
    planned = [i for i, point in enumerate(points) if point.economics is not None]
    good = [i for i in planned if meets(points[i], goal)]
    if good:
        return min(good, key=lambda i: (money(points[i]), time(points[i]), i))
    return min(planned, key=lambda i: (miss(points[i], goal), i), default=None)


def priced_kinds(terms: Terms) -> tuple[str, ...]:
    """Shipped clusters that are sold in this way."""
    found = []
    for name, file in cluster_files().items():
        if file.price is not None and price_of(sized(name, smallest(name)), terms) is not None:
            found.append(name)
    if not found:
        raise InputError(f"no shipped cluster has a {terms.price_kind} price: name clusters and give --price")
    return tuple(found)


def smallest(kind: str) -> int:
    """Fewest devices that a kind is sold with, whole nodes at least."""
    return default_sizes(kind, MOST_DEVICES)[0]


def node_of(kind: str) -> int:
    """Devices by which a kind grows; 0 where it comes in fixed slices only."""
    cluster = sized(kind, smallest(kind))
    return 0 if cluster.torus is not None else cluster.devices_per_node


def flops(model: str, job: Mapping[str, Any], tokens: float) -> float:
    """Of the whole run, recomputation apart; frozen weights have no gradients to compute."""
    seq_len, adapter = int(job["seq_len"]), job.get("adapter")
    graph = build_graph(load_model(model), seq_len)
    if adapter is not None:
        software = load_software(job["stack"]) if job.get("stack") else None
        graph = adapted(graph, validated(Adapter, adapter, "the job: adapter"), software)
    return tokens * model_flops(graph, 1) / seq_len


def least_hours(cluster: ClusterSpec, flops: float, job: Mapping[str, Any]) -> float:
    """Device-hours of the whole run with every device at its peak.

    Raises ``InputError`` where no size can be planned: the device lacks the type, or the stack does not run on it.
    """
    if job.get("stack"):
        check_devices(cluster, load_software(job["stack"]))
    return least_device_hours(flops, product_peak(cluster.device, str(job.get("precision", "bf16"))))


def least_devices(hours: float, goal: Goal) -> float:
    """Devices below which no deadline of ``goal`` is met, if the run takes at least so many device-hours."""
    return 0.0 if goal.deadline_s is None else hours * HOUR / goal.deadline_s


def sizes(kind: str, hours: float, goal: Goal, most: int, batch: int = 1) -> tuple[list[int], list[int]]:
    """Sizes of a kind from the least that could meet the deadline upwards, and those below it downwards.

    The usual ones, and those that divide a ``batch`` of so many sequences, which may have other factors.
    """
    usual, node = default_sizes(kind, most), node_of(kind)
    dividing = (n for n in range(node, min(most, batch) + 1, node) if batch % n == 0) if node else ()
    offered = sorted({*usual, *dividing})
    least = least_devices(hours, goal)
    return [n for n in offered if n >= least], [n for n in reversed(offered) if n < least]


class Ladder:
    """Sizes of one kind of cluster, tried one after the other."""

    def __init__(self, kind: str, up: Sequence[int], down: Sequence[int], goal: Goal) -> None:
        """``up``, ascending, are tried first; ``down``, descending, only if none of those has a plan."""
        self.kind, self.goal = kind, goal
        self._up, self._down = list(up), list(down)
        self.points: list[Point] = []

    @property
    def next_size(self) -> int | None:
        """The size to try now; None where the kind is done with."""
        return next(iter(self._up or self._down), None)

    def add(self, point: Point) -> None:
        """Take note of the size just tried."""
        (self._up or self._down).pop(0)
        self.points.append(point)
        if point.economics is not None:
            self._down.clear()
        if not self.go_on():
            self._up.clear()

    def leave(self) -> None:
        """Try no more sizes."""
        self._up.clear()
        self._down.clear()

    def go_on(self) -> bool:
        """Whether a larger size may be better than those tried.

        Until something is in time it may, unless the last `PATIENCE` sizes with a plan were hardly faster than one
        before them. After that, one more size shows whether money falls as memory grows.
        """
        planned = [p for p in self.points if p.economics is not None]
        punctual = [p for p in planned if in_time(p, self.goal)]
        if punctual:
            return len(punctual) < 2 or money(punctual[-1]) < money(punctual[-2])
        earlier, last = planned[:-PATIENCE], planned[-PATIENCE:]
        return not earlier or min(map(time, last)) < (1 - WORTH_GROWING) * min(map(time, earlier))
