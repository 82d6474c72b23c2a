"""The choice of layouts as a network of costs, priced by the same terms as the evaluator.

Costs are whole numbers of a tick, so small that rounding does not matter, because the solver's proofs count in
units. Alike operators share their tables; with ``fold`` those of repeated blocks share their choice too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from planner.intra_op.compact import Between, Compact
from planner.intra_op.liveness import rows_of
from planner.intra_op.network import Rows
from planner.intra_op.problem import Array
from planner.tracing.solving.lifetimes import Interval, node_intervals
from planner.tracing.solving.nodes import CopyOption, NodeOption, NodeOptions, Nodes
from planner.tracing.solving.options import Options
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.tables import Moves, Tables

TICKS = 10_000_000
"""Ticks in the sum of every node's cheapest cost."""


class Memory(NamedTuple):
    """What each node of the program holds, output by output."""

    intervals: list[list[Interval]]
    """When."""
    bytes_: list[tuple[Array, ...]]
    """Of each option [B]."""


@dataclass(frozen=True)
class LayoutProblem:
    """A network whose nodes are classes of the program's nodes."""

    options: tuple[NodeOptions, ...]
    """Per node of the program."""
    group: tuple[int, ...]
    """Per node of the program, the node of the network that decides for it."""
    order: tuple[int, ...]
    """Nodes of the network as messages go through them."""
    seconds: tuple[Array, ...]
    """Per node of the program, of each option [s]."""
    links: tuple[tuple[int, int, Moves], ...]
    """Between nodes of the program."""
    memory: Callable[[], Memory]
    """What options hold, tabulated when it is asked for."""

    @property
    def tick(self) -> float:
        """Seconds per unit of cost."""
        least = sum(float(s.min()) for s in self.seconds)
        dearest = max((float(s.max()) for s in self.seconds), default=0.0)
        return max(least, dearest / 1000, 1e-9) / TICKS

    def network(self, memory_limit: float) -> Compact:
        """The network, under a limit on the memory of every moment [B]; without one only what is fastest then."""
        tables = (Between((u, v), m.table, (m.rows, m.columns)) for u, v, m in self._ticking())
        if math.isfinite(memory_limit):
            return Compact(self._costs(), tables, self.order, self._pieces(memory_limit))
        network = Compact(self._costs(), tables, self.order)
        options = dict(zip(self.group, self.options, strict=True))
        fastest = {id(found): _unlimited(found) for found in options.values()}
        for v, g in enumerate(self.order):
            if (kept := fastest[id(options[g])]) is not None:
                network.keep(v, kept)
        return network

    def peak(self, of_options: Callable[[Array], float]) -> float:
        """Bytes at the moment when they are most, where every array takes so much of what its options do [B].

        With ``np.min`` no choice takes less, with ``np.max`` none more, but for what operators move for themselves.
        """
        pieces, capacity = self._pieces(0.0)
        change = np.zeros(capacity.size + 1)
        for own in pieces.values():
            for (first, last), bytes_ in own.items():
                change[first] += of_options(bytes_)
                change[last] -= of_options(bytes_)
        return float(np.cumsum(change).max())

    def _pieces(self, memory_limit: float) -> tuple[dict[int, dict[Rows, Array]], Array]:
        """Memory of each node of the network, and the capacity of each row."""
        flat = [
            (group, span, held)
            for group, intervals, bytes_ in zip(self.group, *self.memory(), strict=True)
            for span, held in zip(intervals, bytes_, strict=True)
        ]
        pieces, capacity = rows_of([span for _, span, _ in flat], [held for _, _, held in flat], memory_limit)
        found: dict[int, dict[Rows, Array]] = {}
        for k, piece in pieces.items():
            own = found.setdefault(flat[k][0], {})
            own[piece.rows] = own.get(piece.rows, 0.0) + piece.bytes_
        return found, capacity

    def _costs(self) -> dict[int, Array]:
        tick = self.tick
        costs: dict[int, Array] = {}
        for g, seconds in zip(self.group, self.seconds, strict=True):
            costs[g] = costs.get(g, np.zeros(seconds.size)) + np.rint(seconds / tick)
        return costs

    def _ticking(self) -> Iterator[tuple[int, int, Moves]]:
        """Links between nodes of the network, in whole ticks."""
        tick = self.tick
        different = {id(moves.table): moves.table for _, _, moves in self.links}
        ticks = {key: np.rint(table / tick) for key, table in different.items()}
        for u, v, moves in self.links:
            yield self.group[u], self.group[v], Moves(ticks[id(moves.table)], moves.rows, moves.columns)


def _unlimited(options: NodeOptions) -> npt.NDArray[np.intp] | None:
    """Options to keep without a limit: a copy may as well hold its own, and what a loop goes over be brought."""
    if isinstance(options, Options):
        return None if options.brought is None else np.flatnonzero(options.brought)
    return np.flatnonzero([o.held for o in options]) if _are_copies(options) else None


def _are_copies(options: NodeOptions) -> TypeGuard[tuple[CopyOption, ...]]:
    return isinstance(options[0], CopyOption)


def layout_problem(
    pricer: ProgramPricer,
    nodes: Nodes,
    options: Sequence[NodeOptions],
    group: Sequence[int],
    state_share: float,
) -> LayoutProblem:
    """Tabulate every option and every link; nodes of one ``group`` share their choice."""
    tables = Tables(pricer, nodes, options)

    @cache
    def memory() -> Memory:
        held = [tables.held(node, state_share) for node in range(len(options))]
        return Memory(node_intervals(pricer.program, nodes), held)

    return LayoutProblem(
        options=tuple(options),
        group=tuple(group),
        order=tuple(dict.fromkeys(group[node] for node in nodes.inwards)),
        seconds=tuple(tables.seconds(node) for node in range(len(options))),
        links=tuple((link.source.node, link.target.node, tables.link(link)) for link in nodes.links),
        memory=memory,
    )


def chosen_options(problem: LayoutProblem, choice: Mapping[int, int]) -> tuple[NodeOption, ...]:
    """Per node of the program, the option that the network's choice stands for."""
    return tuple(options[choice[g]] for options, g in zip(problem.options, problem.group, strict=True))
