"""What no plan of a candidate can be below, from bounds that cost nothing to those of its own stages.

The search takes them in turn, and stops at the first that excludes a candidate.
"""

from collections.abc import Hashable
from typing import NamedTuple

from planner.evaluation.cuts import places_of
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.host import host_step_seconds
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.step import ROUNDING, carried, handed_on, ports_of, stage_wait, straggling
from planner.graph import counted
from planner.pipeline.generators import schedule_entry, stage_to_rank
from planner.plans import Parallelism, Pins
from planner.search.assignments import Assignments
from planner.search.bounds import (
    PerWeight,
    busiest_rank,
    early_floor,
    held_per_weight,
    least_boundary,
    least_on_host,
    least_pipeline,
    least_received,
    least_stepped,
    overhead,
    pipeline_seconds,
    unavoidable,
)
from planner.search.candidates import Candidate, Family, alternates, parallelism, splits_backward
from planner.search.fullest import fullest_rank, fullest_with_whole_layers, most_in_flight
from planner.search.loads import Parts, RankLoads, loads_of, parts_of
from planner.search.numbers import divisors
from planner.search.policies import cut_by_policy, with_bare_stages
from planner.search.space import policies, stage_policies
from planner.search.stages import cut_layers, cut_layers_to_fit, is_short
from planner.search.tail_floors import passes_whole, with_tail

ALONE = Parallelism(data=1, micro_batch=1, num_microbatches=1)
"""One device, one sequence."""


class Floor(NamedTuple):
    """Bounds on a candidate's step time [s] and memory [bytes]."""

    seconds: float
    memory_bytes: float


class Whole(NamedTuple):
    """What bounds the time of every cut of a candidate."""

    stage: StageCost
    """The model as one stage."""
    lightest: float
    """Forward of the cheapest layer [s]."""
    slowest: tuple[tuple[float, int], ...]
    """Seconds of forward and backward, and the number of layers that take at least as long."""
    end_seconds: tuple[float, float]
    """Of embedding and head."""


