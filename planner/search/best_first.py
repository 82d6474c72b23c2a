"""The search: candidates in the order of their bounds, priced by the evaluator until no bound can win.

For every mesh and micro-batch the intra-op ILP picks the strategies of each block; for every candidate the
inter-op dynamic program cuts the layers into stages; the evaluator prices the result. What is left unpriced has
a bound above the best price, which is the proof.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from planner.errors import Infeasible
from planner.evaluation.blocks import Assignment, exit_of
from planner.evaluation.evaluator import Evaluator, Shardings, StageShape
from planner.evaluation.memory import model_states
from planner.evaluation.stages import StageCost
from planner.graph import Block
from planner.intra_op.ilp import solve
from planner.intra_op.pricing import Ends, price_block
from planner.pipeline.generators import SCHEDULES
from planner.plans import Estimate, Objective, Optimality, Parallelism, Pins
from planner.search.bounds import memory_floor, pipeline_seconds
from planner.search.space import Candidate, candidates
from planner.search.stages import cut_layers

Progress = Callable[[int, int], None]
"""Called with (done, total) candidates."""

PROGRESS_EVERY = 16
"""Candidates between two reports of progress."""

LEAST_MEMORY_TRIES = 64
"""Candidates with the least memory bounds that are priced to say how far a model is from fitting."""


class Found(NamedTuple):
    """A priced candidate."""

    candidate: Candidate
    plan: Parallelism
    cuts: tuple[int, ...]
    estimate: Estimate


class Floors(NamedTuple):
    """What bounds every cut of a candidate."""

    whole: StageCost
    """The model as one stage."""
    lightest: float
    """Forward of the cheapest layer [s]."""
    largest_layer: float
    """Elements of the largest layer on one device."""
    state_bytes: float
    """States of one device's share of the whole model."""


class Outcome(NamedTuple):
    """Feasible candidates by objective, best first, and what the search can promise."""

    found: tuple[Found, ...]
    optimality: Optimality


