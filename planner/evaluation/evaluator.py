"""The one place where plans get their numbers.

An `Evaluator` holds one model, cluster and job, prices blocks once per distinct assignment, and turns any
`Parallelism` into an `Estimate`. The search, the command line, validation and what-ifs all come here.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import pool_of
from cost_models.compute import product_peak
from cost_models.intervals import interval
from planner.evaluation import sites
from planner.evaluation.blocks import BlockCost, block_cost
from planner.evaluation.checks import check_degrees
from planner.evaluation.cuts import even_cuts, ranks_of
from planner.evaluation.few_tokens import with_few_tokens
from planner.evaluation.host import HostMemory, check_offload, host_memory, with_copies
from planner.evaluation.lookup import beside_end, with_lookup
from planner.evaluation.memory import DeviceMemory, in_flight, memory_by_rank, most_held, over_step
from planner.evaluation.padding import padded_weights
from planner.evaluation.rematerialisation import repeated_flops
from planner.evaluation.setting import setting_of, spread_of
from planner.evaluation.sharing import Ends, Known, kept_for
from planner.evaluation.sites import Site, check_sites, seen_by
from planner.evaluation.stages import StageCost, StageShape, parts_of, shapes_of, stage_cost
from planner.evaluation.staging import with_staging
from planner.evaluation.states import Sync, sums_whole
from planner.evaluation.step import Around, StepTime, step_floor, step_time
from planner.evaluation.syncing import gathers_of, products_of, sync_of, wire_widths
from planner.evaluation.terms import Assignment, BlockTerms, block_terms, exit_of
from planner.evaluation.units import TimedUnit, UnitCost, host_of, place_of, timed
from planner.graph import commonest_layer, counted, keepers, tied_share
from planner.models.model import Model
from planner.operators import model_flops
from planner.plans import Estimate, Job, Parallelism, Plan
from planner.sharding.layouts import data_splits_only_batch, named_layout
from planner.sharding.mesh import AXES, Mesh
from planner.sharding.pricing import Pricer
from planner.sharding.spec import ShardingSpec, Sizes

Shardings = Mapping[str, Assignment]
"""Block name -> assignment, where a stage departs from the named layout."""


class Judgement(NamedTuple):
    """What an estimate is made of: memory by rank, of those that run equal stages the fullest."""

    step: StepTime
    rank: int
    """The one that is nearest to its limit."""
    memory: Mapping[int, DeviceMemory]
    memory_limit: float
    host: HostMemory
    peak: float
    """FLOP/s of all devices that the plan uses."""


class Evaluator:
    """Prices plans of one model on one cluster for one job.

    A cluster of several pools has an evaluator for each, of which the whole's is the first.
    """

    def __init__(self, model: Model, cluster: ClusterSpec, job: Job) -> None:
        """Raises ``InputError`` where a device has no rate for the job's precision, and as `setting_of`."""
        self.model, self.whole = model, cluster
        cluster, *others = cluster.pools
        self.pools: tuple[Evaluator, ...] = (self, *(Evaluator(model, pool, job) for pool in others))
        self.setting = setting_of(model, cluster, job)
        self.graph, self.cluster, self.job, self.software = self.setting[:4]
        self.peak = product_peak(self.cluster.device, job.precision)
        self.main_layer = commonest_layer(self.graph)
        self.keepers = {block.name: keepers(self.graph, block.name) for block in self.graph.blocks}
        self.kept = kept_for(model, self.cluster, job, self.software)
        self._cut_shapes: dict[tuple[int, ...], tuple[StageShape, ...]] = {}
        self._read: dict[int, tuple[object, Shardings]] = {}
        self.around = Around()

    # --- what a plan's degrees mean -------------------------------------------------------------------

    def mesh(self, plan: Parallelism) -> Mesh:
        """The mesh of one stage."""
        degrees = (plan.data, plan.tensor, plan.context, plan.expert)
        if degrees not in self.kept.meshes:
            self.kept.meshes[degrees] = Mesh(self.cluster, plan.axes, self.software.experts_nearest)
        return self.kept.meshes[degrees]

    def pricer(self, plan: Parallelism) -> Pricer:
        """Prices operators for the plan's micro-batch over all data ranks."""
        mesh = self.mesh(plan)
        key = (*mesh.sizes.values(), plan.micro_batch)
        if key not in self.kept.pricers:
            batch = plan.micro_batch * plan.data
            sizes = Sizes(self.graph, mesh, batch, self.job.expert_imbalance, self.job.expert_capacity)
            self.kept.pricers[key] = Pricer(
                self.graph, sizes, self.job, self.software, self.kept.prices, self.kept.derived
            )
        return self.kept.pricers[key]

    def cuts(self, plan: Parallelism) -> tuple[int, ...]:
        """Boundaries of the stages in layers: those of the plan, or an even split."""
        if plan.stages:
            return (0, *(stage.blocks[1] for stage in plan.stages))
        return even_cuts(self.graph.num_layers, plan.pipeline * plan.virtual_stages)

    def _shapes(self, cuts: tuple[int, ...]) -> tuple[StageShape, ...]:
        if cuts not in self._cut_shapes:
            self._cut_shapes[cuts] = shapes_of(self.graph.sequence, cuts)
        return self._cut_shapes[cuts]

    def shape(self, start: int, end: int) -> StageShape:
        """What a stage with the layers ``start`` to ``end`` (not included) is made of."""
        return StageShape(counted(self.graph.sequence[start:end]), start == 0, end == self.graph.num_layers)

    # --- blocks and stages ----------------------------------------------------------------------------

    def assignment(self, plan: Parallelism, block: str, shardings: Shardings) -> Assignment:
        """The block's assignment: given, and the named layout of operators of which nothing is given."""
        given, whole = shardings.get(block, {}), self.graph.block[block]
        if all(op.name in given for op in whole.ops):
            return given
        sizes = self.pricer(plan).sizes
        return {**named_layout(whole, sizes, plan.sequence_parallel, plan.experts_over_tensor), **given}

    def block(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> BlockCost:
        """One block under a policy."""
        given, main = shardings.get(name), shardings.get(self.main_layer)
        *inner, data = self.mesh(plan).sizes.values()
        if given is None or self._batch_only(given):
            data = min(data, 2)  # one device's share does not depend on how many others there are
        degrees = (*inner, data, plan.micro_batch)
        layout = (plan.sequence_parallel, plan.experts_over_tensor)
        self.kept.held[id(main)] = main
        priced = (*degrees, *layout, name, id(given), id(main))
        key = (priced, policy)
        if key not in self.kept.blocks:
            if priced not in self.kept.terms:
                self.kept.terms[priced] = self._block_terms(plan, name, shardings)
            pricer, block = self.pricer(plan), self.graph.block[name]
            self.kept.blocks[key] = block_cost(pricer, block, self.kept.terms[priced], policy)
        return self.kept.blocks[key]

    def _batch_only(self, given: Assignment) -> bool:
        self.kept.held[id(given)] = given
        if id(given) not in self.kept.batch_only:
            self.kept.batch_only[id(given)] = data_splits_only_batch(given)
        return self.kept.batch_only[id(given)]

    def _block_terms(self, plan: Parallelism, name: str, shardings: Shardings) -> BlockTerms:
        common = None if name == self.main_layer else self._exit(plan, self.main_layer, shardings)
        entry = None if name == self.graph.first else common
        leaves = None if name == self.graph.last else common
        assignment = self.assignment(plan, name, shardings)
        return block_terms(self.pricer(plan), self.graph.block[name], assignment, entry, leaves)

    def _exit(self, plan: Parallelism, name: str, shardings: Shardings) -> ShardingSpec:
        return exit_of(self.pricer(plan), self.graph.block[name], self.assignment(plan, name, shardings))

    def _unit(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> UnitCost:
        cost = self.block(plan, name, policy, shardings)
        shards = plan.shard_degree, plan.secondary_degree, "weights" in plan.offload
        key = (id(cost), id(self.mesh(plan)), plan.zero_stage, *shards, plan.num_microbatches > 1)
        if key not in self.kept.units:
            if self.software.pads_shards and plan.zero_stage >= 2 and plan.shard_degree > 1:
                given = self.assignment(plan, name, shardings)
                padded = padded_weights(self.pricer(plan), self.graph.block[name], given, plan.shard_degree)
                cost = cost._replace(weights=padded.trained, frozen=padded.frozen)
            unit = UnitCost(cost, self._sync(plan, cost, name), place_of(self.graph, name))
            unit = with_few_tokens(unit, self.pricer(plan), self.graph.block[name], plan, policy)
            self.kept.units[key] = with_lookup(unit, self.pricer(plan), self.graph.block[name], plan)
        return self.kept.units[key]

    def seconds_within(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> float:
        """Of one block for one micro-batch, anywhere in a stage but its first gather [s]."""
        beside = () if name == self.graph.last else self.keepers[name]
        known = self._known(plan, policy, shardings)
        return self._timed(known, plan, name, policy, beside, shardings).seconds

    def _timed(
        self, known: Known, plan: Parallelism, name: str, policy: str, ends: Ends, shardings: Shardings
    ) -> TimedUnit:
        """The block as any stage has it, of those that ``known`` is about, where ``ends`` keep weights of it."""
        key = (name, policy, ends)
        if key not in known.units:
            unit, host = self._unit(plan, name, policy, shardings), host_of(self.setting, plan)
            unit = self._beside(unit, name, ends, plan, shardings) if ends else unit
            known.units[key] = timed(unit, plan, self.software, host)
        return known.units[key]

    def _sync(self, plan: Parallelism, cost: BlockCost, name: str) -> Sync:
        weights, mesh, whole = cost.weights, self.mesh(plan), sums_whole(plan, self.software)
        layout = plan.zero_stage, whole, plan.shard_degree, plan.secondary_degree, "weights" in plan.offload
        key = (weights, cost.frozen, id(mesh), plan.micro_batch, plan.num_microbatches > 1, *layout, name)
        if key not in self.kept.syncs:
            products = products_of(self.setting, plan, self.graph.block[name])
            wire = wire_widths(self.job, self.software, plan, name == self.graph.last, products)
            sync = sync_of(weights, mesh, plan, wire, whole, products)
            sync = sync.plus(gathers_of(cost.frozen, mesh, plan, self.software)) if cost.frozen else sync
            sync = with_staging(sync, weights, cost.frozen, self.setting, plan, mesh, wire)
            self.kept.syncs[key] = with_copies(sync, weights, self.setting, plan, mesh)
        return self.kept.syncs[key]

    def _beside(
        self, unit: UnitCost, name: str, ends: Ends, plan: Parallelism, shardings: Shardings
    ) -> UnitCost:
        """A block on the stage of ``ends``: tied weights are stored once, and gathered and reduced by one."""
        own = 1 - tied_share(self.graph, name, ends)
        weights = tuple(g.times(own) for g in unit.block.weights)
        frozen = tuple(g.times(own) for g in unit.block.frozen)
        block = unit.block._replace(weights=weights, frozen=frozen, elements=own * unit.block.elements)
        end = self._unit(plan, ends[0], "none", shardings)
        sync = beside_end(unit, end, self._sync(plan, block, name), self.pricer(plan), plan)
        return unit._replace(block=block, sync=sync)

    def stage(self, plan: Parallelism, shape: StageShape, policy: str, shardings: Shardings) -> StageCost:
        """One stage of the plan."""
        known = self._known(plan, policy, shardings)
        if shape not in known.stages:
            parts = parts_of(self.graph, shape, policy, plan.recompute_every, self.keepers)
            units = [(self._timed(known, plan, *part, shardings), count) for part, count in parts]
            cost = stage_cost(units, plan, self.software)
            tied = self._tied_elements(plan, shardings) if shape.first else 0.0
            together = cost._replace(shared_elements=tied)
            known.stages[shape] = together if shape.last else cost._replace(tied_elements=tied)
        return known.stages[shape]

    def _tied_elements(self, plan: Parallelism, shardings: Shardings) -> float:
        """Weights of the last block that the first has too, on one device."""
        if self.graph.last is None or not self.graph.tied:
            return 0.0
        local = sum(group.elements for group in self.block(plan, self.graph.last, "none", shardings).weights)
        return local * tied_share(self.graph, self.graph.last)

    def _known(self, plan: Parallelism, policy: str, shardings: Shardings) -> Known:
        """What is priced so far for all that is not a stage's shape."""
        self.kept.held[id(shardings)] = shardings
        degrees = (plan.tensor, plan.context, plan.expert, plan.data)
        batch = plan.micro_batch, plan.num_microbatches > 1
        layout = (plan.sequence_parallel, plan.experts_over_tensor)
        shards = plan.shard_degree, plan.secondary_degree
        states = (plan.zero_stage, *shards, plan.pipeline > 1, plan.offload, plan.offload_share)
        again = policy, plan.recompute_every
        key = (*degrees, *batch, *layout, *states, *again, id(shardings))
        if key not in self.kept.stages:
            self.kept.stages[key] = Known({}, {})
        return self.kept.stages[key]

    def stages(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: tuple[int, ...] | None = None
    ) -> tuple[StageCost, ...]:
        """Every stage, in order; ``shardings`` and ``cuts`` stand in for stages that the plan does not have."""
        shapes = self._shapes(cuts or self.cuts(plan))
        if not plan.stages:
            given = shardings if shardings is not None else _NOTHING_GIVEN
            known = self._known(plan, plan.recompute, given).stages
            return tuple(
                known.get(shape) or self.stage(plan, shape, plan.recompute, given) for shape in shapes
            )
        return tuple(
            self.stage(
                plan,
                shape,
                plan.stages[s].recompute or plan.recompute,
                shardings if shardings is not None else self.given(plan, s),
            )
            for s, shape in enumerate(shapes)
        )

    def given(self, plan: Parallelism, stage: int) -> Shardings:
        """Assignments written in the plan's stage; equal ones are one object."""
        written = plan.stages[stage].sharding
        if id(written) not in self._read:
            read = {
                block: {op: tuple((a, split[a]) for a in AXES if split.get(a)) for op, split in ops.items()}
                for block, ops in written.items()
            }
            key = tuple((block, tuple(ops.items())) for block, ops in read.items())
            self._read[id(written)] = written, self.kept.written.setdefault(key, read)
        return self._read[id(written)][1]

    # --- the answers ----------------------------------------------------------------------------------

    def floor(self, plan: Parallelism, shardings: Shardings, cuts: tuple[int, ...]) -> float:
        """Less than `estimate` will say of the step [s], without a simulation: for the search to prune by."""
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        return step_floor(self.setting, plan, mesh, stages, self.around)

    def seconds(self, plan: Parallelism, shardings: Shardings, cuts: tuple[int, ...]) -> float:
        """What `estimate` will say of the step [s], without all else that it says."""
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        return step_time(self.setting, plan, mesh, stages, self.around).total

    def memory(
        self, plan: Parallelism, shardings: Shardings, cuts: tuple[int, ...], limit: float = math.inf
    ) -> float:
        """What `estimate` will say of the fullest device [bytes], or what any has that is above ``limit``."""
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        return most_held(self.setting, plan, mesh, stages, limit)

    def estimate(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: tuple[int, ...] | None = None
    ) -> Estimate:
        """Price a plan. Raises ``InputError`` where its degrees contradict model, cluster or job."""
        check_degrees(self.whole, self.setting, plan)
        check_offload(self.setting, plan)
        judged = self._judge_sites(plan) if self.differs(plan) else self._judge(plan, shardings, cuts)
        step, memory = judged.step, judged.memory[judged.rank]
        batch = self.job.global_batch
        tokens = batch * self.graph.dims[self.graph.token_dim]
        useful, repeated = model_flops(self.graph, batch), self._repeated_flops(plan)
        rate = 1 / (step.total * plan.num_devices)
        return Estimate(
            step_time_s=step.total,
            step_time_interval_s=interval(
                step.total, spread_of(self.graph), self.software.unexplained or 0.0
            ),
            tokens_per_s=tokens / step.total,
            tokens_per_s_per_device=tokens * rate,
            model_flops_per_s_per_device=useful * rate,
            mfu=useful / (step.total * judged.peak),
            hfu=(useful + repeated) / (step.total * judged.peak),
            fits=memory.total <= judged.memory_limit and judged.host.fits,
            memory_bytes=memory.total,
            reserved_bytes=memory.reserved,
            tensor_bytes=memory.tensors,
            first_tensor_bytes=judged.memory.get(0, memory).tensors,
            memory_limit_bytes=judged.memory_limit,
            host_bytes=judged.host.used,
            host_limit_bytes=judged.host.limit,
            fullest_stage=judged.rank,
            peak_phase=memory.phase,
            memory=memory.components,
            memory_over_step=over_step(memory),
            time={name: seconds for name, seconds in step.parts.items() if seconds > 0},
            communication=step.sent_bytes,
            bubble_fraction=step.bubble_fraction,
        )

    def _judge(
        self, plan: Parallelism, shardings: Shardings | None, cuts: tuple[int, ...] | None
    ) -> Judgement:
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        step = step_time(self.setting, plan, mesh, stages, self.around)
        memory = dict(memory_by_rank(self.setting, plan, mesh, stages))
        fullest = max(memory, key=lambda rank: (memory[rank].total, -rank))
        host, peak = host_memory(self.setting, plan, mesh, in_flight(plan, stages)), self.peak
        return Judgement(step, fullest, memory, self.cluster.device.memory, host, peak * plan.num_devices)

    # --- stages that differ ---------------------------------------------------------------------------

    def differs(self, plan: Parallelism) -> bool:
        """Whether stages have devices or meshes of their own."""
        return len(self.pools) > 1 or plan.stages_differ

    def sites(self, plan: Parallelism) -> tuple[Site, ...]:
        """The stages of a plan where they run. Raises ``InputError`` where they are not whole."""
        check_sites(self.whole, plan)
        found = []
        for s, (stage, shape) in enumerate(zip(plan.stages, self._shapes(self.cuts(plan)), strict=True)):
            pool = self.pools[pool_of(self.whole, stage.devices)]
            local = seen_by(plan, stage)
            cost = pool.stage(local, shape, stage.recompute or plan.recompute, pool.given(plan, s))
            found.append(Site(pool.setting, local, pool.mesh(local), cost, stage.devices))
        return tuple(found)

    def _judge_sites(self, plan: Parallelism) -> Judgement:
        places = self.sites(plan)
        step = sites.step_time(self.whole, plan, places)
        limits = [places[ss[0]].setting.cluster.device.memory for ss in ranks_of(plan)]
        memory = dict(enumerate(sites.memory_by_rank(plan, places)))
        fullest = max(memory, key=lambda r: (memory[r].total / limits[r], -r))
        ranks = {
            place.devices: product_peak(place.setting.cluster.device, self.job.precision)
            * (place.devices[1] - place.devices[0])
            for place in places
        }
        host = sites.host_memory(plan, places)
        return Judgement(step, fullest, memory, limits[fullest], host, sum(ranks.values()))

    def _repeated_flops(self, plan: Parallelism) -> float:
        """What recomputation adds in a step, by the policy of each stage."""
        shapes = self._shapes(self.cuts(plan))
        own = [stage.recompute or plan.recompute for stage in plan.stages] or [plan.recompute] * len(shapes)
        stages = Counter(zip((shape.layers for shape in shapes), own, strict=True))
        return repeated_flops(self.graph, self.job.global_batch, stages, plan.recompute_every, self.software)


_NOTHING_GIVEN: Shardings = {}


def evaluate(plan: Plan) -> Estimate:
    """Price a plan, found or written by hand.

    Raises ``InputError`` where its parts contradict each other.
    """
    return Evaluator(plan.model, plan.cluster, plan.job).estimate(plan.plan)