class Floors:
    """The bounds of one search; what they have in common is derived once."""

    def __init__(self, evaluator: Evaluator, pins: Pins, limit: float) -> None:
        """Stages that hold more than ``limit`` bytes are cut again, if they can be."""
        self.evaluator, self.limit = evaluator, limit
        self.cuts: dict[Candidate, tuple[int, ...]] = {}
        """Boundaries of the stages of candidates that came so far."""
        self.levels = (
            self.main,
            self.operators,
            self.policy,
            self.whole,
            self.tailed,
            self.staged_time,
            self.staged,
        )
        """Ever tighter and dearer; one may hold for seconds alone."""
        self.in_common = self.levels.index(self.whole)
        """How many of them are the same for all of `alike`."""
        self.before_cuts = self.levels.index(self.staged_time)
        """How many of them look at no cut of the layers."""
        self._assignments = Assignments(evaluator)
        self._policies = stage_policies(pins)
        self._unavoidable = unavoidable(evaluator.pricer(ALONE), self._policies or policies(pins))
        self._wholes: dict[tuple[object, ...], Whole] = evaluator.kept.searched_as("wholes")
        self._parts: dict[tuple[object, ...], Parts] = evaluator.kept.searched_as("parts")
        self._loads: dict[tuple[object, ...], RankLoads] = evaluator.kept.searched_as("loads")
        self._least: dict[tuple[object, ...], float] = evaluator.kept.searched_as("least")
        self._operators: dict[tuple[object, ...], float] = evaluator.kept.searched_as("operators")
        self._spans: dict[tuple[object, ...], float] = evaluator.kept.searched_as("spans")
        self._alone: dict[tuple[object, ...], float] = evaluator.kept.searched_as("alone of main layers")
        self._cuts: dict[tuple[object, ...], tuple[int, ...]] = evaluator.kept.searched_as("cuts")
        self._sends: dict[tuple[object, ...], tuple[float, ...]] = evaluator.kept.searched_as("sends")
        self._held: dict[tuple[object, ...], PerWeight] = {}
        self._early: dict[tuple[object, ...], float] = {}
        self._main_layers = evaluator.graph.sequence.count(evaluator.main_layer)

    def sharding(self, c: Candidate) -> Shardings:
        """The ILP's strategies for every block on the candidate's mesh."""
        return self._assignments.sharding(parallelism(c), c.lean)

    # --- before anything is priced --------------------------------------------------------------------

    def early(self, c: Candidate) -> float:
        """Memory [bytes], however operators are split."""
        states = (
            c.zero_stage,
            c.shard_degree,
            c.pipeline > 1,
            c.virtual_stages,
            c.num_microbatches > 1,
            c.data > 1,
        )
        if states not in self._held:
            self._held[states] = held_per_weight(parallelism(c), self.evaluator.job, self.evaluator.software)
        held, in_flight = self._held[states], most_in_flight(c)
        degrees = (c.tensor, c.context, c.expert, c.pipeline, c.data > 1)
        key = (*degrees, c.micro_batch, c.recompute, held, in_flight)
        if key not in self._early:
            least = min(self._policies, key=self._unavoidable.saved, default=c.recompute)
            own = c._replace(recompute=least) if self._policies else c
            self._early[key] = early_floor(own, self._unavoidable, held, self.evaluator)
        boundary = least_boundary(c, self._unavoidable)
        return self._early[key] + least_received(c, self.evaluator.software, boundary)

    def too_large(self, family: Family) -> bool:
        """Whether none of a family of the space can fit: those that keep least of their layers cannot."""
        lightest = min(family.policies, key=self._unavoidable.saved)
        return all(self.early(c) > self.limit for c in reversed(family.under(lightest)))

    def on_host(self, c: Candidate) -> float:
        """Memory of a node's host [bytes]."""
        return least_on_host(c, self._unavoidable, self.evaluator) if c.offload else 0.0

    # --- the main layers ------------------------------------------------------------------------------

    def alone(self, c: Candidate) -> float:
        """Seconds of the main layers' operators under no policy, whatever moves between them: cheap enough for any."""
        key = (c.tensor, c.context, c.expert, c.data, c.micro_batch)
        if key not in self._alone:
            self._alone[key] = self._assignments.seconds_alone(parallelism(c._replace(recompute="none")))
        return self._around(c, self._alone[key])

    def _fastest(self, c: Candidate) -> str:
        """The candidate's policy; none where its stages have policies of their own."""
        return "none" if self._policies else c.recompute

    def _main(self, c: Candidate, policy: str) -> float:
        """Seconds of the main layers alone under the policy."""
        key = (c.tensor, c.context, c.expert, c.data, c.micro_batch, policy)
        if key not in self._least:
            self._least[key] = self._assignments.least_seconds(parallelism(c._replace(recompute=policy)))
        return self._around(c, self._least[key])

    def _around(self, c: Candidate, work: float) -> float:
        """The step in which the main layers take ``work`` [s] of a micro-batch, or more."""
        work = work * (1 - ROUNDING)
        span = least_pipeline(work, c, alternates(c))
        if schedule_entry(c.schedule).copies == 1:  # layers are whole
            number = self._main_layers
            span = max(span, c.num_microbatches * -(-number // c.pipeline) * work / number)
        return self.step(c, span)

    def first(self, c: Candidate) -> float:
        """The same under no policy, which is faster than any: all that a family of the space has in common [s]."""
        return max(self._main(c, "none"), self._all_operators(c, "none"), self.step(c, self._carried(c)))

    def _carried(self, c: Candidate, work: float = 0.0) -> float:
        """What links take to carry what stages hand on, however layers are cut, beside ``work`` of whole passes [s]."""
        if c.pipeline == 1 or schedule_entry(c.schedule).copies > 1:
            return 0.0
        plan, cluster = parallelism(c), self.evaluator.cluster
        places, boundary = places_of(plan), least_boundary(c, self._unavoidable)
        key = (boundary, places)
        if key not in self._sends:
            self._sends[key] = handed_on(cluster, [boundary] * (len(places) - 1), places)
        return carried(plan, ports_of(cluster), self._sends[key], work if alternates(c) else 0.0)

    def main(self, c: Candidate) -> Floor:
        """Seconds without other blocks and without what ZeRO adds."""
        return Floor(self._main(c, self._fastest(c)), 0.0)

    def alike(self, c: Candidate) -> Hashable:
        """What tells apart those of a family of which the bounds before `whole` differ."""
        stepped = (c.zero_stage, c.shard_degree) if "optimizer" in c.offload else ()
        return (c.recompute, *stepped)

    # --- all layers -----------------------------------------------------------------------------------

    def operators(self, c: Candidate) -> Floor:
        """Seconds of the operators of all blocks, whatever moves between them, but for the main layers' moves."""
        return Floor(self._all_operators(c, self._fastest(c)), 0.0)

    def _all_operators(self, c: Candidate, policy: str) -> float:
        key = (c.tensor, c.context, c.expert, c.data, c.micro_batch, policy)
        if key not in self._operators:
            plan = parallelism(c._replace(recompute=policy))
            others = self._assignments.others_alone(plan)
            self._operators[key] = self._assignments.least_seconds(plan) + others
        work = self._operators[key] * (1 - ROUNDING)
        return self.step(c, least_pipeline(work, c, alternates(c)))

    # --- the whole model as one stage -----------------------------------------------------------------

    def _key(self, c: Candidate) -> tuple[object, ...]:
        """All that `Whole` and `Parts` depend on."""
        mesh = (c.tensor, c.context, c.expert, c.data, c.micro_batch, c.recompute, c.lean)
        return (*mesh, c.zero_stage, c.shard_degree, c.pipeline > 1, c.offload, self._policies)

    def as_one(self, c: Candidate) -> Whole:
        """The candidate's model as one stage."""
        key = self._key(c)
        if key not in self._wholes:
            plan, shardings = parallelism(c), self.sharding(c)
            evaluator, graph = self.evaluator, self.evaluator.graph
            layers = counted(graph.sequence)
            shape, fastest = StageShape(layers, True, True), "none" if self._policies else c.recompute
            whole = evaluator.stage(plan, shape, fastest, shardings)
            single = [evaluator.block(plan, name, fastest, shardings) for name, _ in layers]
            lightest = min(b.forward + sum(b.comm_forward.values()) for b in single)
            within = [(evaluator.seconds_within(plan, name, fastest, shardings), n) for name, n in layers]
            slowest = tuple(
                (least, sum(n for seconds, n in within if seconds >= least)) for least, _ in within
            )
            embedding, head = (
                evaluator.seconds_within(plan, name, "none", shardings) if name else 0.0
                for name in (graph.first, graph.last)
            )
            self._wholes[key] = Whole(whole, lightest, slowest, (embedding, head))
        return self._wholes[key]

    def _held_by(self, c: Candidate) -> Parts:
        """Layers, embedding and head, before any of them is timed."""
        key = self._key(c)
        if key not in self._parts:
            plan, shardings = parallelism(c), self.sharding(c)
            self._parts[key] = parts_of(self.evaluator, plan, shardings, self._policies)
        return self._parts[key]

    def rank_loads(self, c: Candidate) -> RankLoads:
        """What there is to be spread over the candidate's ranks."""
        key = (*self._key(c), c.num_microbatches > 1, c.virtual_stages)
        if key not in self._loads:
            self._loads[key] = loads_of(self._held_by(c), self.evaluator, parallelism(c))
        return self._loads[key]

    def _span(self, c: Candidate, whole: Whole) -> float:
        """Least seconds of the pipeline."""
        split, copies = splits_backward(c), schedule_entry(c.schedule).copies
        # With two copies of every stage, some ranks start at once: nothing but their work is certain.
        certain = c if copies == 1 else c._replace(virtual_stages=2)
        bound = pipeline_seconds(
            whole.stage, whole.lightest if copies == 1 else 0.0, certain, split or copies > 1
        )
        busiest = c.num_microbatches * self._busiest(c, whole) if copies == 1 else 0.0
        return max(bound, busiest, self._carried(c, whole.stage.seconds))

    def _busiest(self, c: Candidate, whole: Whole) -> float:
        """Least seconds of the busiest rank for one micro-batch; of one stage, its own (ends may share a table)."""
        if c.pipeline == 1:
            return whole.stage.seconds
        home = stage_to_rank(c.schedule, c.pipeline, c.virtual_stages)
        apart = home[0] != home[-1]
        ends = whole.end_seconds if apart else (sum(whole.end_seconds),)
        return max(busiest_rank(seconds, number, ends, c.pipeline) for seconds, number in whole.slowest)

    def step(self, c: Candidate, span: float) -> float:
        """The step whose pipeline takes ``span`` [s], with all that is certain to come on top."""
        setting = self.evaluator.setting
        span += stage_wait(setting, c.pipeline, c.virtual_stages, c.num_microbatches) + self._on_hosts(c)
        return (span + setting.software.step_overhead) * (1 + straggling(setting, c.num_devices))

    def _on_hosts(self, c: Candidate) -> float:
        """The update of what is offloaded, of which nothing hides anything [s]."""
        if "optimizer" not in c.offload:
            return 0.0
        stepped = least_stepped(c, self._unavoidable)
        return (1 - ROUNDING) * host_step_seconds(self.evaluator.setting, parallelism(c), stepped)

    def policy(self, c: Candidate) -> Floor:
        """Seconds without what ZeRO and offload add: one bound for many candidates.

        What a device does for a micro-batch does not depend on how many split the batch, only on whether any do; and
        a part of these ranks fills a block of a torus where two may not.
        """
        few = c.data if c.data % c.expert else c.expert * divisors(c.data // c.expert)[:2][-1]
        whole = c._replace(zero_stage=0, sharding="NO_SHARD", shard_degree=1, data=few, offload=())
        key = (whole, self._policies)
        if key not in self._spans:
            self._spans[key] = self._span(whole, self.as_one(whole))
        return Floor(self.step(c, self._spans[key]), 0.0)

    def uncut(self, c: Candidate) -> float:
        """What no cut of this candidate takes less than [s]."""
        return self.step(c, self._span(c, self.as_one(c)))

    def whole(self, c: Candidate) -> Floor:
        """What no cut of this candidate can be below; the time of one that cannot fit is `policy`'s."""
        layers, ends, beside, boundary = self.rank_loads(c)
        rank = max(bound(layers, ends, c) for bound in (fullest_rank, fullest_with_whole_layers))
        memory = rank + beside + self.beside_loads(c, boundary)
        return Floor(self.uncut(c) if memory <= self.limit else self.policy(c).seconds, memory)

    def states(self, c: Candidate) -> float:
        """Memory without any activations [bytes], however operators are split."""
        layers, ends, *_ = self.rank_loads(c)
        bare = tuple(load._replace(activations=0.0) for load in layers)
        boundary = least_boundary(c, self._unavoidable)
        return fullest_rank(bare, ends, c) + self.beside_loads(c, boundary)

    def beside_loads(self, c: Candidate, boundary: float) -> float:
        """What any rank has beside layers and ends [bytes], where stages hand on ``boundary`` [bytes] or more."""
        software, device = self.evaluator.software, self.evaluator.cluster.device
        return overhead(c, software, device) + least_received(c, software, boundary)

    def tailed(self, c: Candidate) -> Floor:
        """Seconds with what comes after the last backward; nothing more where that depends on what is not fixed."""
        plan = parallelism(c)
        if self._policies or not passes_whole(c) or not is_short(plan):
            return Floor(0.0, 0.0)
        whole, sharding = self.as_one(c), self.sharding(c)
        lightest = min(least for least, _ in whole.slowest)
        span = with_tail(self.evaluator, plan, sharding, whole.stage, self._span(c, whole), lightest)
        return Floor(self.step(c, (1 - ROUNDING) * span), 0.0)

    # --- its own stages -------------------------------------------------------------------------------

    def staged_time(self, c: Candidate) -> Floor:
        """What no simulation of this candidate's actual stages can be below; their memory is not looked at."""
        plan, cuts = parallelism(c), self.cut(c)
        return Floor(self.evaluator.floor(self.with_stages(c, plan), self.sharding(c), cuts), 0.0)

    def cut(self, c: Candidate) -> tuple[int, ...]:
        """Boundaries of the candidate's stages; memory is not looked at the first time."""
        plan, shardings = parallelism(c), self.sharding(c)
        if c not in self.cuts and self._policies:
            self.cuts[c] = cut_by_policy(self.evaluator, plan, shardings, self._policies, self.limit)
        elif c not in self.cuts:
            if c not in self._cuts:
                self._cuts[c] = cut_layers(self.evaluator, plan, shardings)
            self.cuts[c] = self._cuts[c]
        return self.cuts[c]

    def with_stages(self, c: Candidate, plan: Parallelism) -> Parallelism:
        """The plan with its stages' policies, where those are fixed."""
        return with_bare_stages(plan, self.cuts[c], self._policies) if self._policies else plan

    def staged(self, c: Candidate, limit: float | None = None) -> Floor:
        """The same with the memory of the stages, or of one above a ``limit``; those that do not fit are recut."""
        seconds = self.staged_time(c).seconds
        plan, shardings = parallelism(c), self.sharding(c)
        own, enough = self.with_stages(c, plan), limit or self.limit
        memory = self.evaluator.memory(own, shardings, self.cuts[c], enough)
        tight = memory > self.limit and not self._policies
        recut = cut_layers_to_fit(self.evaluator, plan, shardings, self.limit) if tight else None
        if recut is None:
            return Floor(seconds, memory)
        self.cuts[c], seconds = recut, self.evaluator.floor(plan, shardings, recut)
        return Floor(seconds, self.evaluator.memory(plan, shardings, recut, enough))
