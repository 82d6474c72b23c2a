"""The search: candidates in the order of their bounds, priced by the evaluator until no bound can win.

For every mesh and micro-batch the intra-op ILP picks the strategies of each block; for every candidate the
inter-op dynamic program cuts the layers into stages; the evaluator prices the result. What is left unpriced has
a bound above the best price, which is the proof.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from planner.errors import Infeasible
from planner.evaluation.evaluator import Evaluator, Shardings, StageShape
from planner.evaluation.memory import resident_states
from planner.evaluation.stages import StageCost
from planner.pipeline.generators import schedule_entry
from planner.plans import Estimate, Objective, Optimality, Parallelism, Pins
from planner.search.assignments import Assignments, splits_sequence
from planner.search.bounds import (
    early_floor,
    fullest_rank,
    least_on_host,
    least_pipeline,
    memory_floor,
    overhead,
    pipeline_seconds,
    unavoidable,
)
from planner.search.policies import cut_by_policy, with_bare_stages
from planner.search.space import Candidate, candidates, policies, searches_pipelines, stage_policies
from planner.search.stages import cut_layers, cut_layers_to_fit

Progress = Callable[[int, int], None]
"""Called with (done, total) candidates."""

PROGRESS_EVERY = 16
"""Candidates between two reports of progress."""

ALTERNATIVES_WITHIN = 1.1
"""Alternatives are looked for up to this factor of the best plan."""

ROUNDING = 1e-9
"""The same terms added up in another order differ by less than this fraction."""

LEAST_MEMORY_TRIES = 64
"""Candidates with the least memory bounds that are priced to say how far a model is from fitting."""


ALONE = Parallelism(data=1, micro_batch=1, num_microbatches=1)
"""One device, one sequence."""


class Found(NamedTuple):
    """A priced candidate."""

    candidate: Candidate
    plan: Parallelism
    cuts: tuple[int, ...]
    estimate: Estimate


class Entry(NamedTuple):
    """A candidate in the queue, by bound and then by order in the space."""

    bound: tuple[float, ...]
    order: int
    level: int
    """How many of the tighter, dearer bounds are already in ``bound``."""
    candidate: Candidate


class Floor(NamedTuple):
    """Bounds on a candidate's step time [s] and memory [bytes]."""

    seconds: float
    memory_bytes: float


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
        data=c.data,
        tensor=c.tensor,
        pipeline=c.pipeline,
        context=c.context,
        expert=c.expert,
        virtual_stages=c.virtual_stages,
        micro_batch=c.micro_batch,
        num_microbatches=c.num_microbatches,
        zero_stage=c.zero_stage,
        sharding=c.sharding,
        shard_degree=c.shard_degree,
        replicate_degree=max(1, c.data * c.context // c.shard_degree),
        sequence_parallel=True,
        recompute=c.recompute,
        schedule=c.schedule,
        stages=(),
        offload=c.offload,
    )


class Shortlist:
    """The best plan of each family, and the bound above which nothing more is wanted."""

    def __init__(self, top: int) -> None:
        """Keeps up to ``top`` families."""
        self._top = top
        self._best: dict[tuple[object, ...], tuple[tuple[float, ...], Found]] = {}
        self.threshold: tuple[float, ...] = (float("inf"),)

    @property
    def best(self) -> tuple[Found, ...]:
        """Best first."""
        return tuple(answer for _, answer in self._ranked()[: self._top])

    def _ranked(self) -> list[tuple[tuple[float, ...], Found]]:
        return sorted(self._best.values(), key=lambda entry: (entry[0], entry[1].candidate))

    def add(self, value: tuple[float, ...], answer: Found) -> None:
        """Keep ``answer`` if it is the best of its family: same degrees, sharding and recomputation."""
        c = answer.candidate
        family = (c.data, c.tensor, c.pipeline, c.context, c.expert, c.zero_stage, c.sharding, c.recompute)
        if family not in self._best or value < self._best[family][0]:
            self._best[family] = (value, answer)
        ranked = self._ranked()
        near = tuple(v * ALTERNATIVES_WITHIN for v in ranked[0][0])
        self.threshold = min(near, ranked[self._top - 1][0]) if len(ranked) >= self._top else near


