"""The search: candidates in the order of their bounds, priced by the evaluator until no bound can win.

For every mesh and micro-batch the intra-op ILP picks the strategies of each block; for every candidate the
inter-op dynamic program cuts the layers into stages; the evaluator prices the result. What is left unpriced has
a bound above the best price, which is the proof.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.units import GIB
from planner.errors import Indivisible, Infeasible
from planner.evaluation.checks import EARLY
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.plans import Estimate, Objective, Optimality, Parallelism, Pins
from planner.search.assignments import splits_sequence
from planner.search.candidates import Candidate, Family, parallelism
from planner.search.floors import Floors
from planner.search.rounding import rounder_clusters, said
from planner.search.shortfall import shortfall
from planner.search.space import candidates, families, left_out, searches_pipelines
from planner.search.stack_limits import within_stack

Progress = Callable[[int, int], None]
"""Called with (done, total) candidates."""

PROGRESS_EVERY = 16
"""Candidates between two reports of progress."""

ALTERNATIVES_WITHIN = 1.1
"""Alternatives are usually looked for up to this factor of the best plan."""

USUAL_TOP = 5
"""Families that are reported unless asked otherwise; the best of several may change places when they are finished."""

BATCHES = ("micro_batch", "num_microbatches")

LEAST_MEMORY_TRIES = 64
"""Candidates with the least memory bounds whose stages are looked at to say how far a model is from fitting."""


VALUES: Mapping[Objective, Callable[[float, int], tuple[float, ...]]] = MappingProxyType(
    {
        "time": lambda seconds, devices: (seconds,),
        "cost": lambda seconds, devices: (seconds * devices, seconds),
        "devices": lambda seconds, devices: (float(devices), seconds),
    }
)
"""What is minimised, of a step's seconds and the devices used."""


class Found(NamedTuple):
    """A priced candidate."""

    candidate: Candidate
    plan: Parallelism
    cuts: tuple[int, ...]
    estimate: Estimate


class Entry(NamedTuple):
    """Candidates in the queue, by bound and then by order in the space."""

    bound: tuple[float, ...]
    orders: tuple[int, ...]
    """Of the candidates; of a family, the first one's."""
    level: int
    """How many of the tighter, dearer bounds are already in ``bound``; a family has only what all have in common."""
    candidates: Family | tuple[Candidate, ...]
    """One, or all that have the bound in common: a family, and then those of it that are alike (`Floors.alike`)."""


UNSPLIT, FAMILY = -2, -1
"""Levels of families that are not looked into yet: their operators are priced alone, or split together."""


class Outcome(NamedTuple):
    """What a search found by its objective, best first, and what it can promise."""

    found: tuple[Found, ...]
    """The best of the best families."""
    fitting: tuple[Found, ...]
    """All that were priced and fit."""
    optimality: Optimality


def family_of(c: Candidate) -> tuple[object, ...]:
    """What plans have in common that are told apart by details: degrees, sharding and recomputation."""
    return (c.data, c.tensor, c.pipeline, c.context, c.expert, c.zero_stage, c.sharding, c.recompute)


class Shortlist:
    """The best plan of each family, and the bound above which nothing more is wanted."""

    def __init__(self, top: int, below: tuple[float, ...], within: float) -> None:
        """Keeps up to ``top`` families, while none is known of those whose bounds are ``below`` this value.

        None of them takes more than ``within`` times as much as the best.
        """
        self._top, self._within = top, within
        self._best: dict[tuple[object, ...], tuple[tuple[float, ...], Found]] = {}
        self._all: list[tuple[tuple[float, ...], Found]] = []
        self.threshold = below

    @property
    def best(self) -> tuple[Found, ...]:
        """Best first."""
        return tuple(answer for _, answer in self._ranked()[: self._top])

    def _ranked(self) -> list[tuple[tuple[float, ...], Found]]:
        return sorted(self._best.values(), key=lambda entry: (entry[0], entry[1].candidate))

    @property
    def fitting(self) -> tuple[Found, ...]:
        """All that were added, best first."""
        return tuple(
            answer for _, answer in sorted(self._all, key=lambda entry: (entry[0], entry[1].candidate))
        )

    def add(self, value: tuple[float, ...], answer: Found) -> None:
        """Keep ``answer``, in front if it is the best of its family."""
        self._all.append((value, answer))
        family = family_of(answer.candidate)
        if family not in self._best or value < self._best[family][0]:
            self._best[family] = (value, answer)
        ranked = self._ranked()
        near = tuple(v * self._within for v in ranked[0][0])
        wanted = min(near, ranked[self._top - 1][0]) if len(ranked) >= self._top else near
        self.threshold = min(self.threshold, wanted)


