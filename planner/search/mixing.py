"""What no plan can be below whose layers may each have a rematerialisation policy of their own.

A rank with n layers takes least where as many as its memory allows keep everything, the others as little as they must.
What it takes is then made of straight lines over n: first every layer without recomputation, then ever more of them
under the next dearer policy. Layers are taken to be divisible, and those of other kinds than the commonest to be free.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.evaluation.cuts import ranks_of
from planner.evaluation.evaluator import Shardings
from planner.evaluation.memory import steady_microbatches
from planner.evaluation.rank import kept_share
from planner.evaluation.stages import StageShape
from planner.evaluation.step import step_floor
from planner.graph import counted
from planner.pipeline.dependencies import programs
from planner.pipeline.generators import schedule_entry
from planner.pipeline.schedule import Pass
from planner.search.bounds import (
    around_busiest,
    pipeline_seconds,
    waits_behind,
)
from planner.search.candidates import Candidate, Family, parallelism, splits_backward
from planner.search.floors import Floors
from planner.search.fullest import Load, most_in_flight
from planner.search.loads import RankLoads
from planner.search.space import SEARCHED_POLICIES

Array = npt.NDArray[np.float64]

HALVINGS = 40
"""Of the interval in which the busiest rank's seconds are sought."""


class Way(NamedTuple):
    """One layer under one policy."""

    seconds: float
    """Forth and back, of one micro-batch."""
    saved: float
    """For one micro-batch [bytes]."""


class Lines(NamedTuple):
    """What ranks take by their layers, of straight lines that get steeper: [rank, line]."""

    layers: Array
    seconds: Array
    """Of each of these layers."""


def worth_mixing(floors: Floors, space: Iterable[Family], least: float) -> list[tuple[float, Candidate]]:
    """Candidates of ``space`` that may take less than ``least`` [s] with a policy for each stage, by their bounds.

    No mixture is faster than no recomputation at all, if that fitted.
    """
    found = []
    for family in space:
        one = family[0]
        if one.pipeline == 1 or schedule_entry(one.schedule).copies > 1:
            continue
        if floors.alone(one) >= least or floors.too_large(family) or floors.first(one) >= least:
            continue
        for none in family.under(SEARCHED_POLICIES[0]):
            fullest = none._replace(recompute=SEARCHED_POLICIES[-1])
            may_fit = floors.early(fullest) <= floors.limit
            if may_fit and floors.policy(none).seconds < least and floors.uncut(none) < least:
                found += list(_below(floors, none, least))
    return sorted(found)


def _below(floors: Floors, none: Candidate, least: float) -> Iterator[tuple[float, Candidate]]:
    """Those that are split for one of the policies that recompute, if they may take less than ``least`` [s]."""
    known: list[tuple[Shardings, float]] = []
    for c in (none._replace(recompute=policy) for policy in SEARCHED_POLICIES[1:]):
        shardings = floors.sharding(c)
        bound = next((least for split, least in known if split == shardings), None)
        if bound is None:  # split alike, all policies are open to either
            bound = mixed_floor(floors, c, least) if floors.states(c) <= floors.limit else np.inf
            known.append((shardings, bound))
        if bound < least and c.virtual_stages > 1:
            if any(bound_of(none).seconds >= least for bound_of in (floors.tailed, floors.staged_time)):
                return
            bound = max(bound, staged_mixed_floor(floors, c))
        if bound < least:
            yield bound, c