class Search:
    """One search over one space."""

    def __init__(self, evaluator: Evaluator, pins: Pins, objective: Objective) -> None:
        """Nothing is priced yet."""
        self.evaluator, self.pins, self.objective = evaluator, pins, objective
        self.limit = evaluator.cluster.device.memory * (1 - evaluator.job.memory_headroom)
        self.host_limit = evaluator.cluster.host.memory or math.inf
        self._assignments = Assignments(evaluator)
        self._cuts: dict[Candidate, tuple[int, ...]] = {}
        self._whole: dict[tuple[object, ...], Floors] = evaluator.kept.searched_as("floors")
        self._policies = stage_policies(pins)
        self._unavoidable = unavoidable(evaluator.pricer(ALONE), self._policies or policies(pins))
        self._levels = (self.main_floor, self.policy_floor, self.floor, self.staged_time, self.staged_floor)
        self._least: dict[tuple[object, ...], float] = evaluator.kept.searched_as("least")
        self.nearest: Found | None = None
        """After a search in which nothing fitted: what needs the least memory."""

    def sharding(self, c: Candidate) -> Shardings:
        """The ILP's strategies for every block on the candidate's mesh."""
        return self._assignments.sharding(parallelism(c), c.lean)

    # --- bounds ---------------------------------------------------------------------------------------

    def _floors(self, c: Candidate) -> Floors:
        """What all cuts of a candidate share: the model as one stage, under its ZeRO stage."""
        mesh = (c.tensor, c.context, c.expert, c.data, c.micro_batch, c.recompute, c.lean)
        devices = c.num_devices if self.evaluator.checks else 0
        key = (*mesh, c.zero_stage, c.shard_degree, c.pipeline > 1, c.offload, devices)
        if key not in self._whole:
            plan, shardings = parallelism(c), self.sharding(c)
            evaluator, graph = self.evaluator, self.evaluator.graph
            layers = tuple(Counter(graph.sequence).items())
            shape, fastest = StageShape(layers, True, True), "none" if self._policies else c.recompute
            whole = evaluator.stage(plan, shape, fastest, shardings)
            if self._policies:
                under = (evaluator.stage(plan, shape, policy, shardings) for policy in set(self._policies))
                whole = whole._replace(saved_bytes=min(cost.saved_bytes for cost in under))
            single = [evaluator.block(plan, name, fastest, shardings) for name, _ in layers]
            job, software = evaluator.job, evaluator.software
            resident = resident_states(whole.weights, job, plan, evaluator.mesh(plan), software)
            states = sum(resident.values())
            lightest = min(b.forward + sum(b.comm_forward.values()) for b in single)
            self._whole[key] = Floors(whole, lightest, whole.largest_unit, states)
        return self._whole[key]

    def _early_floor(self, c: Candidate) -> float:
        software = self.evaluator.software
        saved = self._unavoidable.saved
        least = min(self._policies, key=lambda policy: saved[policy], default=c.recompute)
        return early_floor(c._replace(recompute=least), self._unavoidable, self.evaluator.job, software)

    def _least_on_host(self, c: Candidate) -> float:
        return least_on_host(c, self._unavoidable, self.evaluator) if c.offload else 0.0

    def _pipeline_floor(self, c: Candidate, floors: Floors) -> float:
        split, copies = self._splits_backward(c), schedule_entry(c.schedule).copies
        # With two copies of every stage, some ranks start at once: nothing but their work is certain.
        certain = c if copies == 1 else c._replace(virtual_stages=2)
        bound = pipeline_seconds(floors.whole, floors.lightest if copies == 1 else 0.0, certain, split)
        return self.evaluator.software.step_overhead + bound

    @staticmethod
    def _splits_backward(c: Candidate) -> bool:
        return c.pipeline > 1 and schedule_entry(c.schedule).splits_backward

    def _main_floor(self, c: Candidate) -> float:
        """Seconds of the main layers alone under the candidate's policy."""
        c = c._replace(recompute="none") if self._policies else c
        key = (c.tensor, c.context, c.expert, c.data, c.micro_batch, c.recompute)
        if key not in self._least:
            self._least[key] = self._assignments.least_seconds(parallelism(c)) * (1 - ROUNDING)
        one_by_one = c.virtual_stages == 1 and schedule_entry(c.schedule).copies == 1
        alternates = one_by_one and not self._splits_backward(c)
        return self.evaluator.software.step_overhead + least_pipeline(self._least[key], c, alternates)

    def _first_floor(self, c: Candidate) -> float:
        """The same under no policy, which is faster than any: all that has to be known of a mesh to queue it."""
        return self._main_floor(c._replace(recompute="none"))

    def main_floor(self, c: Candidate) -> Floor:
        """Seconds without other blocks and without what ZeRO adds."""
        return Floor(self._main_floor(c), 0.0)

    def policy_floor(self, c: Candidate) -> Floor:
        """Seconds without what ZeRO and offload add: one bound for many candidates.

        What a device does for a micro-batch does not depend on how many split the batch, only on whether any do.
        """
        few = c.expert * min(2, c.data // c.expert)
        whole = c._replace(zero_stage=0, sharding="NO_SHARD", shard_degree=1, data=few, offload=())
        return Floor(self._pipeline_floor(c, self._floors(whole)), 0.0)

    def floor(self, c: Candidate) -> Floor:
        """What no plan of this candidate can be below."""
        floors = self._floors(c)
        memory = memory_floor(c, floors.whole, floors.largest_layer, self.evaluator.job, floors.state_bytes)
        return Floor(self._pipeline_floor(c, floors), memory + overhead(c, self.evaluator.software))

    def staged_time(self, c: Candidate) -> Floor:
        """What no simulation of this candidate's actual stages can be below; their memory is not looked at."""
        plan, shardings = parallelism(c), self.sharding(c)
        if c not in self._cuts and self._policies:
            self._cuts[c] = cut_by_policy(self.evaluator, plan, shardings, self._policies, self.limit)
        elif c not in self._cuts:
            self._cuts[c] = cut_layers(self.evaluator, plan, shardings)
        return Floor(self.evaluator.floor(self._staged(c, plan), shardings, self._cuts[c]), 0.0)

    def _staged(self, c: Candidate, plan: Parallelism) -> Parallelism:
        """The plan with its stages' policies, where those are fixed."""
        return with_bare_stages(plan, self._cuts[c], self._policies) if self._policies else plan

    def staged_floor(self, c: Candidate) -> Floor:
        """The same with the memory of the stages; those that do not fit are recut."""
        seconds = self.staged_time(c).seconds
        plan, shardings = parallelism(c), self.sharding(c)
        memory = self.evaluator.memory(self._staged(c, plan), shardings, self._cuts[c])
        tight = memory > self.limit and not self._policies
        recut = cut_layers_to_fit(self.evaluator, plan, shardings, self.limit) if tight else None
        if recut is None:
            return Floor(seconds, memory)
        self._cuts[c] = recut
        seconds = self.evaluator.floor(plan, shardings, recut)
        return Floor(seconds, self.evaluator.memory(plan, shardings, recut))

    # --- pricing --------------------------------------------------------------------------------------

    def price(self, c: Candidate) -> Found:
        """Evaluate the candidate with its layers cut into stages."""
        plan, shardings = parallelism(c), self.sharding(c)
        if c not in self._cuts:
            self.staged_floor(c)
        plan = self._staged(c, plan).model_copy(update={"sequence_parallel": splits_sequence(shardings)})
        return Found(c, plan, self._cuts[c], self.evaluator.estimate(plan, shardings, self._cuts[c]))

    def _bound(self, seconds: float, c: Candidate) -> tuple[float, ...]:
        """The objective's value where the step takes ``seconds``."""
        table: Mapping[str, tuple[float, ...]] = {
            "time": (seconds,),
            "cost": (seconds * c.num_devices, seconds),
            "devices": (float(c.num_devices), seconds),
        }
        return table[self.objective]

    def run(self, top: int, progress: Progress | None = None) -> Outcome:
        """The best plans; pipelines are searched after all where nothing fits without them.

        Raises ``Infeasible`` where none fits, naming the least memory found.
        """
        searched = searches_pipelines(self.evaluator, self.pins)
        try:
            return self._run(searched, top, progress)
        except Infeasible:
            if searched:
                raise
        return self._run(True, top, progress)

    def _run(self, pipelines: bool, top: int, progress: Progress | None) -> Outcome:
        """Price candidates best bound first until none can beat the best found.

        A candidate that comes to the front is bounded more tightly and put back, until only the price is
        left.
        """
        heap, tight = self._queue(pipelines)
        total = len(heap) + len(tight)
        kept = Shortlist(top)
        looked = priced = 0
        while heap and heap[0].bound < kept.threshold:
            entry = heapq.heappop(heap)
            looked += 1
            if progress is not None and looked % PROGRESS_EVERY == 0:
                progress(looked, total)
            c = entry.candidate
            if entry.level < len(self._levels):
                floor = self._levels[entry.level](c)
                if floor.memory_bytes > self.limit:
                    self._set_aside(heap, tight, entry)
                else:
                    bound = max(entry.bound, self._bound(floor.seconds, c))
                    heapq.heappush(heap, Entry(bound, entry.order, entry.level + 1, c))
                continue
            answer = self.price(c)
            priced += 1
            if answer.estimate.memory_bytes > self.limit:
                self._set_aside(heap, tight, entry)
            else:
                kept.add(self._bound(answer.estimate.step_time_s, c), answer)
        if not kept.best:
            raise self._infeasible(tight)
        optimality = Optimality(proven=True, gap=0.0, evaluated=priced, pruned=total - priced)
        return Outcome(kept.best, optimality)

    def _set_aside(self, heap: list[Entry], tight: list[Candidate], entry: Entry) -> None:
        """A candidate that does not fit comes back with its lean assignment, which is no faster."""
        c = entry.candidate
        states = fullest_rank(self._floors(c).state_bytes, 0.0, c) + overhead(c, self.evaluator.software)
        if c.lean or c.tensor == 1 or states > self.limit:
            tight.append(c)
        else:
            heapq.heappush(heap, Entry(entry.bound, entry.order, 0, c._replace(lean=True)))

    def _queue(self, pipelines: bool) -> tuple[list[Entry], list[Candidate]]:
        """Candidates as a heap by their cheapest bounds, and those that cannot fit however they are split."""
        heap, tight = [], []
        for order, c in enumerate(candidates(self.evaluator, self.pins, self.objective, pipelines)):
            if self._early_floor(c) > self.limit or self._least_on_host(c) > self.host_limit:
                tight.append(c)
            else:
                heap.append(Entry(self._bound(self._first_floor(c), c), order, 0, c))
        heapq.heapify(heap)
        return heap, tight

    def _infeasible(self, tight: Sequence[Candidate]) -> Infeasible:
        """Name the plan that needs the least memory, and what would make it fit."""
        graph, cluster, job = self.evaluator.graph, self.evaluator.cluster, self.evaluator.job
        if not tight:
            return Infeasible(
                f"no plan has these degrees: check that the pins, the {cluster.num_devices} devices and the global "
                f"batch of {job.global_batch} divide each other"
            )
        likely = sorted(tight, key=lambda c: (self._early_floor(c), c))[: 8 * LEAST_MEMORY_TRIES]
        likely = sorted(likely, key=lambda c: (self.floor(c).memory_bytes, c))[:LEAST_MEMORY_TRIES]
        self.nearest = least = min((self.price(c) for c in likely), key=lambda f: f.estimate.memory_bytes)
        need, c = least.estimate.memory_bytes, least.candidate
        limit = self.limit
        if need <= limit:
            return Infeasible(
                f"what is offloaded does not fit on the hosts: {least.estimate.host_bytes / 2**30:.0f} GiB for a node "
                f"of {cluster.name}, which has {self.host_limit / 2**30:.0f} GiB",
                "more nodes, or less to offload (--offload none)",
            )
        short = need / limit
        return Infeasible(
            f"{graph.name} does not fit on {cluster.num_devices} x {cluster.device.name}: the plan with the least "
            f"memory (tensor {c.tensor}, pipeline {c.pipeline}, context {c.context}, data {c.data}, "
            f"ZeRO-{c.zero_stage}, recompute {c.recompute}, micro-batch {c.micro_batch}) needs "
            f"{need / 2**30:.1f} GiB per device, {limit / 2**30:.1f} GiB may be used",
            f"about {short:.2f} times the devices, devices with {need / (1 - job.memory_headroom) / 2**30:.0f} GiB, "
            f"a shorter sequence, or an optimizer with smaller states (--optimizer adamw8bit or adafactor)",
        )
