"""The choice of layouts as a network of costs, priced by the same terms as the evaluator.

Costs are whole numbers of a tick, so small that rounding does not matter, because the solver's proofs count in
units. Alike operators share their tables; with ``fold`` those of repeated blocks share their choice too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.intra_op.liveness import rows_of
from planner.intra_op.network import Network
from planner.intra_op.problem import Array
from planner.tracing.evaluation import node_bytes
from planner.tracing.layouts import Layout
from planner.tracing.lifetimes import node_intervals
from planner.tracing.nodes import Link, NodeOption, Nodes, left_layout, refused, wanted_layout
from planner.tracing.options import Option
from planner.tracing.pricing import ProgramPricer

TICKS = 10_000_000
"""Ticks in the sum of every node's cheapest cost."""


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """A network whose nodes are classes of the program's nodes."""

    options: tuple[tuple[NodeOption, ...], ...]
    """Per node of the program."""
    group: tuple[int, ...]
    """Per node of the program, the node of the network that decides for it."""
    seconds: tuple[Array, ...]
    """Per node of the program, of each option [s]."""
    links: tuple[tuple[int, int, Array], ...]
    """Between nodes of the program: [s] by their options, ``inf`` where forbidden."""
    bytes_: tuple[tuple[Array, ...], ...]
    """Per node of the program and output, of each option [B]."""
    intervals: tuple[tuple[tuple[int, int], ...], ...]
    """Per node of the program and output, when it is held."""

    @property
    def tick(self) -> float:
        """Seconds per unit of cost."""
        least = sum(float(s.min()) for s in self.seconds)
        dearest = max((float(s.max()) for s in self.seconds), default=0.0)
        return max(least, dearest / 1000, 1e-9) / TICKS

    def network(self, memory_limit: float) -> Network:
        """The network, under a limit on the memory of every moment [B]."""
        tick = self.tick
        costs: dict[int, Array] = {}
        for node, seconds in enumerate(self.seconds):
            g = self.group[node]
            costs[g] = costs.get(g, np.zeros(seconds.size)) + np.rint(seconds / tick)
        flat = [
            (self.group[node], span, held)
            for node, spans in enumerate(self.intervals)
            for span, held in zip(spans, self.bytes_[node], strict=True)
        ]
        pieces, capacity = rows_of([span for _, span, _ in flat], [held for _, _, held in flat], memory_limit)
        network = Network(costs, {}, capacity)
        for k, piece in pieces.items():
            own = network.pieces[flat[k][0]]
            own[piece.rows] = own.get(piece.rows, 0.0) + piece.bytes_
        for u, v, seconds in self.links:
            network.add_table(self.group[u], self.group[v], np.rint(seconds / tick))
        return network


def layout_problem(
    pricer: ProgramPricer,
    nodes: Nodes,
    options: Sequence[tuple[NodeOption, ...]],
    group: Sequence[int],
    state_share: float,
) -> LayoutProblem:
    """Tabulate every option and every link."""
    tables = _Tables(pricer, nodes, options)
    return LayoutProblem(
        options=tuple(options),
        group=tuple(group),
        seconds=tuple(tables.seconds(node) for node in range(len(options))),
        links=tuple((link.source.node, link.target.node, tables.link(link)) for link in nodes.links),
        bytes_=tuple(tables.held(node, state_share) for node in range(len(options))),
        intervals=tuple(tuple(spans) for spans in node_intervals(pricer.program, nodes)),
    )


class _Tables:
    """Rows of the problem; what is alike is priced once."""

    def __init__(
        self, pricer: ProgramPricer, nodes: Nodes, options: Sequence[tuple[NodeOption, ...]]
    ) -> None:
        self.pricer, self.nodes, self.options = pricer, nodes, options
        self.known: dict[tuple[object, ...], Array] = {}
        self.spots: dict[tuple[object, ...], tuple[list[Layout], Array]] = {}

    def seconds(self, node: int) -> Array:
        """Of each option of a node; copies are free."""
        first = len(self.nodes.inputs)
        if node < first:
            return np.array(
                [self.pricer.arrival(self.nodes.inputs[node], left_layout(o, 0)) for o in self.options[node]]
            )
        if node >= first + len(self.nodes.operations):
            return np.zeros(len(self.options[node]))
        op = self.nodes.operations[node - first]
        value = self.pricer.program.value
        arrays = tuple((value[n].shape, value[n].dtype) for n in (*op.inputs, *op.outputs))
        key = (id(self.options[node]), op.times, arrays, op.reductions, op.halos)
        if key not in self.known:
            found = [
                self.pricer.operation(op, o).seconds for o in self.options[node] if isinstance(o, Option)
            ]
            self.known[key] = np.array(found)
        return self.known[key]

    def held(self, node: int, state_share: float) -> tuple[Array, ...]:
        """Bytes of each option, output by output."""
        choices = self.options[node]
        first = len(self.nodes.inputs)
        if first <= node < first + len(self.nodes.operations):
            outputs = self.nodes.operations[node - first].outputs
        elif node < first:
            outputs = (self.nodes.inputs[node],)
        else:
            outputs = (self.nodes.copies[node - first - len(self.nodes.operations)].value,)
        sizes = tuple(self.pricer.full_bytes(n) for n in outputs)
        role = self.pricer.program.value[outputs[0]].role if node < first and outputs else ""
        key = ("held", id(choices), sizes, role)
        if key not in self.known:
            rows = [node_bytes(self.pricer, self.nodes, node, o, state_share) for o in choices]
            self.known[key] = np.array(rows).reshape(len(choices), len(outputs))
        return tuple(self.known[key].T)

    def link(self, link: Link) -> Array:
        """[source's option, target's option]."""
        before, after = self.options[link.source.node], self.options[link.target.node]
        left, rows = self._spots(
            ("left", id(before), link.source.place), [left_layout(o, link.source.place) for o in before]
        )
        how = ("wanted", id(after), link.target.place, link.returned)
        right, columns = self._spots(how, [wanted_layout(o, link) for o in after])
        size = self.pricer.full_bytes(link.value)
        key = (id(before), link.source.place, how, link.times, size, link.copied)
        if key not in self.known:
            moves = np.array([[self._move(link, s, t) for t in right] for s in left])
            table = moves[np.ix_(rows.astype(np.intp), columns.astype(np.intp))]
            if link.copied:
                bad = [[refused(link, s, o) for o in after] for s in left]
                table = np.where(np.array(bad)[rows.astype(np.intp)], np.inf, table)
            self.known[key] = table
        return self.known[key]

    def _spots(self, key: tuple[object, ...], layouts: list[Layout]) -> tuple[list[Layout], Array]:
        """Distinct layouts, and for each option which of them it has."""
        if key not in self.spots:
            distinct = {layout: i for i, layout in enumerate(dict.fromkeys(layouts))}
            self.spots[key] = list(distinct), np.array([distinct[layout] for layout in layouts])
        return self.spots[key]

    def _move(self, link: Link, source: Layout, target: Layout) -> float:
        return sum(e.seconds * e.times for e in self.pricer.move(link.value, source, target, link.times))


def chosen_options(problem: LayoutProblem, choice: Mapping[int, int]) -> tuple[NodeOption, ...]:
    """Per node of the program, the option that the network's choice stands for."""
    return tuple(options[choice[g]] for options, g in zip(problem.options, problem.group, strict=True))
