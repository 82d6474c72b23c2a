"""The choice of strategies for one block as a `StrategyProblem`, priced by the same terms as the evaluator.

A node is an operator; its seconds are forward and backward, its bytes the activations that it keeps. An edge is
a tensor between two operators; its seconds are the resharding of the tensor and of its gradient. A block that
repeats receives what it leaves, so its input's edges come from its own output.

In the free space the weights' gradient reduction and states are priced too, because there the choice decides
how many copies of a weight exist; by roles all choices store the same weights.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.evaluation.blocks import Edge, edges_of
from planner.graph import Block, Op
from planner.intra_op.problem import StrategyProblem
from planner.operators import recomputed_ops, saved_tensors
from planner.sharding.pricing import Pricer
from planner.sharding.spec import ShardingSpec, Strategy, input_spec
from planner.sharding.strategies import Space, strategies


class PricedBlock(NamedTuple):
    """A block's problem, with what is needed to read its answer."""

    problem: StrategyProblem
    strategies: tuple[tuple[Strategy, ...], ...]
    """Per operator, in the block's order."""

    def assignment(self, block: Block, choice: Sequence[int]) -> Mapping[str, Strategy]:
        """Operator name -> chosen strategy."""
        return {op.name: self.strategies[i][choice[i]] for i, op in enumerate(block.ops)}

    def choice(self, block: Block, assignment: Mapping[str, Strategy]) -> tuple[int, ...]:
        """Indices of ``assignment``; raises ``ValueError`` where a strategy is not in the space."""
        return tuple(self.strategies[i].index(tuple(assignment[op.name])) for i, op in enumerate(block.ops))


class Ends(NamedTuple):
    """What lies before and after a block."""

    entry: ShardingSpec | None = None
    """How the block before leaves its output; None for a block that follows itself."""
    leaves: ShardingSpec | None = None
    """How the block after wants it, at a price; None for a block that follows itself."""
    must_leave: ShardingSpec | None = None
    """How it must be left; None is free."""


class StateCost(NamedTuple):
    """What one stored weight element costs, for the free space."""

    bytes_per_element: float
    """Weights, gradients and optimizer states [bytes]."""
    reduce_bytes_per_element: float
    """Of its gradient, as reduced [bytes]."""
    microbatches: int
    """Over which one reduction is spread."""


def price_block(
    pricer: Pricer,
    block: Block,
    *,
    space: Space = "roles",
    policy: str = "none",
    memory_limit: float = float("inf"),
    ends: Ends = Ends(),
    states: StateCost | None = None,
) -> PricedBlock:
    """Tabulate every strategy and edge of ``block``.

    What the policy repeats in the backward is counted twice; full recomputation repeats communication too.
    """
    options = tuple(strategies(op, block, pricer.sizes, space) for op in block.ops)
    index = {op.name: i for i, op in enumerate(block.ops)}
    again = policy == "full"
    repeated = set(recomputed_ops(block, policy, pricer.job.attention))
    kept = set(saved_tensors(block, policy, pricer.job.attention))
    outlet = block.producer.get(block.outputs[0]) if block.outputs else None
    seconds, held = [], []
    for op, choices in zip(block.ops, options, strict=True):
        costs = [pricer.op(block, op, s) for s in choices]
        seconds.append(
            np.array(
                [
                    c.seconds
                    + (op.name in repeated) * c.forward
                    + again * sum(x.seconds for x in c.comm_forward)
                    for c in costs
                ]
            )
        )
        if op.name == outlet:
            seconds[-1] = seconds[-1] + [_leaving(pricer, block, op, s, ends) for s in choices]
        held.append(np.array([_kept_bytes(pricer, block, op, s, kept) for s in choices]))
        if states is not None:
            seconds[-1] = seconds[-1] + [_reduction(pricer, block, op, s, states) for s in choices]
            held[-1] = held[-1] + [_state_bytes(pricer, block, op, s, states) for s in choices]
    edges, tables = [], []
    for edge in edges_of(block):
        maker = edge.producer or (outlet if ends.entry is None else None)
        v = index[edge.consumer]
        if maker is None:
            source = ends.entry or ShardingSpec()
            row = [_edge_seconds(pricer, block, edge, source, s, again) for s in options[v]]
            seconds[v] = seconds[v] + np.array(row)
            continue
        u = index[maker]
        tables.append(_edge_table(pricer, block, edge, maker, options[u], options[v], again))
        edges.append((u, v))
    problem = StrategyProblem(
        nodes=tuple(op.name for op in block.ops),
        seconds=tuple(seconds),
        bytes_=tuple(held),
        edges=tuple(edges),
        edge_seconds=tuple(tables),
        memory_limit=memory_limit,
        labels=tuple(tuple(_label(s) for s in choices) for choices in options),
    )
    return PricedBlock(problem, options)


def _leaving(pricer: Pricer, block: Block, op: Op, strategy: Strategy, ends: Ends) -> float:
    """Price of handing the block's output over; infinite where it must be left otherwise."""
    tensor = block.tensor[block.outputs[0]]
    left = pricer.output(block, op, tensor, strategy)
    if ends.must_leave is not None and left != ends.must_leave:
        return float("inf")
    return 0.0 if ends.leaves is None else pricer.transition(tensor, left, ends.leaves).seconds


def _label(strategy: Strategy) -> str:
    return ",".join(f"{axis}:{dim}" for axis, dim in strategy) or "replicated"


def _edge_table(
    pricer: Pricer,
    block: Block,
    edge: Edge,
    maker: str,
    left: Sequence[Strategy],
    right: Sequence[Strategy],
    again: bool,
) -> np.ndarray:
    op = next(o for o in block.ops if o.name == maker)
    name = edge.tensor if edge.producer else block.outputs[0]
    sources = [pricer.output(block, op, block.tensor[name], s) for s in left]
    return np.array([[_edge_seconds(pricer, block, edge, s, t, again) for t in right] for s in sources])


def _edge_seconds(
    pricer: Pricer, block: Block, edge: Edge, source: ShardingSpec, strategy: Strategy, again: bool
) -> float:
    cost = pricer.edge(block, edge.tensor, source, strategy)
    return cost.seconds + again * sum(c.seconds for c in cost.forward)


def _kept_bytes(pricer: Pricer, block: Block, op: Op, strategy: Strategy, kept: set[str]) -> float:
    outputs = (t for t in op.outputs if t in kept)
    return sum(
        pricer.tensor_bytes(block.tensor[t], pricer.output(block, op, block.tensor[t], strategy))
        for t in outputs
    )


def _reduction(pricer: Pricer, block: Block, op: Op, strategy: Strategy, states: StateCost) -> float:
    total = 0.0
    for weight in (block.tensor[w] for w in op.weights):
        axes = pricer.sync_axes(weight, strategy)
        if axes:
            local = pricer.sizes.elements(weight, input_spec(pricer.graph, weight, strategy))
            total += pricer.comm("all_reduce", axes, local * states.reduce_bytes_per_element).seconds
    return total / states.microbatches


def _state_bytes(pricer: Pricer, block: Block, op: Op, strategy: Strategy, states: StateCost) -> float:
    weights = (block.tensor[w] for w in op.weights)
    local = (pricer.sizes.elements(w, input_spec(pricer.graph, w, strategy)) for w in weights)
    return states.bytes_per_element * sum(local)
