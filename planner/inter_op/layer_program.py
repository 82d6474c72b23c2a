"""The linear program of layers dealt out to the stages of a known order.

The makespan of an order is its longest path, and a path takes a sum of stage times:

    M(t) = max_P sum_s (F_Ps f_s + I_Ps i_s + W_Ps w_s) + hops of P

where a stage takes for each pass what its layers take, and a rank has room for what is in flight at every moment of the
order. Over cuts into fractions of layers, each in any of the ways that its rank offers, that is a linear program.
Limits on what stages and ranks have make it one of its parts.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from planner.highs import RowProgram, loaded
from planner.inter_op.partition import Array
from planner.inter_op.ranks import Order, Rank
from planner.pipeline.dependencies import Integers, moments_in_flight
from planner.pipeline.generators import stage_to_rank
from planner.pipeline.simulator import Path, StageTimes

MOMENTS = 2
"""Of each rank's memory that a program begins with, those with most in flight."""

ROUNDING = 1e-6
"""Memory that is more than there is by less than this share is not."""

OPTIONS = {"solver": "simplex"}
"""Of HiGHS."""

Range = tuple[int, int]


class Limits(NamedTuple):
    """What a part of all deals is limited to."""

    stages: tuple[Range, ...]
    """Least and most layers of each stage."""
    ranks: tuple[Range, ...]
    """Least and most layers of each rank."""
    ways: tuple[tuple[int, ...], ...]
    """The offers of each rank that it may use."""


def no_limits(order: Order, ranks: Sequence[Rank], layers: int) -> Limits:
    """Every stage has a layer."""
    v = order.virtual_stages
    return Limits(
        ((1, layers),) * (order.ranks * v),
        ((v, layers),) * order.ranks,
        tuple(tuple(range(len(rank.offers))) for rank in ranks),
    )


