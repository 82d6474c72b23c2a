"""What is left of a network as an integer linear program, memory rows added as they are violated.

Variables::

    x[v, s] in {0, 1}    node v takes strategy s
    y[e, i, j] >= 0      edge e = (u, v) is paid at [i, j]; integral whenever x is

Rows::

    sum_s x[v, s] = 1                   for every node
    sum_j y[e, i, j] = x[u, i]          for every edge and strategy of one end; the same for the other
    sum bytes[v, s, r] x[v, s] <= capacity[r]      for memory row r, once an answer has violated it

A program without some rows is a relaxation: if its optimum violates none of them, it is the optimum of all.
Rows are first added to the linear relaxation, where they are cheap.

Source: Werner, "A linear programming approach to max-sum problem", IEEE PAMI 29 (2007); rows on demand as in
Dantzig, Fulkerson and Johnson, "Solution of a large-scale traveling-salesman problem", Operations Research 2
(1954).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import highspy
import numpy as np
import numpy.typing as npt

from planner.highs import RowProgram, loaded, run
from planner.intra_op import clock
from planner.intra_op.liveness import demand, violated
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network
from planner.intra_op.problem import Array
from planner.intra_op.shrinking import shrink

Indices = npt.NDArray[np.int32]

LARGEST_EXPONENT = 13
"""Costs are scaled to at most 2**13; the solver tolerates errors of about 1e-7."""

ROW_TOLERANCE = 1e-6
"""Relative; what a linear relaxation may exceed a capacity by before its row is added."""

WHOLE = 0.9
"""Costs are integers: a gap below one proves an optimum. A little is left for rounding."""

ROUNDING = 1e-9
"""Relative; what a bound may be too high by."""

LEAST_DROPPED = 0.3
"""Share of the network that must go before the relaxation is worth solving anew."""

PUNCTUALITY = 0.9
"""Share of the time left that the solver is told, since it looks at its clock only now and then."""

UNLIMITED = 2**31 - 1

MAX_ROWS_AT_ONCE = 30

SWEEPS = 5
"""Sweeps of messages before the first relaxation."""

Positions = dict[int, int]
"""Node -> position of its strategy among those left."""


class ProgramAnswer(NamedTuple):
    """What the program gave."""

    choice: Positions | None
    """Feasible; None where none was found in time, or there is none."""
    lower_bound: float
    """No choice costs less; ``inf`` where there is none."""


class _Rows(NamedTuple):
    """Sparse equalities."""

    starts: Indices
    columns: Indices
    values: Array
    right: Array


class LocalPolytope:
    """The program of one network, and the solver that holds it."""

    def __init__(self, network: Network, rows: Collection[int] = ()) -> None:
        """With the memory ``rows``, by original number, that are still there."""
        self.network = network
        self.nodes = sorted(network.nodes)
        sizes = [network.costs[v].size for v in self.nodes]
        self.first = dict(zip(self.nodes, np.cumsum([0, *sizes]).tolist(), strict=False))
        """Node -> column of its first strategy; the others follow."""
        self.num_binary = sum(sizes)
        self.used: dict[int, int] = {}
        """Memory row -> its place among the rows of the program."""
        costs, ties = _columns_and_rows(network, self.nodes, self.first, self.num_binary)
        largest = float(costs.max(initial=1.0))
        self.scale = float(np.ldexp(1.0, LARGEST_EXPONENT - int(np.frexp(largest)[1])))
        self.solver = _load(self.scale * costs, ties)
        self.solver.setOptionValue("mip_abs_gap", WHOLE * self.scale)
        for at, row in enumerate(network.rows.tolist()):
            if row in rows:
                self.add_row(at)

    @property
    def rows(self) -> set[int]:
        """Original numbers of the memory rows in the program."""
        return {int(self.network.rows[row]) for row in self.used}

    def use_interior_point(self) -> None:
        """For programs on which the simplex method takes long."""
        self.solver.setOptionValue("solver", "ipm")
        self.solver.setOptionValue("run_crossover", "off")

    def relax(self, deadline: float) -> float:
        """The value of the linear relaxation under all memory rows; -inf where time was short."""
        value = -np.inf
        for answer in _answers(self, deadline, integral=False):
            value = answer.lower_bound
        return value

    def add_row(self, row: int) -> None:
        """Put a memory row into the program, in units of its capacity."""
        self.used[row] = self.solver.getNumRow()
        bytes_ = np.concatenate([self._bytes(v, row) for v in self.nodes])
        columns = np.flatnonzero(bytes_).astype(np.int32)
        unit = self._unit(row)
        right = float(self.network.capacity[row]) / unit
        self.solver.addRow(-np.inf, right, columns.size, columns, bytes_[columns] / unit)

    def exclude(self, row: int, choice: Positions, *, integral: bool) -> bool:
        """Put a violated row into the program, or what makes up for the solver's tolerance; whether it helps."""
        if row not in self.used:
            self.add_row(row)
            return True
        if integral:
            self.add_cover(row, choice)
        return integral

    def add_cover(self, row: int, choice: Positions) -> None:
        """Forbid what takes as much of a row as ``choice``, which exceeds it by less than the solver notices."""
        columns: list[int] = []
        members = 0
        for v in self.nodes:
            total = self._bytes(v, row)
            if total[choice[v]] > 0:
                members += 1
                columns.extend(self.first[v] + int(s) for s in np.flatnonzero(total >= total[choice[v]]))
        indices = np.array(columns, dtype=np.int32)
        self.solver.addRow(-np.inf, members - 1.0, indices.size, indices, np.ones(indices.size))

    def _unit(self, row: int) -> float:
        return max(float(self.network.capacity[row]), 1.0)

    def _bytes(self, v: int, row: int) -> Array:
        total = np.zeros(self.network.costs[v].size)
        for (first, last), bytes_ in self.network.pieces[v].items():
            if first <= row < last:
                total += bytes_
        return total

    def run(self, deadline: float, *, integral: bool) -> Any:
        """Solve with the rows so far; the status."""
        kind = highspy.HighsVarType.kInteger if integral else highspy.HighsVarType.kContinuous
        columns = np.arange(self.num_binary, dtype=np.int32)
        self.solver.changeColsIntegrality(self.num_binary, columns, np.full(self.num_binary, kind))
        self.solver.setOptionValue("presolve", "off" if integral else "choose")  # it is reduced already
        self._limit(deadline, integral=integral)
        run(self.solver)
        self._count(integral=integral)
        return self.solver.getModelStatus()

    def _limit(self, deadline: float, *, integral: bool) -> None:
        """Let the solver end about then: by the wall, and where work is counted by its own nodes or iterations."""
        time_limit = self.solver.getRunTime() + PUNCTUALITY * clock.wall_left(deadline)
        left = max(deadline - clock.now(), 0.0) if clock.is_counted() else np.inf
        columns = self.solver.getNumCol()
        nodes = 1 + left / (clock.BRANCH + clock.BRANCH_OF_A_COLUMN * columns)
        pivots = UNLIMITED if integral else 1 + left / (clock.PIVOT_OF_A_COLUMN * columns)
        self.solver.setOptionValue("time_limit", time_limit)
        self.solver.setOptionValue("mip_max_nodes", int(min(nodes, UNLIMITED)))
        self.solver.setOptionValue("simplex_iteration_limit", int(min(pivots, UNLIMITED)))

    def _count(self, *, integral: bool) -> None:
        """Count what the solver did."""
        info, columns = self.solver.getInfo(), self.solver.getNumCol()
        pivots = max(info.simplex_iteration_count, 0) + max(info.ipm_iteration_count, 0)
        each = clock.PIVOT_WITH_CUTS if integral else clock.PIVOT_OF_A_COLUMN
        clock.work(each * columns * (clock.PIVOTS_TO_BEGIN + pivots))

    def weights(self) -> dict[int, Array]:
        """How much of each strategy the last answer takes, by node."""
        values = np.array(self.solver.getSolution().col_value)
        return {v: values[at : at + self.network.costs[v].size] for v, at in self.first.items()}

    def relaxation(self) -> Relaxation:
        """What the duals of the last linear relaxation say, as messages and prices; any prove a bound."""
        duals = np.array(self.solver.getSolution().row_dual) / self.scale
        messages = {}
        place = len(self.nodes)
        for u in self.nodes:
            for v, table in self.network.tables[u].items():
                if u < v:
                    ends = np.split(duals[place : place + sum(table.shape)], [table.shape[0]])
                    messages[u, v], messages[v, u] = ends
                    place += sum(table.shape)
        prices = {
            int(self.network.rows[row]): max(0.0, -duals[at]) / self._unit(row)
            for row, at in self.used.items()
        }
        return Relaxation(self.network, prices, messages)

    def bound(self, *, integral: bool) -> float:
        """What the last run proved."""
        info = self.solver.getInfo()
        value = info.mip_dual_bound if integral else info.objective_function_value
        return float(value) / self.scale + self.network.constant


