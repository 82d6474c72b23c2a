"""Layers dealt out to the stages of a schedule whose order is known: branch and bound over `layer_program`.

Paths are found as they become critical: the times of a program's answer are simulated, the longest path is added, and
so on until none is longer than the program says (cutting planes, Kelley 1960). What is in fractions is branched on, in
this order: the layers of a rank, the ways that it runs its stages, and the layers of those. What a rank can take in the
time that is known to be enough (`filling`) limits it and, as all layers have to go somewhere, the others. No cut into
whole layers of a part is below the value of its program. Parts that say what each rank has are rounded, rank by rank.
A makespan with queues at ports is never below the one without.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.inter_op.filling import ROUNDING, RankWays, rank_times, rank_ways
from planner.inter_op.layer_program import LayerProgram, Limits, no_limits
from planner.inter_op.partition import Array
from planner.inter_op.ranks import Order, Rank, rank_paths
from planner.pipeline.dependencies import arranged, moments_in_flight
from planner.pipeline.generators import stage_to_rank
from planner.pipeline.simulator import Path, longest_path

MOST_PATHS = 250
"""Known of an order at most; a program with fewer paths has a lower value, which is still a bound."""

CLOSE = 1e-3
"""Share of the makespan that the program may be below its own simulation."""

WHOLE = 1e-6
"""What is closer to a whole number is one."""

DIVES = 100
"""Parts that are looked into one inside the other at most, until there is a deal into whole layers."""

ROUNDED = 4
"""Parts that are rounded to whole layers at most."""

NEAREST = 6
"""Whole layers next to those of a rank that are tried."""

REACH = 3
"""Layers that a stage may have more or less for that."""


class Dealt(NamedTuple):
    """What is known by now."""

    bound: float
    """Makespan and what comes after it, of all deals that have not come yet, at least [s]."""
    layers: tuple[int, ...] = ()
    """By stage, of a deal into whole layers; nothing where there is none to tell."""
    ways: tuple[int, ...] = ()
    """By rank, the offer that it uses."""


class _Part(NamedTuple):
    """Deals within limits, in a queue."""

    bound: float
    order: int
    limits: Limits


class Dealer:
    """Deals out layers; what is critical for one program is often so for the next of the same order, so it is kept."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._paths: dict[Order, list[Path]] = {}

    def deal(
        self,
        order: Order,
        ranks: Sequence[Rank],
        counts: Sequence[int],
        hops: Sequence[float],
        enough: Callable[[], float],
    ) -> Iterator[Dealt]:
        """Ever closer bounds on all ways to deal out ``counts`` layers of each kind, and deals into whole layers.

        ``hops`` [s] are those of the boundaries between stages. Deals of at least ``enough()`` [s] do not count.
        """
        tree = _Tree(order, ranks, counts, hops, self._paths.setdefault(order, rank_paths(order)))
        dive, queue = [_Part(0.0, 0, no_limits(order, ranks, sum(counts)))], list[_Part]()
        looked, found = 0, False
        while dive or queue:
            part = dive.pop() if dive else heapq.heappop(queue)
            others = min([other.bound for other in (*dive, *queue[:1])], default=float("inf"))
            yield Dealt(min(part.bound, others))
            pieces, bound = tuple[Limits, ...](), part.bound
            for known in tree.look(part, enough):
                bound, pieces = max(bound, known.bound), tuple(known.pieces)
                if known.layers:
                    found = True
                    yield Dealt(min(bound, others), known.layers, known.ways)
            more = [_Part(bound, looked + n, piece) for n, piece in enumerate(pieces, start=1)]
            looked += len(more)
            dive += reversed(more)
            if found or looked > DIVES:
                queue += dive
                heapq.heapify(queue)
                dive = []


class _Seen(NamedTuple):
    """What a look into a part has shown."""

    bound: float
    layers: tuple[int, ...] = ()
    ways: tuple[int, ...] = ()
    pieces: Sequence[Limits] = ()