class LayerProgram:
    """Columns are layers by stage, offer and kind, then the makespan and what comes after it."""

    def __init__(
        self, order: Order, ranks: Sequence[Rank], counts: Sequence[int], hops: Sequence[float]
    ) -> None:
        """No path is known yet. ``counts`` layers of each kind; ``hops`` [s] are those of boundaries between stages."""
        self._homes = np.array(stage_to_rank(*order[:3]))
        of_stage = [ranks[home] for home in self._homes]
        self._shape = [(len(rank.offers), len(counts)) for rank in of_stage]
        self._starts = np.cumsum([0, *(offers * kinds for offers, kinds in self._shape)])
        self._hops = np.asarray(hops, dtype=np.float64)
        self._fixed = np.array([np.min([o.fixed for o in rank.offers], axis=0) for rank in of_stage])
        self._fixed[0], self._fixed[-1] = of_stage[0].first, of_stage[-1].last
        self._seconds = np.concatenate([offer.seconds for rank in of_stage for offer in rank.offers])
        self._stage = np.repeat(np.arange(len(of_stage)), np.diff(self._starts))
        self._offer = np.concatenate([np.repeat(np.arange(q), k) for q, k in self._shape])
        self._kind = np.concatenate([np.tile(np.arange(k), q) for q, k in self._shape])
        self._columns = len(self._stage)
        self._moments = moments_in_flight(*order)
        self._states, self._kept = (
            np.concatenate([getattr(offer, name) for rank in of_stage for offer in rank.offers])
            for name in ("states", "kept")
        )
        first, last = self._homes[0], self._homes[-1]
        self._room = [rank.room for rank in ranks]
        self._empty = [rank.taken(r == first, r == last) for r, rank in enumerate(ranks)]
        self._free = np.ones(len(ranks))
        self._of_memory = list[tuple[int, int]]()
        self._sums = len(counts) + np.arange(len(of_stage) + order.ranks, dtype=np.int32)
        self._solution = np.zeros(self._columns + 2)
        self._solver = _loaded(*self._rows(order, ranks, counts), self._columns)
        self.paths = 0

    def _rows(self, order: Order, ranks: Sequence[Rank], counts: Sequence[int]) -> tuple[Array, Array, Array]:
        """Coefficients, and what each row is between."""
        rows, low, high = [], [], []

        def row(values: Array, least: float, most: float) -> None:
            rows.append(values)
            low.append(least)
            high.append(most)

        home = self._homes[self._stage]
        for kind, count in enumerate(counts):
            row(np.append(self._kind == kind, (0.0, 0.0)), count, count)
        for stage in range(len(self._shape)):
            row(np.append(self._stage == stage, (0.0, 0.0)), 1.0, np.inf)
        for rank in range(order.ranks):
            row(np.append(home == rank, (0.0, 0.0)), 1.0, np.inf)
        after = np.concatenate([offer.after for r in self._homes for offer in ranks[r].offers])
        for rank in range(order.ranks):
            row(np.append(np.where(home == rank, after, 0.0), (0.0, -1.0)), -np.inf, 0.0)
            for held in self._moments[rank][:MOMENTS]:
                self._of_memory.append((len(rows), rank))
                row(np.append(self._taken(rank, held), (0.0, 0.0)), -np.inf, 1.0)
        return np.array(rows), np.array(low), np.array(high)

    def _taken(self, rank: int, held: Integers) -> Array:
        """Share of the rank's memory that a layer of each column takes with these micro-batches in flight."""
        mine = self._homes[self._stage] == rank
        taken: Array = np.where(mine, self._states + self._kept * held[self._stage], 0.0)
        share: Array = taken / self._room[rank]
        return share

    def fitting(self, rank: int, way: int, layers: NDArray[np.int64]) -> list[tuple[int, ...]]:
        """Which of these layers of a rank's stages it has room for, if all were of the mean kind."""
        own = np.flatnonzero(self._homes == rank)
        columns = (self._stage == own[0]) & (self._offer == way)
        held = layers @ np.array(self._moments[rank])[:, own].T
        taken = self._states[columns].mean() * layers.sum(axis=1)
        taken = taken + self._kept[columns].mean() * held.max(axis=1) + self._empty[rank][way]
        return [tuple(row) for row in layers[taken <= self._room[rank]].tolist()]

    def remember(self) -> bool:
        """Whether the last solution is beyond some rank's memory at a moment; the program knows it now."""
        layers, found = self._solution[:-2], False
        for rank, moments in enumerate(self._moments):
            by_stage = np.bincount(self._stage, self._kept * layers, len(self._homes))
            always = (self._states * layers)[self._homes[self._stage] == rank].sum()
            taken = always + np.array(moments) @ by_stage
            worst = int(taken.argmax())
            if taken[worst] > self._room[rank] * (self._free[rank] + ROUNDING):
                values = self._taken(rank, moments[worst])
                columns = np.flatnonzero(values).astype(np.int32)
                self._of_memory.append((int(self._solver.getNumRow()), rank))
                self._solver.addRow(-np.inf, self._free[rank], len(columns), columns, values[columns])
                found = True
        return found

    def add(self, path: Path) -> None:
        """No makespan is below this path."""
        along = (path.passes[self._stage] * self._seconds).sum(axis=1)
        least = float((path.passes * self._fixed).sum() + path.crossings @ self._hops)
        columns = np.arange(self._columns + 1, dtype=np.int32)
        self._solver.addRow(least, np.inf, len(columns), columns, np.append(-along, 1.0))
        self.paths += 1

    def within(self, limits: Limits) -> None:
        """From now on no deal is beyond these."""
        low, high = np.array((*limits.stages, *limits.ranks), dtype=np.float64).T
        self._solver.changeRowsBounds(
            len(self._sums), self._sums, np.ascontiguousarray(low), np.ascontiguousarray(high)
        )
        allowed = np.zeros((len(limits.ways), int(self._offer.max()) + 1), dtype=bool)
        for rank, ways in enumerate(limits.ways):
            allowed[rank, list(ways)] = True
        most = np.where(allowed[self._homes[self._stage], self._offer], np.inf, 0.0)
        for rank, ways in enumerate(limits.ways):
            self._free[rank] = 1 - self._empty[rank][list(ways)].min() / self._room[rank]
        for row, rank in self._of_memory:
            self._solver.changeRowBounds(row, -np.inf, self._free[rank])
        columns = np.arange(self._columns, dtype=np.int32)
        self._solver.changeColsBounds(self._columns, columns, np.zeros(self._columns), most)

    def solve(self) -> float:
        """The least makespan with what comes after it, by the paths so far; infinite where nothing fits [s]."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return float("inf")
        # A simplex leaves zeros that are below zero by its tolerance; no stage takes less than no time.
        self._solution = np.maximum(self._solver.getSolution().col_value, 0.0)
        return float(self._solver.getInfo().objective_function_value)

    @property
    def makespan(self) -> float:
        """Of the last solution, by the paths so far [s]."""
        return float(self._solution[-2])

    def layers(self) -> list[Array]:
        """Of the last solution: by stage, [offer, kind]."""
        pairs = zip(pairwise(self._starts.tolist()), self._shape, strict=True)
        return [self._solution[a:b].reshape(shape) for (a, b), shape in pairs]

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
