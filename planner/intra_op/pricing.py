"""The choice of strategies for one block as a `StrategyProblem`, priced by the same terms as the evaluator.

A node is an operator; its seconds are forward and backward, its bytes the activations that it keeps. An edge is
a tensor between two operators; its seconds are the resharding of the tensor and of its gradient. A block that
repeats receives what it leaves, so its input's edges come from its own output.

By roles, all choices store the same weights and ZeRO is decided around the ILP. In the free space the choice
decides how many copies of a weight exist, so the weights' states and gradient reduction are priced too, and each
operator may keep its weights whole or sharded over the ranks that would hold copies, gathered on use.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.evaluation.edges import Edge, edges_of
from planner.evaluation.rematerialisation import rematerialised
from planner.graph import Block, Op
from planner.intra_op.problem import Array, StrategyProblem
from planner.sharding.pricing import Pricer
from planner.sharding.spec import ShardingSpec, Strategy, carried, input_spec
from planner.sharding.strategies import Space, legality, strategies


class Option(NamedTuple):
    """One way to run an operator and to store its weights."""

    strategy: Strategy
    sharded: bool = False
    """Weights are stored in shards over the ranks that sum their gradients, and gathered on use (ZeRO-3)."""

    def __str__(self) -> str:
        split = ",".join(f"{axis}:{dim}" for axis, dim in self.strategy) or "replicated"
        return f"{split} sharded" if self.sharded else split


class PricedBlock(NamedTuple):
    """A block's problem, with what is needed to read its answer."""

    problem: StrategyProblem
    options: tuple[tuple[Option, ...], ...]
    """Per operator, in the block's order."""

    def assignment(self, block: Block, choice: Sequence[int]) -> Mapping[str, Strategy]:
        """Operator name -> chosen strategy."""
        return {op.name: self.options[i][choice[i]].strategy for i, op in enumerate(block.ops)}

    def sharded(self, block: Block, choice: Sequence[int]) -> frozenset[str]:
        """Operators whose weights the choice stores in shards."""
        return frozenset(op.name for i, op in enumerate(block.ops) if self.options[i][choice[i]].sharded)

    def choice(self, block: Block, assignment: Mapping[str, Strategy]) -> tuple[int, ...]:
        """Indices of ``assignment``, weights whole; raises ``ValueError`` where a strategy is not in the space."""
        return tuple(
            self.options[i].index(Option(tuple(assignment[op.name]))) for i, op in enumerate(block.ops)
        )


class Ends(NamedTuple):
    """What lies before and after a block."""

    entry: ShardingSpec | None = None
    """How the block before leaves its output; None for a block that follows itself."""
    leaves: ShardingSpec | None = None
    """How the block after wants it, at a price; None for a block that follows itself."""


class StateCost(NamedTuple):
    """What one weight element costs, for the free space."""

    bytes_per_element: float
    """Weights, gradients and optimizer states [bytes]."""
    gather_bytes_per_element: float
    """Of a weight, as gathered [bytes]."""
    reduce_bytes_per_element: float
    """Of its gradient, as reduced [bytes]."""
    microbatches: int
    """Over which the reduction of whole gradients is spread; sharded ones are reduced every time."""


class Situation(NamedTuple):
    """What a block is priced for."""

    policy: str = "none"
    ends: Ends = Ends()
    states: StateCost | None = None
    """None: weights are left to whoever asks."""


def price_block(
    pricer: Pricer,
    block: Block,
    situation: Situation | None = None,
    space: Space = "roles",
    memory_limit: float = float("inf"),
) -> PricedBlock:
    """Tabulate every option and edge of ``block``.

    What the policy repeats in the backward is counted twice; full recomputation repeats communication too.
    """
    table = _Table(pricer, block, situation or Situation())
    options, labels = table.options(space)
    seconds, held = map(
        list, zip(*(table.row(op, o) for op, o in zip(block.ops, options, strict=True)), strict=True)
    )
    index = {op.name: i for i, op in enumerate(block.ops)}
    edges, tables = [], []
    for edge in edges_of(block):
        v = index[edge.consumer]
        maker = table.maker(edge)
        if maker is None:
            source = carried(pricer.graph, block.tensor[edge.tensor], table.ends.entry or ShardingSpec())
            seconds[v] = seconds[v] + [table.edge_seconds(edge, source, o.strategy) for o in options[v]]
        else:
            edges.append((index[maker.name], v))
            tables.append(table.edge_table(edge, maker, options[index[maker.name]], options[v]))
    problem = StrategyProblem(
        nodes=tuple(op.name for op in block.ops),
        seconds=tuple(seconds),
        bytes_=tuple(held),
        edges=tuple(edges),
        edge_seconds=tuple(tables),
        memory_limit=memory_limit,
        labels=labels,
    )
    return PricedBlock(problem, options)