def mixed_floor(floors: Floors, c: Candidate, least: float = np.inf) -> float:
    """Least step of the candidate, however its layers are cut, where each has the fastest policy that fits [s].

    A bound that is not below ``least`` [s] need not be the tightest.
    """
    evaluator, plan, shardings = floors.evaluator, parallelism(c), floors.sharding(c)
    loads, ways, number = (
        floors.rank_loads(c),
        _ways(floors, c),
        evaluator.graph.sequence.count(evaluator.main_layer),
    )
    room = np.full(c.pipeline, floors.limit - _beside(floors, c))
    room[0] -= loads.ends[0]
    room[-1] -= loads.ends[1]
    held = np.minimum(most_in_flight(c), np.arange(c.pipeline, 0, -1))
    lines = lines_of(cheapest(ways), _main(loads).states, held, room)
    if lines.layers.sum() < number:
        return np.inf
    shape = StageShape(counted(evaluator.graph.sequence), True, True)
    fastest, whole = evaluator.stage(plan, shape, SEARCHED_POLICIES[0], shardings), floors.as_one(c)
    more = least_work(lines, number) - number * ways[0].seconds
    stage = fastest._replace(backward_weight=fastest.backward_weight + more)
    around = pipeline_seconds(stage, whole.lightest, c, splits_backward(c))
    if (loose := floors.step(c, around)) >= least:
        return loose
    busiest = least_busiest(lines, number, whole.end_seconds)
    if waits_behind(c.schedule, c.pipeline, c.num_microbatches):
        around = max(around, around_busiest(stage.seconds, busiest, c.pipeline, c.num_microbatches))
    return floors.step(c, max(around, c.num_microbatches * busiest))


def staged_mixed_floor(floors: Floors, c: Candidate) -> float:
    """The same where the layers are not cut anew, as with several stages on each rank.

    What a rank holds too much while it holds most is recomputed.
    """
    evaluator, shardings, cuts = floors.evaluator, floors.sharding(c), floors.cut(c)
    plan = parallelism(c._replace(recompute=SEARCHED_POLICIES[0]))
    stages, loads = list(evaluator.stages(plan, shardings, cuts)), floors.rank_loads(c)
    ways, kept, states = (
        cheapest(_ways(floors, c)),
        kept_share(plan),
        min(load.states for load in loads.layers),
    )
    in_flight = _at_fullest(c.schedule, c.pipeline, c.virtual_stages, steady_microbatches(plan))
    beside = _beside(floors, c)
    for own, counts in zip(ranks_of(plan), in_flight, strict=True):
        layers = [cuts[s + 1] - cuts[s] for s in own]
        ends = loads.ends[0] * (own[0] == 0) + loads.ends[1] * (own[-1] == len(stages) - 1)
        activations = sum(kept * stages[s].saved_bytes * count for s, count in zip(own, counts, strict=True))
        excess = states * sum(layers) + ends + activations + beside - floors.limit
        first = stages[own[0]]
        again = spent(ways, layers, counts, excess)
        stages[own[0]] = first._replace(backward_weight=first.backward_weight + again)
    return step_floor(evaluator.setting, plan, evaluator.mesh(plan), stages)


def spent(ways: list[Way], layers: Sequence[int], counts: Sequence[int], excess: float) -> float:
    """Seconds of one micro-batch to recompute ``excess`` bytes, at least; infinite where all is not enough.

    A rank has so many ``layers`` in each of its stages, and ``counts`` micro-batches of these in flight.
    """
    offers = [
        ((b.seconds - a.seconds) / (count * (a.saved - b.saved)), number * count * (a.saved - b.saved))
        for number, count in zip(layers, counts, strict=True)
        for a, b in pairwise(ways)
        if count
    ]
    seconds = 0.0
    for rate, size in sorted(offers):
        taken = min(size, max(excess, 0.0))
        seconds, excess = seconds + rate * taken, excess - taken
    return seconds if excess <= 0 else np.inf


@lru_cache(maxsize=1024)
def _at_fullest(
    schedule: str, pipeline: int, virtual_stages: int, microbatches: int
) -> tuple[tuple[int, ...], ...]:
    """By rank, micro-batches of each of its stages in flight at a moment when all together are most."""
    order, found = programs(schedule, pipeline, virtual_stages, microbatches), []
    for start, end in pairwise(order.offsets.tolist()):
        stages, works = order.stage[start:end], order.work[start:end]
        change = np.where(works == Pass.F, 1, np.where(works == Pass.W, 0, -1))
        last = int(np.cumsum(change).argmax()) + 1
        own = np.unique(stages)
        found.append(tuple(int(change[:last][stages[:last] == stage].sum()) for stage in own))
    return tuple(found)