def solve_program(
    network: Network, deadline: float, cutoff: float = np.inf, prices: Mapping[int, float] | None = None
) -> ProgramAnswer:
    """The cheapest choice of a reduced network below ``cutoff``, found before the clock says ``deadline``.

    Duals of the relaxation drop strategies, and pairs of them, that only dearer choices contain, and the
    network, which the choice refers to, is reduced further while that drops enough. The bound is ``inf`` where
    no choice costs less than the cutoff, or none is allowed. Known ``prices`` of memory, by original row, help.
    """
    bound = network.floor
    rows: Collection[int] = prices or {}
    if np.isfinite(cutoff):
        _fix_by_messages(network, deadline, cutoff, prices or {})
    while network.nodes:
        program = LocalPolytope(network, rows)
        relaxed = program.relax(deadline)
        bound, rows = max(bound, relaxed), program.rows
        if bound - ROUNDING * abs(bound) > cutoff - WHOLE:
            return ProgramAnswer(None, np.inf)
        if np.isinf(relaxed) or np.isinf(cutoff):
            return _decide(program, bound, deadline)
        before = network.size
        program.relaxation().fix(cutoff)
        shrink(network, deadline)
        if network.size >= (1 - LEAST_DROPPED) * before:
            return _decide(LocalPolytope(network, rows), bound, deadline)
    if network.constant > cutoff - WHOLE:
        return ProgramAnswer(None, np.inf)
    return ProgramAnswer({}, network.constant)


