"""Every kind of operator of a plan on one device: what it computes, moves and takes, for a roofline."""

import math
from typing import NamedTuple

from planner.evaluation.evaluator import Evaluator
from planner.evaluation.terms import Assignment
from planner.graph import Block, Op
from planner.operators import ArithmeticClass, Counting, op_flops, operator_rule
from planner.plans import Parallelism
from planner.sharding.pricing import Pricer
from planner.sharding.spec import Strategy, input_spec


class OperatorCost(NamedTuple):
    """The forward of one operator for one micro-batch on one device."""

    block: str
    name: str
    bound: ArithmeticClass
    """What it does most of: matrix products, attention, or moving memory."""
    instances: int
    """Times that the whole model has it."""
    flops: float
    moved_bytes: float
    """Inputs and weights read once, outputs written once."""
    seconds: float
    """As priced; without communication."""

    @property
    def flops_per_second(self) -> float:
        """Attained rate [FLOP/s]."""
        return self.flops / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """Attained traffic [bytes/s]."""
        return self.moved_bytes / self.seconds


def operator_costs(evaluator: Evaluator, plan: Parallelism) -> tuple[OperatorCost, ...]:
    """Operators of every block of the model under ``plan``, in the order of the model.

    A block that stages shard differently is shown as its first stage has it.
    """
    pricer = evaluator.pricer(plan)
    return tuple(
        _operator_cost(pricer, block, op, assignment[op.name], count)
        for block, count in evaluator.graph.instances()
        for assignment in (_assignment(evaluator, plan, block.name),)
        for op in block.ops
        if op.kind != "view"
    )


def _assignment(evaluator: Evaluator, plan: Parallelism, block: str) -> Assignment:
    stage = next((s for s, written in enumerate(plan.stages) if block in written.sharding), None)
    given = {} if stage is None else evaluator.given(plan, stage)
    return evaluator.assignment(plan, block, given)


def _operator_cost(pricer: Pricer, block: Block, op: Op, strategy: Strategy, count: int) -> OperatorCost:
    whole = op_flops(op, block, pricer.graph, Counting(attention_kernel=pricer.job.attention_kernel)).forward
    ranks = math.prod(pricer.mesh.size(axis) for axis, _ in strategy)
    weights = () if op.kind == "embedding" else op.weights  # a lookup reads only the rows that it copies
    read = (block.tensor[name] for name in (*op.inputs, *weights))
    moved = sum(pricer.tensor_bytes(t, input_spec(pricer.graph, t, strategy)) for t in read)
    written = (block.tensor[name] for name in op.outputs)
    moved += sum(pricer.tensor_bytes(t, pricer.output(block, op, t, strategy)) for t in written)
    return OperatorCost(
        block=block.name,
        name=op.name,
        bound=operator_rule(op).arithmetic,
        instances=count,
        flops=whole * pricer.sizes.batch / ranks,
        moved_bytes=moved,
        seconds=pricer.op(block, op, strategy).forward,
    )