class Search:
    """One search over one space."""

    def __init__(
        self,
        evaluator: Evaluator,
        pins: Pins,
        objective: Objective,
        limited: bool = True,
        space: Sequence[Family] | None = None,
        within: float = ALTERNATIVES_WITHIN,
    ) -> None:
        """Nothing is priced yet, nor split over axes that the stack lacks.

        Unless it is ``limited``, devices have all the memory that a plan asks for. ``space`` is a part of what the pins
        allow, all of it where None. Alternatives are looked for up to ``within`` times the best plan.
        """
        pins = within_stack(evaluator, pins)
        self.evaluator, self.pins, self.objective = evaluator, pins, objective
        self._space, self._within = space, within
        usable = evaluator.cluster.device.memory * (1 - evaluator.job.memory_headroom)
        self.limit = usable if limited else math.inf
        self.host_limit = evaluator.cluster.host.memory or math.inf
        self.floors = Floors(evaluator, pins, self.limit)
        self.nearest: Found | None = None
        """After a search in which nothing fitted: what needs the least memory."""

    def price(self, c: Candidate) -> Found:
        """Evaluate the candidate with its layers cut into stages."""
        plan, cuts = self.unpriced(c)
        return Found(c, plan, cuts, self.evaluator.estimate(plan, self.sharding(c), cuts))

    def unpriced(self, c: Candidate) -> tuple[Parallelism, tuple[int, ...]]:
        """The candidate as a plan, and the boundaries of its stages."""
        if c not in self.floors.cuts:
            self.floors.staged(c)
        plan = self.floors.with_stages(c, parallelism(c))
        return plan.model_copy(
            update={"sequence_parallel": splits_sequence(self.sharding(c))}
        ), self.floors.cuts[c]

    def sharding(self, c: Candidate) -> Shardings:
        """The ILP's strategies for every block on the candidate's mesh."""
        return self.floors.sharding(c)

    def _bound(self, seconds: float, c: Candidate) -> tuple[float, ...]:
        """The objective's value where the step takes ``seconds``."""
        return VALUES[self.objective](seconds, c.num_devices)

    def run(self, top: int, progress: Progress | None = None) -> Outcome:
        """The best plans; pipelines are searched after all where nothing fits without them.

        Raises ``Infeasible`` where none fits, naming the least memory found.
        """
        outcome, tight = self._with_pipelines_at_need(top, progress)
        if outcome is None:
            raise self._infeasible(tight)
        return outcome

    def if_any(self, top: int, progress: Progress | None = None) -> Outcome | None:
        """The same; None where nothing fits: what needs least memory is not looked for."""
        return self._with_pipelines_at_need(top, progress)[0]

    def _with_pipelines_at_need(
        self, top: int, progress: Progress | None
    ) -> tuple[Outcome | None, list[Candidate]]:
        searched = searches_pipelines(self.evaluator, self.pins)
        outcome, tight = self._run(searched, top, progress)
        return (outcome, tight) if outcome or searched else self._run(True, top, progress)

    def pipelined(self, below: float) -> Found | None:
        """The best plan with a pipeline, if its step takes less than ``below`` seconds; where none was searched."""
        found = self.best_below(below, pipelines=True)
        return found if found is not None and found.plan.pipeline > 1 else None

    def best_below(self, below: float, pipelines: bool) -> Found | None:
        """The best plan, if its step takes less than ``below`` seconds."""
        outcome, _ = self._run(pipelines, 1, None, below)
        found = outcome.found[0] if outcome is not None else None  # its bound is below, its price need not be
        return found if found is not None and found.estimate.step_time_s < below else None

    def _run(
        self, pipelines: bool, top: int, progress: Progress | None, below: float = math.inf
    ) -> tuple[Outcome | None, list[Candidate]]:
        """Price candidates best bound first until none can beat the best found, or ``below``; with what did not fit.

        A candidate that comes to the front is bounded more tightly and put back, until only the price is
        left.
        """
        heap, tight = self._queue(pipelines)
        total = len(tight) + sum(len(entry.candidates) for entry in heap)
        kept = Shortlist(top, (below,), self._within)
        looked = priced = 0
        while heap and heap[0].bound < kept.threshold:
            entry = heapq.heappop(heap)
            looked += 1
            if progress is not None and looked % PROGRESS_EVERY == 0:
                progress(looked, total)
            if isinstance(entry.candidates, Family):
                self._look_into(heap, tight, entry, entry.candidates)
                continue
            if entry.level < len(self.floors.levels):
                self._tighten(heap, tight, entry)
                continue
            (c,) = entry.candidates
            answer = self.price(c)
            priced += 1
            used, on_host = answer.estimate.memory_bytes, answer.estimate.host_bytes
            if used > self.limit or on_host > self.host_limit:
                self._set_aside(heap, tight, entry)
            else:
                kept.add(self._bound(answer.estimate.step_time_s, c), answer)
        if not kept.best:
            return None, tight
        optimality = Optimality(
            proven=True,
            gap=0.0,
            evaluated=priced,
            pruned=total - priced,
            left_out=left_out(self.evaluator, self.pins, pipelines),
        )
        return Outcome(kept.best, kept.fitting, optimality), tight

    def promising(self, below: float, pipelines: bool) -> list[Family]:
        """Families of the space that may have a step of less than ``below`` seconds by what they have in common."""
        bounds = (self.floors.alone, self.floors.first)
        space = families(self.evaluator, self.pins, self.objective, pipelines)
        return [family for family in space if all(bound(family[0]) < below for bound in bounds)]

    def may_be_below(self, below: float, pipelines: bool) -> bool:
        """Whether bounds leave room for a step of less than ``below`` seconds, before any layers are cut."""
        heap, tight = self._queue(pipelines)
        while heap and heap[0].bound < (below,):
            entry = heapq.heappop(heap)
            if isinstance(entry.candidates, Family):
                self._look_into(heap, tight, entry, entry.candidates)
            elif entry.level < self.floors.before_cuts:
                self._tighten(heap, tight, entry)
            else:
                return True
        return False

    def _tighten(self, heap: list[Entry], tight: list[Candidate], entry: Entry) -> None:
        """Put candidates back with their next bound: those that are alike together, until a bound parts them."""
        if entry.level < self.floors.in_common:
            floor = self.floors.levels[entry.level](entry.candidates[0])
            heapq.heappush(heap, self._raised(entry, floor.seconds))
            return
        for order, c in zip(entry.orders, entry.candidates, strict=True):
            alone = entry._replace(orders=(order,), candidates=(c,))
            if entry.level == self.floors.in_common and not self._may_fit(c):
                tight.append(c)
            elif (floor := self.floors.levels[entry.level](c)).memory_bytes > self.limit:
                self._set_aside(heap, tight, alone)
            else:
                heapq.heappush(heap, self._raised(alone, floor.seconds))

    def _raised(self, entry: Entry, seconds: float) -> Entry:
        """With its next bound."""
        bound = max(entry.bound, self._bound(seconds, entry.candidates[0]))
        return entry._replace(bound=bound, level=entry.level + 1)

    def _may_fit(self, c: Candidate) -> bool:
        """Whether memory leaves room before anything is priced."""
        return self.floors.early(c) <= self.limit and self.floors.on_host(c) <= self.host_limit

    def _set_aside(self, heap: list[Entry], tight: list[Candidate], entry: Entry) -> None:
        """A candidate that does not fit comes back with its lean assignment, which is no faster."""
        (c,) = entry.candidates
        if c.lean or c.tensor == 1 or self.floors.states(c) > self.limit:
            tight.append(c)
        else:
            heapq.heappush(heap, Entry(entry.bound, entry.orders, 0, (c._replace(lean=True),)))

    def _queue(self, pipelines: bool) -> tuple[list[Entry], list[Candidate]]:
        """Families as a heap by their cheapest bounds, and all of those of which nothing can fit."""
        heap, tight, order = list[Entry](), list[Candidate](), 0
        everything = families(self.evaluator, self.pins, self.objective, pipelines)
        for family in everything if self._space is None else self._space:
            one = family[0]
            if any(map(self._may_fit, reversed(family))):
                heap.append(Entry(self._bound(self.floors.alone(one), one), (order,), UNSPLIT, family))
            else:
                tight += family
            order += len(family)
        heapq.heapify(heap)
        return heap, tight

    def _look_into(self, heap: list[Entry], tight: list[Candidate], entry: Entry, family: Family) -> None:
        """Bound a family that came to the front more tightly; the second time, queue what is alike together."""
        if entry.level == UNSPLIT:
            first = self._bound(self.floors.first(family[0]), family[0])
            heapq.heappush(heap, entry._replace(bound=first, level=FAMILY))
            return
        groups: dict[Hashable, list[tuple[int, Candidate]]] = {}
        for order, c in enumerate(family, entry.orders[0]):
            groups.setdefault(self.floors.alike(c), []).append((order, c))
        for group in groups.values():
            orders, alike = zip(*group, strict=True)
            if any(map(self._may_fit, reversed(alike))):
                heapq.heappush(heap, Entry(entry.bound, orders, 0, alike))
            else:
                tight += alike

    def _least_memory(self, tight: Sequence[Candidate]) -> Candidate:
        """The candidate that needs the least memory: the first whose own is below the bounds of all others.

        After `LEAST_MEMORY_TRIES` whose stages were looked at, the least of these. Of those that differ from it in the
        micro-batch alone, the smallest that needs as much to the digit that is shown.
        """
        floors = self.floors
        levels = (lambda c: floors.whole(c).memory_bytes, lambda c: floors.staged(c, math.inf).memory_bytes)
        both = {*tight, *(c._replace(lean=True) for c in tight if c.tensor > 1)}
        heap = [(floors.early(c), c, 0) for c in both]
        heapq.heapify(heap)
        looked: list[tuple[float, Candidate]] = []
        while len(looked) < LEAST_MEMORY_TRIES and heap[0][2] < len(levels):
            bound, c, level = heapq.heappop(heap)
            memory = levels[level](c)
            heapq.heappush(heap, (max(bound, memory), c, level + 1))
            if level + 1 == len(levels):
                looked.append((memory, c))
        _, least = min(looked)
        alike = (c for c in both if least == c._replace(**{n: getattr(least, n) for n in BATCHES}))
        return min(alike, key=lambda c: (round(levels[-1](c) / GIB, 1), c.micro_batch))

    def _divisible(self) -> str:
        """The most nodes, or devices of each, that there are plans for, of those that divide well; nothing for none."""
        model, cluster, job = self.evaluator.model, self.evaluator.whole, self.evaluator.job
        for part in rounder_clusters(cluster):
            if any(True for _ in candidates(Evaluator(model, part, job), self.pins, self.objective, True)):
                return f"{said(part, cluster)}, or another global batch"
        return ""

    def _infeasible(self, tight: Sequence[Candidate]) -> Infeasible:
        """Name the plan that needs the least memory, and what would make it fit."""
        cluster, job = self.evaluator.cluster, self.evaluator.job
        if not tight:
            also = f", and that {EARLY}" if job.step_in_backward else ""
            return Indivisible(
                f"no plan has these degrees: check that the pins, the {cluster.num_devices} devices and the global "
                f"batch of {job.global_batch} divide each other{also}",
                self._divisible(),
            )
        c = self._least_memory(tight)
        self.nearest = least = self.price(c)
        need = least.estimate.memory_bytes
        limit = self.limit
        if need <= limit:
            return Infeasible(
                f"what is offloaded does not fit on the hosts: {least.estimate.host_bytes / GIB:.0f} GiB for a node "
                f"of {cluster.name}, which has {self.host_limit / GIB:.0f} GiB",
                "more nodes, or less to offload (--offload none)",
            )
        return shortfall(self.evaluator, self.pins, least.plan, least.estimate, limit)