def _main(loads: RankLoads) -> Load:
    return max(loads.layers, key=lambda load: load.number)


def _ways(floors: Floors, c: Candidate) -> list[Way]:
    """A main layer under each policy."""
    evaluator, plan, shardings = floors.evaluator, parallelism(c), floors.sharding(c)
    found, kept = [], kept_share(plan)
    for policy in SEARCHED_POLICIES:
        block = evaluator.block(plan, evaluator.main_layer, policy, shardings)
        saved = block.saved_bytes - block.compiled.looped
        seconds = evaluator.seconds_within(plan, evaluator.main_layer, policy, shardings)
        found.append(Way(seconds, kept * saved))
    return found


def _beside(floors: Floors, c: Candidate) -> float:
    """What each rank has beside its layers at least, under any policy [bytes]."""
    evaluator, plan, shardings = floors.evaluator, parallelism(c), floors.sharding(c)
    spaces = {
        policy: evaluator.block(plan, evaluator.main_layer, policy, shardings).workspace_bytes
        for policy in SEARCHED_POLICIES
    }
    spared = spaces[c.recompute] - min(spaces.values())
    loads = floors.rank_loads(c)
    return loads.beside - spared + floors.beside_loads(c, loads.boundary)


def cheapest(ways: list[Way]) -> list[Way]:
    """Without those that are no better than a mixture of others; the fastest first."""
    found = list[Way]()
    for way in sorted(ways):
        while len(found) > 1 and _turns(found[-2], found[-1], way) <= 0:
            found.pop()
        if not found or way.saved < found[-1].saved:
            found.append(way)
    return found


def _turns(a: Way, b: Way, c: Way) -> float:
    """Whether ``b`` saves more for its time than a mixture of ``a`` and ``c``: positive then."""
    return (a.saved - b.saved) * (c.seconds - b.seconds) - (b.saved - c.saved) * (b.seconds - a.seconds)


def lines_of(ways: list[Way], states: float, held: Array, room: Array) -> Lines:
    """Of every rank, with ``held`` micro-batches in flight and ``room`` for its layers [bytes].

    So many layers fit under each policy alone; between two of them each further layer turns some from the cheaper
    in time to the cheaper in memory.
    """
    seconds = np.array([way.seconds for way in ways])
    each = states + np.outer(held, [way.saved for way in ways])
    fitting = np.maximum(room, 0.0)[:, None] / each
    layers = np.diff(fitting, axis=1, prepend=0.0)
    slopes = np.full_like(each, seconds[0])
    slopes[:, 1:] = (seconds[1:] * each[:, :-1] - seconds[:-1] * each[:, 1:]) / (each[:, :-1] - each[:, 1:])
    return Lines(layers, slopes)


def least_work(lines: Lines, number: int) -> float:
    """Seconds of all ``number`` layers together for one micro-batch, at least."""
    order = np.argsort(lines.seconds, axis=None, kind="stable")
    layers, seconds = lines.layers.ravel()[order], lines.seconds.ravel()[order]
    before = np.cumsum(layers) - layers
    return float((np.clip(number - before, 0.0, layers) * seconds).sum())


def least_busiest(lines: Lines, number: int, beside: tuple[float, float]) -> float:
    """Seconds of the busiest rank for one micro-batch, at least; the first and the last do more ``beside`` layers."""
    starts = np.cumsum(lines.layers * lines.seconds, axis=1) - lines.layers * lines.seconds
    starts[0] += beside[0]
    starts[-1] += beside[1]
    low, high = 0.0, float((starts[:, -1] + lines.layers[:, -1] * lines.seconds[:, -1]).max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        done = np.minimum(np.maximum((middle - starts) / lines.seconds, 0.0), lines.layers).sum()
        low, high = (low, middle) if done >= number else (middle, high)
    return low