class _Tree:
    """Looks into parts of all deals of one order and its ranks."""

    def __init__(
        self,
        order: Order,
        ranks: Sequence[Rank],
        counts: Sequence[int],
        hops: Sequence[float],
        paths: list[Path],
    ) -> None:
        """``paths`` are known of the order; those that are found are added."""
        self._order, self._hops, self._paths = order, hops, paths
        self._homes = stage_to_rank(*order[:3])
        self._program = LayerProgram(order, ranks, counts, hops)
        self._each = rank_ways(order, ranks, hops, moments_in_flight(*order))
        self._times = np.array([rank_times(ways, sum(counts)) for ways in self._each])
        self._rounded = 0

    def look(self, part: _Part, enough: Callable[[], float]) -> Iterator[_Seen]:
        """Deals into whole layers, if any is found; at last the pieces that the part falls into."""
        limits = _tightened(part.limits, self._each, self._times, enough())
        bound = self._least(limits, enough()) if limits else float("inf")
        if limits is None or bound >= enough():
            return
        layers = self._program.layers()
        used = _used(layers, self._homes)
        pieces = _pieces(limits, layers, used)
        ways = tuple(int(of_rank.argmax()) for of_rank in used)
        if not pieces:
            whole = tuple(round(float(stage.sum())) for stage in layers)
            yield _Seen(bound, whole, ways)
            pieces = _beside(limits, whole, ways)
        elif self._rounded < ROUNDED and pieces[0].stages != limits.stages:
            self._rounded += 1
            if rounded := self._round(limits, ways):
                yield _Seen(bound, rounded, ways)
        yield _Seen(bound, pieces=pieces)

    def _round(self, limits: Limits, ways: Sequence[int]) -> tuple[int, ...]:
        """Whole layers next to those of the last solution, rank by rank; none where a rank has no room for any."""
        fixed = limits._replace(ways=tuple((way,) for way in ways))
        for rank in range(self._order.ranks):
            stages = [s for s, home in enumerate(self._homes) if home == rank]
            totals = [float(stage.sum()) for stage in self._program.layers()]
            near = self._program.fitting(rank, ways[rank], _nearest([totals[s] for s in stages]))
            closer = [_fixed(fixed, stages, layers) for layers in near[:NEAREST]]
            if not closer:
                return ()
            values = [self._simulated(part) for part in closer]
            fixed = closer[int(np.argmin(values))]
            if np.isinf(self._simulated(fixed)):
                return ()
        return tuple(low for low, _ in fixed.stages)

    def _simulated(self, limits: Limits) -> float:
        """The makespan of the program's answer; infinite where it has none [s]."""
        self._program.within(limits)
        if np.isinf(self._program.solve()):
            return float("inf")
        return longest_path(arranged(*self._order), self._program.times(), self._hops).seconds

    def _least(self, limits: Limits, enough: float) -> float:
        """The program's value with all paths that its own answers show to be missing."""
        program, paths = self._program, self._paths
        program.within(limits)
        while True:
            for path in paths[program.paths :]:
                program.add(path)
            bound = program.solve()
            if bound >= enough:
                return bound
            if program.remember():
                continue
            if len(paths) >= MOST_PATHS:
                return bound
            path = longest_path(arranged(*self._order), program.times(), self._hops)
            if path.seconds <= program.makespan * (1 + CLOSE):
                return bound
            paths.append(path)


def _nearest(totals: Sequence[float]) -> NDArray[np.int64]:
    """Whole layers of the stages of a rank, as many as there are and at least one each, next to ``totals`` first."""
    near = [np.arange(max(1, int(total) - REACH), int(total) + REACH + 2) for total in totals]
    each = np.stack(np.meshgrid(*near, indexing="ij"), axis=-1).reshape(-1, len(totals))
    each = each[each.sum(axis=1) == round(sum(totals))]
    nearest = np.argsort(((each - np.array(totals)) ** 2).sum(axis=1), kind="stable")
    return np.asarray(each[nearest])


def _used(layers: Sequence[Array], homes: Sequence[int]) -> list[Array]:
    """By rank, how many layers each of its offers has."""
    found: dict[int, Array] = {}
    for home, stage in zip(homes, layers, strict=True):
        found[home] = found.get(home, 0.0) + stage.sum(axis=1)
    return [found[rank] for rank in sorted(found)]


