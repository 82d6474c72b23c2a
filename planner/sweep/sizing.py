"""Backwards: the cheapest cluster and plan that train a model in time and within budget, or the nearest miss.

Every kind of cluster is tried in growing sizes. The first size is the least that could meet the deadline with every
device at its peak; a kind is left when its next size cannot be better (see `Ladder.go_on`). A kind whose device-hours
at peak already cost more than the best answer is not tried at all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from cluster_specs.record import Record
from cluster_specs.sizing import sized
from cluster_specs.units import format_duration
from planner.analysis.economics import Terms, price_of
from planner.errors import InputError
from planner.sweep.answers import key_of
from planner.sweep.efficiency import efficiencies
from planner.sweep.grid import Axes, Cell, cells
from planner.sweep.ladders import (
    MOST_DEVICES,
    Goal,
    Ladder,
    flops,
    in_time,
    least_hours,
    meets,
    miss,
    money,
    priced_kinds,
    sizes,
    smallest,
    time,
)
from planner.sweep.records import Point
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
    is empty, or a kind is unknown.
    """
    if goal.deadline_s is None and goal.budget is None:
        raise InputError("size needs a deadline or a budget")
    kinds = clusters or priced_kinds(terms)
    work = flops(model, job, terms.tokens)
    floors = {kind: least_hours(kind, work, job) for kind in kinds}
    by_floor = sorted(kinds, key=lambda kind: (_least_cost(kind, floors, terms), kind))
    ladders = [Ladder(kind, *sizes(kind, floors[kind], goal, most_devices), goal) for kind in by_floor]
    skipped: dict[str, str] = {}
    while left := [ladder for ladder in ladders if ladder.next_size is not None]:
        batch = [each for each in left if not _too_dear(each, floors, ladders, terms, skipped)][:AT_ONCE]
        asked = [next(iter(_cells(model, ladder, job))) for ladder in batch]
        done = sum(len(ladder.points) for ladder in ladders)
        if progress is not None:
            progress(done, done + len(left))
        for ladder, point in zip(batch, _answered(asked, terms, jobs, engine, journal), strict=True):
            ladder.add(point)
    tried = [point for ladder in ladders for point in ladder.points]
    shares = efficiencies(tried)
    weighed = (
        point.model_copy(update={"scaling_efficiency": shares.get(i)}) for i, point in enumerate(tried)
    )
    return _sizing(model, tuple(weighed), goal, terms, skipped)


def _cells(model: str, ladder: Ladder, job: Mapping[str, Any]) -> Iterator[Cell]:
    axes: Axes = {"model": (model,), "cluster": (ladder.kind,), "devices": (ladder.next_size or 0,)}
    yield from cells(axes, job)


def _answered(
    asked: Sequence[Cell], terms: Terms, jobs: int, engine: str, journal: Path | None
) -> Iterator[Point]:
    """The points of some cells, in their order."""
    keys = [None if cell.question is None else key_of(cell.question, "time") for cell in asked]
    questions = {key: cell.question for key, cell in zip(keys, asked, strict=True) if key and cell.question}
    answers = answer_all(questions, "time", jobs=jobs, engine=engine, journal=journal)
    for cell, key in zip(asked, keys, strict=True):
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
    model: str, tried: tuple[Point, ...], goal: Goal, terms: Terms, skipped: Mapping[str, str]
) -> Sizing:
    """The best of what was tried, and why nothing better."""
    planned = [i for i, point in enumerate(tried) if point.economics is not None]
    good = [i for i in planned if meets(tried[i], goal)]
    if good:
        chosen: int | None = min(good, key=lambda i: (money(tried[i]), time(tried[i]), i))
    else:
        chosen = min(planned, key=lambda i: (miss(tried[i], goal), i), default=None)
    return Sizing(
        model=model,
        goal=goal,
        terms=terms,
        meets=bool(good),
        verdict=_verdict(
            None if chosen is None else tried[chosen], [tried[i] for i in planned], goal, bool(good)
        ),
        chosen=chosen,
        tried=tried,
        skipped=skipped,
    )


def _verdict(chosen: Point | None, planned: Sequence[Point], goal: Goal, meets: bool) -> str:
    if chosen is None:
        return "Nothing fits: no kind and size of cluster that was tried has a plan."
    if meets:
        return f"{_described(chosen)}: the cheapest of {len(planned)} clusters with a plan."
    return f"Nothing meets the goal. {_why_not(planned, goal)} Nearest: {_described(chosen)}."


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
    return f"{point.inputs.devices} devices of {point.inputs.cluster} in {taken} {cost}{currency}"
