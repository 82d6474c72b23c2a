"""Layers dealt out to the stages of a schedule whose order is known: what no cut of them can be below.

The makespan of an order is its longest path, and a path takes a sum of stage times:

    M(t) = max_P sum_s (F_Ps f_s + I_Ps i_s + W_Ps w_s) + hops of P

where a stage takes for each pass what its layers take, and a rank has room for what is in flight at every moment of the
order. Over cuts into fractions of layers that is a linear program, whose paths are found as they become critical: the
times of its answer are simulated, the longest path is added, and so on until none is longer than the program says
(cutting planes, Kelley 1960). No cut into whole layers is below its value, whatever mesh and rematerialisation each
rank has of those that it is offered. A makespan with queues at ports is never below the one without.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import highspy
import numpy as np

from planner.highs import RowProgram, loaded
from planner.inter_op.partition import Array
from planner.pipeline.dependencies import Integers, arranged, moments_in_flight
from planner.pipeline.generators import splits_backward, stage_to_rank
from planner.pipeline.simulator import Path, StageTimes, longest_path

MOST_PATHS = 60
"""Known of an order at most; a program with fewer paths has a lower value, which is still a bound."""

MOST_MOMENTS = 4
"""Of each rank's memory that a program knows, those with most in flight; fewer only lower its value."""

OPTIONS = {"solver": "simplex", "mip_max_nodes": 100, "mip_rel_gap": 1e-3}
"""Of HiGHS. What a search that stops early has proven by then is a bound all the same."""

SOLVED = highspy.SolutionStatus.kSolutionStatusFeasible

CLOSE = 1e-3
"""Share of the makespan that the program may be below its own simulation."""


class Rates(NamedTuple):
    """One way to run stages on a rank: what each kind of layer adds to a stage, and what there is without any."""

    seconds: Array
    """[kind, pass]: forward, input gradient and weight gradient of a layer [s]."""
    fixed: Array
    """[pass]: of a stage besides its layers [s]."""
    after: Array
    """[kind]: what a layer adds to the time after the last backward [s]."""
    states: Array
    """[kind]: what a layer takes throughout [bytes]."""
    kept: Array
    """[kind]: what a layer keeps for each micro-batch in flight [bytes]."""


class Rank(NamedTuple):
    """A pipeline rank: how it may run its stages, and its memory."""

    offers: tuple[Rates, ...]
    first: Array
    """[pass]: what the embedding adds at least [s]."""
    last: Array
    """[pass]: what the head adds at least [s]."""
    room: float
    """What is left for layers on a rank with neither end, at most [bytes]."""
    first_bytes: float
    """What the embedding takes of it, at least."""
    last_bytes: float
    """What the head takes of it, at least."""


class Order(NamedTuple):
    """A schedule by name, as `planner.pipeline.generators.generate` takes it."""

    schedule: str
    ranks: int
    virtual_stages: int
    microbatches: int


class Dealt(NamedTuple):
    """The least of a program."""

    bound: float
    """Makespan and what comes after it; infinite where nothing fits [s]."""
    layers: tuple[Array, ...] = ()
    """By stage, [offer, kind]: how many layers, in fractions."""


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
        enough: float = float("inf"),
    ) -> Dealt:
        """The least time of ``order`` over all ways to deal out ``counts`` layers of each kind.

        ``hops`` [s] are those of the boundaries between stages. Stops at any value of at least ``enough`` [s].
        """
        if order not in self._paths:
            self._paths[order] = rank_paths(order)
        paths = self._paths[order]
        program = _Program(order, ranks, counts, hops)
        for path in paths:
            program.add(path)
        found = self._cut(program, order, hops, enough)
        if found.bound < enough:
            program.make_ranks_whole()
            found = self._cut(program, order, hops, enough)
        return found

    def whole(
        self, order: Order, ranks: Sequence[Rank], counts: Sequence[int], hops: Sequence[float]
    ) -> tuple[int, ...] | None:
        """Layers of every stage, all whole and with one offer for each rank, that take little; None if not found."""
        program = _Program(order, ranks, counts, hops)
        for path in self._paths.setdefault(order, rank_paths(order)):
            program.add(path)
        program.make_stages_whole(ranks)
        found = self._cut(program, order, hops, float("inf"))
        return tuple(round(float(layers.sum())) for layers in found.layers) or None

    def _cut(self, program: "_Program", order: Order, hops: Sequence[float], enough: float) -> Dealt:
        """The program's value with all paths that its own answers show to be missing."""
        paths, found = self._paths[order], program.solve()
        while len(paths) < MOST_PATHS and found.bound < enough:
            path = longest_path(arranged(*order), program.times(), hops)
            if path.seconds <= program.makespan * (1 + CLOSE):
                break
            paths.append(path)
            program.add(path)
            found = program.solve()
        return found