def _tightened(limits: Limits, each: Sequence[RankWays], times: Array, enough: float) -> Limits | None:
    """The limits within which a deal may take less than ``enough`` [s]; None where there are none.

    ``times[r, n - 1]`` [s] is what rank r takes for n layers at least.
    """
    low, high = np.array(limits.ranks).T
    high = np.minimum(high, (times < enough).sum(axis=1))
    low = np.maximum(low, times.shape[1] - (high.sum() - high))
    if (low > high).any():
        return None
    ways = []
    for allowed, of_rank, least in zip(limits.ways, each, low.tolist(), strict=True):
        seconds, taken = of_rank.seconds.min(axis=1), of_rank.taken.min(axis=1)
        fits = least * taken <= of_rank.room * (1 + ROUNDING)
        fits &= of_rank.beside + least * seconds * (1 - ROUNDING) < enough
        ways.append(tuple(way for way in allowed if fits[way]))
    if not all(ways):
        return None
    return Limits(limits.stages, tuple(zip(low.tolist(), high.tolist(), strict=True)), tuple(ways))


def _pieces(limits: Limits, layers: Sequence[Array], used: Sequence[Array]) -> list[Limits]:
    """The limits without what is in fractions, in two pieces, the likelier one first; none where all is whole."""
    of_rank, of_stage = (np.array([float(part.sum()) for part in parts]) for parts in (used, layers))
    mixed = [float(ways.sum() - ways.max()) for ways in used]
    rank = int(np.argmax(mixed))
    if pieces := _totals_apart(limits, "ranks", of_rank):
        return pieces
    if mixed[rank] > WHOLE:
        return _ways_apart(limits, rank, used[rank])
    return _totals_apart(limits, "stages", of_stage)


def _totals_apart(limits: Limits, name: str, totals: Array) -> list[Limits]:
    """With fewer and with more layers than the total that is furthest from a whole number; none where all are whole."""
    apart = np.abs(totals - np.round(totals))
    which = int(apart.argmax())
    if apart[which] <= WHOLE:
        return []
    low, high = getattr(limits, name)[which]
    below, above = (low, int(totals[which])), (int(totals[which]) + 1, high)
    nearer = [below, above] if totals[which] % 1 < 0.5 else [above, below]
    return [_with(limits, name, which, piece) for piece in nearer]


def _ways_apart(limits: Limits, rank: int, used: Array) -> list[Limits]:
    """The rank's offers in two pieces, each with some that are used now."""
    numbers = np.flatnonzero(used > WHOLE)
    middle = int(np.clip(np.ceil(used @ np.arange(len(used)) / used.sum()), numbers[0] + 1, numbers[-1]))
    pieces = [
        tuple(way for way in limits.ways[rank] if way < middle),
        tuple(way for way in limits.ways[rank] if way >= middle),
    ]
    if used[middle:].sum() > used[:middle].sum():
        pieces.reverse()
    return [_with(limits, "ways", rank, piece) for piece in pieces]


def _beside(limits: Limits, whole: Sequence[int], ways: Sequence[int]) -> list[Limits]:
    """The limits without this deal, in pieces; one of them has it still, where it is not the last."""
    for rank, (allowed, way) in enumerate(zip(limits.ways, ways, strict=True)):
        if len(allowed) > 1:
            pieces = [(way,), tuple(other for other in allowed if other != way)]
            return [_with(limits, "ways", rank, piece) for piece in pieces]
    for stage, ((low, high), here) in enumerate(zip(limits.stages, whole, strict=True)):
        if low < high:
            ranges = [(here, here), (low, here - 1), (here + 1, high)]
            return [_with(limits, "stages", stage, piece) for piece in ranges if piece[0] <= piece[1]]
    return []


def _fixed(limits: Limits, stages: Sequence[int], layers: Sequence[int]) -> Limits:
    """The limits with so many layers on these stages."""
    ranges = list(limits.stages)
    for stage, count in zip(stages, layers, strict=True):
        ranges[stage] = (count, count)
    return limits._replace(stages=tuple(ranges))


def _with(limits: Limits, name: str, number: int, piece: tuple[int, ...]) -> Limits:
    ranges = list(getattr(limits, name))
    ranges[number] = piece
    return limits._replace(**{name: tuple(ranges)})