def parallelism(candidate: Candidate) -> Parallelism:
    """The candidate as the record that the evaluator prices; stages are added to the winners only."""
    c = candidate
    return Parallelism.model_construct(
        data=c.data, tensor=c.tensor, pipeline=c.pipeline, context=c.context, expert=c.expert,
        virtual_stages=c.virtual_stages, micro_batch=c.micro_batch, num_microbatches=c.num_microbatches,
        zero_stage=c.zero_stage, sharding=c.sharding, shard_degree=c.shard_degree,
        replicate_degree=max(1, c.data * c.context // c.shard_degree), sequence_parallel=True,
        recompute=c.recompute, schedule=c.schedule, stages=(), offload=(),
    )


def score(estimate: Estimate, devices: int, objective: Objective) -> tuple[float, ...]:
    """What the objective minimises, ties broken by time."""
    table: Mapping[str, tuple[float, ...]] = {
        "time": (estimate.step_time_s,),
        "cost": (estimate.step_time_s * devices, estimate.step_time_s),
        "devices": (float(devices), estimate.step_time_s),
    }
    return table[objective]


class Search:
    """One search over one space."""

    def __init__(self, evaluator: Evaluator, pins: Pins, objective: Objective) -> None:
        """Nothing is priced yet."""
        self.evaluator, self.pins, self.objective = evaluator, pins, objective
        self.shardings: dict[tuple[object, ...], Shardings] = {}
        self._whole: dict[tuple[object, ...], Floors] = {}

    # --- intra-op -------------------------------------------------------------------------------------

    def _key(self, c: Candidate) -> tuple[object, ...]:
        return c.tensor, c.context, c.expert, c.data // c.expert > 1, c.micro_batch, c.recompute

    def sharding(self, c: Candidate) -> Shardings:
        """The ILP's strategies for every block on the candidate's mesh."""
        key = self._key(c)
        if key not in self.shardings:
            self.shardings[key] = self._solve_blocks(parallelism(c))
        return self.shardings[key]

    def _solve_blocks(self, plan: Parallelism) -> Shardings:
        """The commonest layer first; the others must leave their output as it does."""
        graph, pricer = self.evaluator.graph, self.evaluator.pricer(plan)
        layers = sorted({run.block for run in graph.layers}, key=lambda b: (-graph.sequence.count(b), b))
        chosen: dict[str, Assignment] = {}

        def optimise(block: Block, policy: str, ends: Ends) -> None:
            priced = price_block(pricer, block, policy=policy, ends=ends)
            chosen[block.name] = priced.assignment(block, solve(priced.problem).choice)

        optimise(graph.block[layers[0]], plan.recompute, Ends())
        common = exit_of(pricer, graph.block[layers[0]], chosen[layers[0]])
        for name in layers[1:]:
            optimise(graph.block[name], plan.recompute, Ends(must_leave=common))
        if graph.first is not None:
            optimise(graph.block[graph.first], "none", Ends(leaves=common))
        if graph.last is not None:
            optimise(graph.block[graph.last], "none", Ends(entry=common))
        return chosen

    # --- bounds ---------------------------------------------------------------------------------------

    def _floors(self, c: Candidate) -> Floors:
        """What all cuts of a candidate share: the model as one stage, under its ZeRO stage."""
        key = (*self._key(c), c.data, c.zero_stage, c.shard_degree, c.pipeline > 1)
        if key not in self._whole:
            plan, shardings = parallelism(c), self.sharding(c)
            evaluator, graph = self.evaluator, self.evaluator.graph
            layers = tuple(Counter(graph.sequence).items())
            whole = evaluator.stage(plan, StageShape(layers, True, True), c.recompute, shardings)
            single = [evaluator.stage(plan, StageShape(((n, 1),), False, False), c.recompute, shardings) for n, _ in layers]
            states = sum(model_states(whole.weights, evaluator.job, plan, evaluator.mesh(plan)).values())
            self._whole[key] = Floors(
                whole, min(s.forward for s in single), max(s.largest_unit for s in single), states
            )
        return self._whole[key]

    def floor(self, c: Candidate) -> tuple[float, float]:
        """(step time, memory) that no plan of this candidate can be below."""
        whole, lightest, largest, states = self._floors(c)
        software = self.evaluator.software
        split = c.pipeline > 1 and SCHEDULES[c.schedule].splits_backward
        seconds = software.step_overhead + pipeline_seconds(whole, lightest, c, split)
        memory = memory_floor(c, whole, largest, self.evaluator.job, states)
        return seconds, memory + software.context

    # --- pricing --------------------------------------------------------------------------------------

    def price(self, c: Candidate) -> Found:
        """Cut the layers into stages and evaluate."""
        plan, shardings = parallelism(c), self.sharding(c)
        cuts = cut_layers(self.evaluator, plan, shardings)
        return Found(c, plan, cuts, self.evaluator.estimate(plan, shardings, cuts))

    def run(self, top: int, progress: Progress | None = None) -> Outcome:
        """Price candidates best bound first until none can beat the best found.

        Raises ``Infeasible`` where none fits, naming the least memory found.
        """
        limit = self.evaluator.cluster.device.memory * (1 - self.evaluator.job.memory_headroom)
        queue, tight = self._queue(limit)
        found: list[Found] = []
        best = (float("inf"),)
        priced = 0
        for floor, _, candidate in queue:
            if floor >= best:
                break
            if progress is not None and priced % PROGRESS_EVERY == 0:
                progress(priced, len(queue))
            answer = self.price(candidate)
            priced += 1
            if answer.estimate.memory_bytes > limit:
                tight.append(candidate)
                continue
            found.append(answer)
            best = min(best, score(answer.estimate, candidate.num_devices, self.objective))
        if not found:
            raise self._infeasible(tight, limit)
        found.sort(key=lambda f: (score(f.estimate, f.candidate.num_devices, self.objective), f.candidate))
        optimality = Optimality(proven=True, gap=0.0, evaluated=priced, pruned=len(queue) + len(tight) - priced)
        return Outcome(_distinct(found, top), optimality)

    def _queue(self, limit: float) -> tuple[list[tuple[tuple[float, ...], int, Candidate]], list[Candidate]]:
        """Candidates that may fit, by bound; and those that cannot."""
        queue, tight = [], []
        for order, c in enumerate(candidates(self.evaluator, self.pins, self.objective)):
            seconds, memory = self.floor(c)
            if memory > limit:
                tight.append(c)
                continue
            bound: Mapping[str, tuple[float, ...]] = {
                "time": (seconds,),
                "cost": (seconds * c.num_devices,),
                "devices": (float(c.num_devices), seconds),
            }
            queue.append((bound[self.objective], order, c))
        queue.sort(key=lambda entry: entry[:2])
        return queue, tight

    def _infeasible(self, tight: Sequence[Candidate], limit: float) -> Infeasible:
        """Name the plan that needs the least memory, and what would make it fit."""
        graph, cluster, job = self.evaluator.graph, self.evaluator.cluster, self.evaluator.job
        if not tight:
            return Infeasible(
                f"no plan has these degrees: check that the pins, the {cluster.num_devices} devices and the global "
                f"batch of {job.global_batch} divide each other"
            )
        likely = sorted(tight, key=lambda c: (self.floor(c)[1], c))[:LEAST_MEMORY_TRIES]
        least = min((self.price(c) for c in likely), key=lambda f: f.estimate.memory_bytes)
        need, c = least.estimate.memory_bytes, least.candidate
        short = need / limit
        return Infeasible(
            f"{graph.name} does not fit on {cluster.num_devices} x {cluster.device.name}: the plan with the least "
            f"memory (tensor {c.tensor}, pipeline {c.pipeline}, context {c.context}, data {c.data}, ZeRO-{c.zero_stage}, "
            f"recompute {c.recompute}, micro-batch {c.micro_batch}) needs {need / 2**30:.1f} GiB per device, "
            f"{limit / 2**30:.1f} GiB may be used",
            f"about {short:.2f} times the devices, devices with {need / (1 - job.memory_headroom) / 2**30:.0f} GiB, "
            f"a shorter sequence, or an optimizer with smaller states (--optimizer adamw8bit or adafactor)",
        )


def _distinct(found: Sequence[Found], top: int) -> tuple[Found, ...]:
    """The best ``top`` that differ in degrees, sharding or recomputation, not only in the micro-batch."""
    kept: dict[tuple[object, ...], Found] = {}
    for answer in found:
        c = answer.candidate
        key = (c.data, c.tensor, c.pipeline, c.context, c.expert, c.zero_stage, c.sharding, c.recompute)
        kept.setdefault(key, answer)
    return tuple(kept.values())[:top]
