"""The intra-op part of the search: for every mesh and micro-batch, the ILP's strategies of every block.

Each mesh has two assignments: the fastest, and the leanest, which keeps the fewest bytes of activations. The
search falls back on the lean one where the fast one does not fit.
"""

from collections.abc import Mapping
from typing import NamedTuple

from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.terms import Assignment, exit_of
from planner.graph import BATCH, TOKEN_DIMS, Block, Graph, counted
from planner.intra_op.ilp import solve
from planner.intra_op.pricing import Ends, PricedBlock, Situation, price_block, seconds_alone
from planner.operators import operator_rule
from planner.plans import Parallelism

Key = tuple[object, ...]


class Solved(NamedTuple):
    """The answer to one block problem."""

    assignment: Assignment
    seconds: float
    """Forward and backward of one micro-batch."""


LEAN_FACTOR = 10.0 / 2**20
"""A lean assignment takes a block ten times as long rather than keep another MiB."""


class Assignments:
    """Solves each distinct block problem once, for all searches whose evaluators price alike."""

    def __init__(self, evaluator: Evaluator) -> None:
        """Knows what earlier searches have solved."""
        self._evaluator = evaluator
        self._shardings: dict[Key, Shardings] = evaluator.kept.searched_as("shardings")
        self._solved: dict[Key, Solved] = evaluator.kept.searched_as("solved")
        self._distinct: dict[Key, Assignment] = evaluator.kept.searched_as("distinct")
        self._alone: dict[Key, float] = evaluator.kept.searched_as("alone")
        self._counts_replicas = not all_have_batch(evaluator.graph)
        graph, main = evaluator.graph, evaluator.main_layer
        self._with_experts = {b.name for b in graph.blocks if any("experts" in t.dims for t in b.tensors)}
        self._main_layers = graph.sequence.count(main)
        self._other_layers = [(name, n) for name, n in counted(graph.sequence) if name != main]
        self._ends = [name for name in (graph.first, graph.last) if name is not None]

    def sharding(self, plan: Parallelism, lean: bool) -> Shardings:
        """Strategies for every block on the plan's mesh."""
        key = (*self._degrees(plan), plan.expert, plan.recompute, lean)
        if key not in self._shardings:
            self._shardings[key] = self._solve_blocks(plan, lean)
        return self._shardings[key]

    def least_seconds(self, plan: Parallelism) -> float:
        """A micro-batch's forward and backward through all main layers, however they are split [s].

        Any ZeRO stage and any other block only adds to it.
        """
        graph, main = self._evaluator.graph, self._evaluator.main_layer
        solved = self._optimise(plan, graph.block[main], plan.recompute, Ends(), lean=False)
        return self._main_layers * solved.seconds

    def seconds_alone(self, plan: Parallelism) -> float:
        """The same without what moves between operators, before any choice is made [s]."""
        return self._main_layers * self._block_alone(plan, self._evaluator.main_layer, plan.recompute)

    def others_alone(self, plan: Parallelism) -> float:
        """The same of all blocks but the main layers [s]."""
        within = sum(n * self._block_alone(plan, name, plan.recompute) for name, n in self._other_layers)
        return within + sum(self._block_alone(plan, name, "none") for name in self._ends)

    def _block_alone(self, plan: Parallelism, name: str, policy: str) -> float:
        block = self._evaluator.graph.block[name]
        key = (*self._degrees(plan), self._experts(plan, block), name, policy)
        if key not in self._alone:
            self._alone[key] = seconds_alone(self._evaluator.pricer(plan), block, policy)
        return self._alone[key]

    def _solve_blocks(self, plan: Parallelism, lean: bool) -> Shardings:
        """The main layer first; the others receive and leave what it does, at a price."""
        graph, pricer = self._evaluator.graph, self._evaluator.pricer(plan)
        main = graph.block[self._evaluator.main_layer]
        chosen = {main.name: self._optimise(plan, main, plan.recompute, Ends(), lean).assignment}
        common = exit_of(pricer, main, chosen[main.name])
        for name in sorted({run.block for run in graph.layers} - {main.name}):
            ends = Ends(entry=common, leaves=common)
            chosen[name] = self._optimise(plan, graph.block[name], plan.recompute, ends, lean).assignment
        if graph.first is not None:
            first = graph.block[graph.first]
            chosen[graph.first] = self._optimise(plan, first, "none", Ends(leaves=common), lean).assignment
        if graph.last is not None:
            last = graph.block[graph.last]
            chosen[graph.last] = self._optimise(plan, last, "none", Ends(entry=common), lean).assignment
        return chosen

    def _optimise(self, plan: Parallelism, block: Block, policy: str, ends: Ends, lean: bool) -> Solved:
        key = (*self._degrees(plan), self._experts(plan, block), block.name, policy, ends, lean)
        if key not in self._solved:
            priced = price_block(self._evaluator.pricer(plan), block, Situation(policy, ends))
            choice = _choose(priced, lean)
            found = priced.assignment(block, choice)
            # Equal assignments are one object: the evaluator prices them once.
            found = self._distinct.setdefault((block.name, *found.values()), found)
            self._solved[key] = Solved(found, priced.problem.cost(choice))
        return self._solved[key]

    def _experts(self, plan: Parallelism, block: Block) -> int:
        """Expert ranks, as far as the block's choice depends on them: without experts the axis is just batch."""
        if block.name in self._with_experts or self._counts_replicas:
            return plan.expert
        return min(self._evaluator.mesh(plan).size("expert"), 2)

    def _degrees(self, plan: Parallelism) -> Key:
        """What the choice depends on: how many ranks split the batch does not matter, only whether any do.

        Beside operators without a batch it does matter: what they leave whole is cut, or gathered.
        """
        mesh = self._evaluator.mesh(plan)
        replicas = mesh.size("data")
        return (
            plan.tensor,
            plan.context,
            mesh.size("context_expert"),
            replicas if self._counts_replicas else replicas > 1,
            plan.micro_batch,
        )


def all_have_batch(graph: Graph) -> bool:
    """Whether every operator is split by batch where there are data ranks."""
    return all(
        BATCH in operator_rule(op).splittable(op, block, graph) for block in graph.blocks for op in block.ops
    )


def _choose(priced: PricedBlock, lean: bool) -> tuple[int, ...]:
    problem = priced.problem
    if all(size == 1 for size in problem.sizes):
        return (0,) * len(problem.sizes)
    fast = solve(problem)
    if not lean:
        return fast.choice
    return solve(problem.priced_memory(LEAN_FACTOR * fast.cost)).choice


def splits_sequence(shardings: Mapping[str, Assignment]) -> bool:
    """Whether any operator splits positions over the tensor axis: sequence parallelism."""
    return any(
        axis == "tensor" and dim in TOKEN_DIMS
        for assignment in shardings.values()
        for strategy in assignment.values()
        for axis, dim in strategy
    )