def rank_paths(order: Order) -> list[Path]:
    """For each rank all of its work, after the first micro-batch has come to it, and before the last has gone back.

    Where backwards are split, nothing has to come after a rank's own.
    """
    homes = np.array(stage_to_rank(*order[:3]))
    found = []
    for rank in range(order.ranks):
        own = homes == rank
        before = np.arange(len(homes)) < np.flatnonzero(own)[0]
        back = np.zeros_like(before) if splits_backward(order.schedule) else before
        passes = order.microbatches * own[:, None] + np.stack((before, back, back), axis=1)
        crossed = np.where(before & (homes != np.append(homes[1:], homes[-1])), 1.0 + back, 0.0)[:-1]
        found.append(Path(0.0, passes.astype(np.float64), crossed))
    return found


class _Program:
    """Columns are layers by stage, offer and kind, then the makespan and what comes after it."""

    def __init__(
        self, order: Order, ranks: Sequence[Rank], counts: Sequence[int], hops: Sequence[float]
    ) -> None:
        self._homes = stage_to_rank(*order[:3])
        of_stage = [ranks[home] for home in self._homes]
        self._shape = [(len(rank.offers), len(counts)) for rank in of_stage]
        self._starts = np.cumsum([0, *(offers * kinds for offers, kinds in self._shape)])
        self._hops = np.asarray(hops, dtype=np.float64)
        self._fixed = np.array([np.min([o.fixed for o in rank.offers], axis=0) for rank in of_stage])
        self._fixed[0] += of_stage[0].first
        self._fixed[-1] += of_stage[-1].last
        self._seconds = np.concatenate([offer.seconds for rank in of_stage for offer in rank.offers])
        self._stage = np.repeat(np.arange(len(of_stage)), np.diff(self._starts))
        self._kind = np.concatenate([np.tile(np.arange(k), q) for q, k in self._shape])
        self._columns = len(self._stage)
        self._solution = np.zeros(self._columns + 2)
        self._solver = _loaded(*self._rows(order, ranks, counts), self._columns)
        self.makespan, self._whole, self._most = 0.0, False, float(sum(counts))

    def _rows(self, order: Order, ranks: Sequence[Rank], counts: Sequence[int]) -> tuple[Array, Array, Array]:
        """Coefficients, and what each row is between."""
        rows, low, high = [], [], []

        def row(values: Array, least: float, most: float) -> None:
            rows.append(values)
            low.append(least)
            high.append(most)

        for kind, count in enumerate(counts):
            row(np.append(self._kind == kind, (0.0, 0.0)), count, count)
        for stage in range(len(self._shape)):
            row(np.append(self._stage == stage, (0.0, 0.0)), 1.0, np.inf)
        home = np.array(self._homes)[self._stage]
        states, kept, after = (
            np.concatenate([getattr(offer, name) for r in self._homes for offer in ranks[r].offers])
            for name in ("states", "kept", "after")
        )
        for r, moments in enumerate(moments_in_flight(*order)):
            mine = home == r
            room = ranks[r].room - ranks[r].first_bytes * (r == self._homes[0])
            room -= ranks[r].last_bytes * (r == self._homes[-1])
            for held in moments[:MOST_MOMENTS]:
                taken = np.where(mine, states + kept * held[self._stage], 0.0)
                row(np.append(taken / max(room, 1.0), (0.0, 0.0)), -np.inf, 1.0)
            row(np.append(np.where(mine, after, 0.0), (0.0, -1.0)), -np.inf, 0.0)
        return np.array(rows), np.array(low), np.array(high)

    def add(self, path: Path) -> None:
        """No makespan is below this path."""
        along = (path.passes[self._stage] * self._seconds).sum(axis=1)
        least = float((path.passes * self._fixed).sum() + path.crossings @ self._hops)
        columns = np.arange(self._columns + 1, dtype=np.int32)
        self._solver.addRow(least, np.inf, len(columns), columns, np.append(-along, 1.0))

    def solve(self) -> Dealt:
        """The least with the paths so far."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Dealt(float("inf"))
        information = self._solver.getInfo()
        bound = information.mip_dual_bound if self._whole else information.objective_function_value
        if information.primal_solution_status != SOLVED:
            return Dealt(max(0.0, bound))
        self._solution = np.array(self._solver.getSolution().col_value)[: self._columns + 2]
        self.makespan = float(self._solution[-2])
        pairs = zip(pairwise(self._starts.tolist()), self._shape, strict=True)
        layers = tuple(self._solution[a:b].reshape(shape) for (a, b), shape in pairs)
        return Dealt(bound, layers)

    def make_ranks_whole(self) -> None:
        """From now on each rank has a whole number of layers, in whatever fractions its stages have them."""
        homes = np.array(self._homes)[self._stage]
        for rank in range(max(self._homes) + 1):
            self._sum(np.flatnonzero(homes == rank).astype(np.int32), self._integer(highspy.kHighsInf))

    def make_stages_whole(self, ranks: Sequence[Rank]) -> None:
        """From now on each stage has a whole number of layers, and each rank runs in one of the ways that it offers."""
        homes = np.array(self._homes)
        for stage in range(len(homes)):
            self._sum(np.flatnonzero(self._stage == stage).astype(np.int32), self._integer(highspy.kHighsInf))
        for r, rank in enumerate(ranks):
            chosen = [self._integer(1.0) for _ in rank.offers]
            self._row(1.0, 1.0, chosen, np.ones(len(chosen)))
            for q, column in enumerate(chosen):
                for stage in np.flatnonzero(homes == r).tolist():
                    kinds = self._shape[stage][1]
                    mine = self._starts[stage] + q * kinds + np.arange(kinds)
                    self._row(-np.inf, 0.0, [*mine.tolist(), column], np.append(np.ones(kinds), -self._most))

    def _integer(self, most: float) -> int:
        column = int(self._solver.getNumCol())
        self._solver.addVar(0.0, most)
        self._solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        self._solver.setOptionValue("solver", "choose")
        self._whole = True
        return column

    def _sum(self, columns: Integers, total: int) -> None:
        self._row(0.0, 0.0, [*columns.tolist(), total], np.append(np.ones(len(columns)), -1.0))

    def _row(self, low: float, high: float, columns: Sequence[int], values: Array) -> None:
        self._solver.addRow(low, high, len(columns), np.array(columns, dtype=np.int32), values)

    def times(self) -> StageTimes:
        """Of the stages of the last solution."""
        table = self._fixed.copy()
        np.add.at(table, self._stage, self._solution[:-2, None] * self._seconds)
        return StageTimes(*np.ascontiguousarray(table.T).tolist())


def _loaded(rows: Array, low: Array, high: Array, columns: int) -> Any:
    """HiGHS with the program, whose last two columns are minimised."""
    row, column = np.nonzero(rows)
    program = RowProgram(
        costs=np.append(np.zeros(columns), (1.0, 1.0)),
        lower=np.zeros(columns + 2),
        upper=np.full(columns + 2, np.inf),
        low=low,
        high=high,
        starts=np.append(0, np.bincount(row, minlength=len(rows)).cumsum()).astype(np.int32),
        columns=column.astype(np.int32),
        values=rows[row, column],
    )
    return loaded(program, OPTIONS)