def _fix_by_messages(network: Network, deadline: float, cutoff: float, prices: Mapping[int, float]) -> None:
    relaxation = Relaxation(network, prices)
    for _ in range(SWEEPS):
        relaxation.sweep()
    relaxation.fix(cutoff)
    shrink(network, deadline)


def _decide(program: LocalPolytope, bound: float, deadline: float) -> ProgramAnswer:
    for answer in _answers(program, deadline, integral=True):
        bound = max(bound, answer.lower_bound)
        if np.isinf(bound) or answer.choice is not None:
            return ProgramAnswer(answer.choice, bound)
    return ProgramAnswer(None, bound)


def _answers(program: LocalPolytope, deadline: float, *, integral: bool) -> Iterator[ProgramAnswer]:
    """Answers of the program, each after the rows that the last one violated were added."""
    status_of = highspy.HighsModelStatus
    network = program.network
    while clock.now() < deadline:
        status = program.run(deadline, integral=integral)
        if status == status_of.kInfeasible:
            yield ProgramAnswer(None, np.inf)
            return
        solved = status == status_of.kOptimal
        bound = program.bound(integral=integral) if solved or integral else -np.inf
        if not solved and not (integral and _has_choice(program)):
            yield ProgramAnswer(None, bound)
            return
        weights = program.weights()
        if integral:
            weights = {v: (w == w.max()).astype(float) for v, w in weights.items()}
        choice = {v: int(w.argmax()) for v, w in weights.items()}
        bad = violated(network, demand(network, weights), 0.0 if integral else ROW_TOLERANCE)
        yield ProgramAnswer(choice if integral and not bad else None, bound)
        helped = [program.exclude(row, choice, integral=integral) for row in bad[:MAX_ROWS_AT_ONCE]]
        if not any(helped):
            return


def _has_choice(program: LocalPolytope) -> bool:
    return bool(program.solver.getInfo().primal_solution_status == 2)


def _columns_and_rows(
    network: Network, nodes: list[int], first: dict[int, int], num_binary: int
) -> tuple[Array, _Rows]:
    """Costs of all columns, the pairs' after the strategies', and the rows that tie them together."""
    costs = [network.costs[v] for v in nodes]
    owners = [np.repeat(np.arange(len(nodes)), [c.size for c in costs])]
    columns, values = [np.arange(num_binary)], [np.ones(num_binary)]
    num_rows, num_columns = len(nodes), num_binary
    for u in nodes:
        for v, table in network.tables[u].items():
            if v < u:
                continue
            i, j = np.nonzero(np.isfinite(table))
            pairs = num_columns + np.arange(i.size)
            ends = np.arange(sum(table.shape))
            strategies = np.concatenate(
                [first[u] + np.arange(table.shape[0]), first[v] + np.arange(table.shape[1])]
            )
            owners.append(num_rows + np.concatenate([i, table.shape[0] + j, ends]))
            columns.append(np.concatenate([pairs, pairs, strategies]))
            values.append(np.repeat([1.0, -1.0], [2 * i.size, ends.size]))
            costs.append(table[i, j])
            num_rows, num_columns = num_rows + ends.size, num_columns + i.size
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=num_rows))])
    right = np.where(np.arange(num_rows) < len(nodes), 1.0, 0.0)
    column, value = np.concatenate(columns)[order], np.concatenate(values)[order]
    return np.concatenate(costs), _Rows(starts.astype(np.int32), column.astype(np.int32), value, right)


def _load(costs: Array, rows: _Rows) -> Any:
    """HiGHS with the relaxation: all variables between 0 and 1."""
    least, most = np.zeros(costs.size), np.ones(costs.size)
    program = RowProgram(costs, least, most, rows.right, rows.right, rows.starts, rows.columns, rows.values)
    return loaded(program, {"solver": "simplex", "mip_rel_gap": 0.0})