def seconds_alone(pricer: Pricer, block: Block, policy: str) -> float:
    """Of the operators, each in its own fastest way, whatever has to move between them: no choice takes less [s]."""
    table = _Table(pricer, block, Situation(policy))
    choices = table.options("roles").options
    return sum(float(min(table.row(op, own)[0].tolist())) for op, own in zip(block.ops, choices, strict=True))


class _Options(NamedTuple):
    """Per operator, in the block's order."""

    options: tuple[tuple[Option, ...], ...]
    labels: tuple[tuple[str, ...], ...]


class _Table:
    """Rows of the problem for one block."""

    def __init__(self, pricer: Pricer, block: Block, situation: Situation) -> None:
        self.pricer, self.block = pricer, block
        self.ends, self.states = situation.ends, situation.states
        self.repeated, self.kept, self.moved_again, self.exchanged = rematerialised(
            pricer, block, situation.policy
        )
        self.outlet = block.producer.get(block.outputs[0]) if block.outputs else None
        self.by_name = {op.name: op for op in block.ops}
        self._places: dict[str, object] = {}
        # A reduction of gradients depends on how many ranks split the batch; nothing else does.
        self._what = self._token(
            "what", (situation, *(pricer.mesh.sizes.values() if situation.states else ()))
        )

    def _token(self, kind: str, value: tuple[object, ...]) -> object:
        """What stands for a value that is part of many keys, so that it is hashed once."""
        return self.pricer.tables.setdefault((kind, value), object())

    def options(self, space: Space) -> _Options:
        """Of every operator, and their names."""
        key = ("options", self.block.name, self.states is None, space, *legality(self.pricer.sizes, space))
        found: _Options | None = self.pricer.tables.get(key)
        if found is None:
            options = tuple(self._options(op, space) for op in self.block.ops)
            labels = tuple(tuple(str(o) for o in choices) for choices in options)
            found = self.pricer.tables[key] = _Options(options, labels)
        return found

    def _options(self, op: Op, space: Space) -> tuple[Option, ...]:
        """Strategies, with and without sharded weights where they are priced."""
        options = [Option(s) for s in strategies(op, self.block, self.pricer.sizes, space)]
        if self.states is not None:
            options += [Option(o.strategy, True) for o in options if self._weights(op, o.strategy)]
        return tuple(options)

    def maker(self, edge: Edge) -> Op | None:
        """Operator that makes the edge's tensor; the block's own last one for a block that follows itself."""
        name = edge.producer or (self.outlet if self.ends.entry is None else None)
        return None if name is None else self.by_name[name]

    def row(self, op: Op, choices: Sequence[Option]) -> tuple[Array, Array]:
        """Node seconds, and node bytes: activations kept, and states where they are priced."""
        key = ("row", self.block.name, op.name, self._what, self._where(op, choices))
        found = self.pricer.tables.get(key)
        if found is None:
            seconds = [self._op_seconds(op, o) for o in choices]
            held = [self._kept_bytes(op, o.strategy) + self._state_bytes(op, o) for o in choices]
            found = self.pricer.tables[key] = (np.array(seconds), np.array(held))
        return found[0], found[1]

    def _where(self, op: Op, choices: Sequence[Option]) -> object:
        if op.name not in self._places:
            places = tuple((self.pricer.situation(o.strategy), o.sharded) for o in choices)
            self._places[op.name] = self._token("where", places)
        return self._places[op.name]

    def _op_seconds(self, op: Op, option: Option) -> float:
        cost = self.pricer.op(self.block, op, option.strategy)
        total = cost.seconds + self.repeated.get(op.name, 0.0) * cost.forward
        if op.name in self.exchanged:
            total += sum(comm.seconds for comm in cost.comm_forward)
        if op.name == self.outlet:
            total += self._leaving(op, option.strategy)
        return total + self._state_seconds(op, option)

    def edge_table(self, edge: Edge, maker: Op, left: Sequence[Option], right: Sequence[Option]) -> Array:
        """Edge seconds of every pair of options."""
        key = (
            "edge",
            self.block.name,
            edge,
            maker.name,
            edge in self.moved_again,
            self._where(maker, left),
            self._where(self.by_name[edge.consumer], right),
        )
        found = self.pricer.tables.get(key)
        if found is None:
            found = self.pricer.tables[key] = (self._edge_table(edge, maker, left, right),)
        return found[0]

    def _edge_table(self, edge: Edge, maker: Op, left: Sequence[Option], right: Sequence[Option]) -> Array:
        name = edge.tensor if edge.producer else self.block.outputs[0]
        made, read = self.block.tensor[name], self.block.tensor[edge.tensor]
        sources = [
            carried(self.pricer.graph, read, self.pricer.output(self.block, maker, made, o.strategy))
            for o in left
        ]
        return np.array([[self.edge_seconds(edge, source, o.strategy) for o in right] for source in sources])

    def edge_seconds(self, edge: Edge, source: ShardingSpec, strategy: Strategy) -> float:
        """One tensor from ``source`` to what ``strategy`` needs, and its gradient back."""
        cost = self.pricer.edge(self.block, edge.tensor, self.by_name[edge.consumer], source, strategy)
        backward = cost.backwards(edge in self.moved_again, self.pricer.software.shares_gathers)
        return sum(c.seconds for c in (*cost.forward, *backward))

    def _leaving(self, op: Op, strategy: Strategy) -> float:
        """Price of handing the block's output over."""
        graph, tensor = self.pricer.graph, self.block.tensor[self.block.outputs[0]]
        left = self.pricer.output(self.block, op, tensor, strategy)
        if self.ends.leaves is None:
            return 0.0
        return self.pricer.transition(tensor, left, carried(graph, tensor, self.ends.leaves)).seconds

    def _kept_bytes(self, op: Op, strategy: Strategy) -> float:
        outputs = (self.block.tensor[t] for t in op.outputs if t in self.kept)
        return sum(
            self.pricer.tensor_bytes(t, self.pricer.output(self.block, op, t, strategy)) for t in outputs
        )

    def _weights(self, op: Op, strategy: Strategy) -> list[tuple[tuple[str, ...], float]]:
        """(axes that sum the gradient, local elements) of each weight that has such axes."""
        found = []
        for weight in (self.block.tensor[w] for w in op.weights):
            axes = self.pricer.sync_axes(weight, strategy)
            if axes:
                spec = input_spec(self.pricer.graph, weight, strategy)
                found.append((axes, self.pricer.sizes.elements(weight, spec)))
        return found

    def _state_seconds(self, op: Op, option: Option) -> float:
        """Reduction of gradients, and gathering of sharded weights for forward and backward."""
        if self.states is None:
            return 0.0
        total = 0.0
        for axes, elements in self._weights(op, option.strategy):
            gradients = elements * self.states.reduce_bytes_per_element
            if option.sharded:
                weights = elements * self.states.gather_bytes_per_element
                total += 2 * self.pricer.comm("all_gather", axes, weights).seconds
                total += self.pricer.comm("reduce_scatter", axes, gradients).seconds
            else:
                total += self.pricer.comm("all_reduce", axes, gradients).seconds / self.states.microbatches
        return total

    def _state_bytes(self, op: Op, option: Option) -> float:
        if self.states is None:
            return 0.0
        total = 0.0
        for weight in (self.block.tensor[w] for w in op.weights):
            axes = self.pricer.sync_axes(weight, option.strategy)
            local = self.pricer.sizes.elements(weight, input_spec(self.pricer.graph, weight, option.strategy))
            total += local / (self.pricer.mesh.group(axes).size if option.sharded and axes else 1)
        return self.states.bytes_per_element * total
