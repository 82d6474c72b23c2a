"""Backwards: the cheapest cluster and plan that train a model in time and within budget, or the nearest miss.

Every kind of cluster is tried in growing sizes. The first size is the least that could meet the deadline with every
device at its peak; a kind is left when its next size cannot be better (see `Ladder.go_on`). A kind whose device-hours
at peak already cost more than the best answer is not tried at all. Kinds that come near the cheapest are then tried
with the counts of nodes between their sizes (`planner.sweep.refining`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from cluster_specs.record import Record
from cluster_specs.sizing import sized
from cluster_specs.units import format_count, format_duration
from planner.analysis.economics import Terms, price_of
from planner.errors import InputError
from planner.sweep.answers import key_of
from planner.sweep.efficiency import efficiencies
from planner.sweep.grid import cells, sequences
from planner.sweep.ladders import (
    MOST_DEVICES,
    Goal,
    Ladder,
    best,
    flops,
    in_time,
    least_devices,
    least_hours,
    meets,
    money,
    node_of,
    priced_kinds,
    sizes,
    smallest,
    time,
)
from planner.sweep.records import Point
from planner.sweep.refining import Refined, between, near, refined
from planner.sweep.running import answer_all, as_point

SCHEMA: Final = "meshwright/size/1"


AT_ONCE = 4
"""Kinds that are tried side by side, those that could be cheapest first; the answer does not depend on it."""


class Sizing(Record):
    """The answer, and everything that was tried for it."""

    schema_version: Literal["meshwright/size/1"] = Field(default=SCHEMA, alias="schema")
    model: str
    goal: Goal
    terms: Terms
    meets: bool
    """The chosen point is in time and within budget."""
    verdict: str
    """The answer in a sentence, with what binds where nothing meets the goal."""
    chosen: int | None
    """Index of the cheapest point that meets the goal, or of the nearest miss; None where nothing fits at all."""
    tried: tuple[Point, ...]
    skipped: Mapping[str, str]
    """Kind of cluster -> why it was not tried."""
    refined: Mapping[str, Refined] = {}
    """Kind of cluster -> counts of nodes that were tried beside the usual sizes."""
    assumed: tuple[str, ...] = ()


def size(
    model: str,
    terms: Terms,
    goal: Goal,
    *,
    job: Mapping[str, Any],
    clusters: Sequence[str] = (),
    most_devices: int = MOST_DEVICES,
    jobs: int = 1,
    engine: str = "local",
    journal: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sizing:
    """The cheapest cluster for ``terms.tokens`` of ``model`` that meets the goal; ``job`` are fields of `Job`.

    ``clusters`` are kinds, every shipped one with such a price if none is named. Raises ``InputError`` where the goal
    is empty, a kind is unknown, or none has the stack and the type.
    """
    if goal.deadline_s is None and goal.budget is None:
        raise InputError("size needs a deadline or a budget")
    kinds = clusters or priced_kinds(terms)
    work = flops(model, job, terms.tokens)
    floors, skipped = _floors(kinds, work, job)
    by_floor = sorted(floors, key=lambda kind: (_least_cost(kind, floors, terms), kind))
    batch = sequences(job)
    ladders = [Ladder(kind, *sizes(kind, floors[kind], goal, most_devices, batch), goal) for kind in by_floor]
    ask = partial(_points, model, job=job, terms=terms, jobs=jobs, engine=engine, journal=journal)
    while left := [ladder for ladder in ladders if ladder.next_size is not None]:
        now = [each for each in left if not _too_dear(each, floors, ladders, terms, skipped)][:AT_ONCE]
        done = sum(len(ladder.points) for ladder in ladders)
        if progress is not None:
            progress(done, done + len(left))
        asked = [(each.kind, each.next_size or 0) for each in now]
        for ladder, point in zip(now, ask(asked), strict=True):
            ladder.add(point)
    tried = {ladder.kind: ladder.points for ladder in ladders}
    more = _refine(tried, {kind: least_devices(floors[kind], goal) for kind in floors}, goal, ask, progress)
    points = [point for each in tried.values() for point in sorted(each, key=lambda p: p.inputs.devices)]
    shares = efficiencies(points)
    weighed = (
        point.model_copy(update={"scaling_efficiency": shares.get(i)}) for i, point in enumerate(points)
    )
    return _sizing(model, tuple(weighed), goal, terms, skipped, more)


def _floors(
    kinds: Sequence[str], work: float, job: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, str]]:
    """Of each kind the device-hours at peak, or why no size of it can be planned.

    Raises ``InputError`` where that is so of all.
    """
    floors: dict[str, float] = {}
    unable: dict[str, str] = {}
    for kind in kinds:
        cluster = sized(kind, smallest(kind))
        try:
            floors[kind] = least_hours(cluster, work, job)
        except InputError as error:
            unable[kind] = str(error)
    if not floors:
        raise InputError("; ".join(dict.fromkeys(unable.values())))
    return floors, unable


def _refine(
    tried: Mapping[str, list[Point]],
    least: Mapping[str, float],
    goal: Goal,
    ask: Callable[[Sequence[tuple[str, int]]], Iterator[Point]],
    progress: Callable[[int, int], None] | None,
) -> dict[str, Refined]:
    """Adds to what was ``tried`` of each kind the counts between, round by round, and says which they are."""
    nodes = {kind: node_of(kind) for kind in tried}
    found: dict[str, Refined] = {}
    while True:
        asked = {
            kind: counts
            for kind in (list(tried)[i] for i in near(list(tried.values()), goal))
            if (counts := between(tried[kind], goal, least[kind], nodes[kind]))
        }
        if not asked:
            return found
        for kind, counts in asked.items():
            found.setdefault(kind, refined(tried[kind], counts, nodes[kind]))
        each = [(kind, n) for kind, counts in asked.items() for n in counts]
        done = sum(map(len, tried.values()))
        if progress is not None:
            progress(done, done + len(each))
        for (kind, _), point in zip(each, ask(each), strict=True):
            tried[kind].append(point)


def _points(
    model: str,
    asked: Sequence[tuple[str, int]],
    *,
    job: Mapping[str, Any],
    terms: Terms,
    jobs: int,
    engine: str,
    journal: Path | None,
) -> Iterator[Point]:
    """The points of some (kind, devices), in their order."""
    grid = [next(cells({"model": (model,), "cluster": (kind,), "devices": (n,)}, job)) for kind, n in asked]
    keys = [None if cell.question is None else key_of(cell.question, "time") for cell in grid]
    questions = {key: cell.question for key, cell in zip(keys, grid, strict=True) if key and cell.question}
    answers = answer_all(questions, "time", jobs=jobs, engine=engine, journal=journal)
    for cell, key in zip(grid, keys, strict=True):
        yield as_point(cell, key, answers.get(key or ""), terms)


def _too_dear(
    ladder: Ladder,
    floors: Mapping[str, float],
    ladders: Sequence[Ladder],
    terms: Terms,
    skipped: dict[str, str],
) -> bool:
    """Whether the kind at its peak would cost more than the best answer so far; it is then done with."""
    best = min((money(p) for each in ladders for p in each.points if meets(p, each.goal)), default=math.inf)
    floor = _least_cost(ladder.kind, floors, terms)
    if floor <= best:
        return False
    if not ladder.points:
        skipped[ladder.kind] = f"at its peak rate it would cost {floor:,.0f}, more than the {best:,.0f} found"
    ladder.leave()
    return True


def _least_cost(kind: str, floors: Mapping[str, float], terms: Terms) -> float:
    """Money for the run with every device at its peak; nothing where no price is known."""
    return floors[kind] * (price_of(sized(kind, smallest(kind)), terms) or 0.0)


def _sizing(
    model: str,
    tried: tuple[Point, ...],
    goal: Goal,
    terms: Terms,
    skipped: Mapping[str, str],
    more: Mapping[str, Refined],
) -> Sizing:
    """The best of what was tried, and why nothing better."""
    chosen = best(tried, goal)
    found = None if chosen is None else tried[chosen]
    planned = [point for point in tried if point.economics is not None]
    return Sizing(
        model=model,
        goal=goal,
        terms=terms,
        meets=found is not None and meets(found, goal),
        verdict=_verdict(found, planned, goal, more),
        chosen=chosen,
        tried=tried,
        skipped=skipped,
        refined=more,
    )


def _verdict(chosen: Point | None, planned: Sequence[Point], goal: Goal, more: Mapping[str, Refined]) -> str:
    if chosen is None:
        return "Nothing fits: no kind and size of cluster that was tried has a plan."
    steps = _steps(chosen.inputs.cluster, more)
    if meets(chosen, goal):
        good = sum(meets(point, goal) for point in planned)
        which = (
            f"the cheapest of {good} that meet the goal" if good > 1 else "the only one that meets the goal"
        )
        return f"{_described(chosen)}: {which}, of {len(planned)} clusters with a plan.{steps}"
    return f"Nothing meets the goal. {_why_not(planned, goal)} Nearest: {_described(chosen)}.{steps}"


def _steps(kind: str, more: Mapping[str, Refined]) -> str:
    """How finely the sizes of the kind that was chosen were looked at."""
    if kind in more:
        tried = more[kind]
        return (
            f" Of {kind}, sizes from {tried.from_devices} to {tried.to_devices} devices were tried in steps of "
            f"{tried.every_devices} or finer, and both neighbours of this one."
        )
    return f" Of {kind}, no size lies between those tried." if node_of(kind) else " Usual slices were tried."


def _why_not(planned: Sequence[Point], goal: Goal) -> str:
    """Which bound it is, with the best that each leaves of the other."""
    punctual = [p for p in planned if in_time(p, goal)]
    if not punctual:
        fastest = min(planned, key=time)
        return f"No size is in time: the fastest is {_described(fastest)}."
    cheapest = min(punctual, key=money)
    if math.isinf(money(cheapest)):
        return "What is in time has no known price: give one."
    affordable = [p for p in planned if goal.budget is None or money(p) <= goal.budget]
    instead = (
        f"the budget pays for {_described(min(affordable, key=time))}"
        if affordable
        else (f"nothing that was tried costs less than {min(map(money, planned)):,.0f}")
    )
    return f"The cheapest in time is {_described(cheapest)}; {instead}."


def _described(point: Point) -> str:
    spent = money(point)
    cost = "at an unknown cost" if math.isinf(spent) else f"for {spent:,.0f}"
    currency = f" {point.economics.currency}" if point.economics and not math.isinf(spent) else ""
    taken = format_duration(time(point))
    return f"{format_count(point.inputs.devices, 'device')} of {point.inputs.cluster} in {taken} {cost}{currency}"
