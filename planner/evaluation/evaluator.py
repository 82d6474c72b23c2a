"""The one place where plans get their numbers.

An `Evaluator` holds one model, cluster and job, prices blocks once per distinct assignment, and turns any
`Parallelism` into an `Estimate`. The search, the command line, validation and what-ifs all come here.
"""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.software import device_on, in_training, load_software, replayed
from cost_models.compute import peak
from planner.errors import Unsupported
from planner.evaluation.blocks import (
    Assignment,
    BlockCost,
    WeightGroup,
    block_cost,
    block_terms,
    exit_of,
)
from planner.evaluation.memory import DeviceMemory, memory_by_rank
from planner.evaluation.moments import Moment
from planner.evaluation.padding import padded_weights
from planner.evaluation.setting import Setting, even_cuts, orthogonalisation_flops
from planner.evaluation.stages import Place, StageCost, UnitCost, stage_cost
from planner.evaluation.states import (
    Sync,
    copied_bytes,
    reduced_bytes,
    reduced_embedding_bytes,
    sync_of,
    weight_bytes,
)
from planner.evaluation.step import step_floor, step_time
from planner.graph import BATCH, Graph, count_parameters
from planner.models.catalog import build_graph
from planner.models.model import Model
from planner.operators import model_flops, recompute_flops
from planner.plans import Estimate, Job, MemoryMoment, Parallelism, Plan
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import AXES, Mesh
from planner.sharding.pricing import Array, EdgeCost, OpCost, Pricer
from planner.sharding.spec import ShardingSpec, Sizes

Shardings = Mapping[str, Assignment]
"""Block name -> assignment, where a stage departs from the named layout."""


class StageShape(NamedTuple):
    """What a stage is made of; equal shapes cost the same."""

    layers: tuple[tuple[str, int], ...]
    """(block, count)."""
    first: bool
    last: bool


class Evaluator:
    """Prices plans of one model on one cluster for one job."""

    def __init__(self, model: Model, cluster: ClusterSpec, job: Job) -> None:
        """Raises ``InputError`` where the device has no rate for the job's precision."""
        software = load_software(job.stack)
        if job.cuda_graphs:
            software = replayed(software)
        runs_on = cluster.model_copy(update={"device": in_training(device_on(cluster.device, software))})
        graph = build_graph(model, job.seq_len)
        matrices = orthogonalisation_flops(graph) if job.optimizer == "muon" else 0.0
        self.setting = Setting(graph, runs_on, job, software, count_parameters(graph), matrices)
        self.graph, self.cluster, self.job, self.software = self.setting[:4]
        self.peak = peak(runs_on.device, job.precision)
        self.main_layer = _main_layer(graph)
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        self._pricers: dict[tuple[int, ...], Pricer] = {}
        self._known: dict[tuple[object, ...], OpCost | EdgeCost] = {}
        self._tables: dict[tuple[object, ...], tuple[Array, ...]] = {}
        self._blocks: dict[tuple[object, ...], BlockCost] = {}
        self._units: dict[tuple[object, ...], UnitCost] = {}
        self._stages: dict[tuple[object, ...], dict[StageShape, StageCost]] = {}
        self._cut_shapes: dict[tuple[int, ...], tuple[StageShape, ...]] = {}
        self._held: dict[int, object] = {}
        self._written: dict[object, Shardings] = {}

    # --- what a plan's degrees mean -------------------------------------------------------------------

    def mesh(self, plan: Parallelism) -> Mesh:
        """The mesh of one stage."""
        sizes = (plan.tensor, plan.context, plan.expert, plan.data // plan.expert)
        if sizes not in self._meshes:
            self._meshes[sizes] = Mesh(self.cluster, dict(zip(AXES, sizes, strict=True)))
        return self._meshes[sizes]

    def pricer(self, plan: Parallelism) -> Pricer:
        """Prices operators for the plan's micro-batch over all data ranks."""
        mesh = self.mesh(plan)
        key = (*mesh.sizes.values(), plan.micro_batch)
        if key not in self._pricers:
            sizes = Sizes(self.graph, mesh, plan.micro_batch * plan.data)
            self._pricers[key] = Pricer(self.graph, sizes, self.job, self.software, self._known, self._tables)
        return self._pricers[key]

    def cuts(self, plan: Parallelism) -> tuple[int, ...]:
        """Boundaries of the stages in layers: those of the plan, or an even split."""
        if plan.stages:
            return (0, *(stage.blocks[1] for stage in plan.stages))
        return even_cuts(self.graph.num_layers, plan.pipeline * plan.virtual_stages)

    def _shapes(self, cuts: tuple[int, ...]) -> tuple[StageShape, ...]:
        if cuts not in self._cut_shapes:
            sequence, final = self.graph.sequence, len(cuts) - 2
            self._cut_shapes[cuts] = tuple(
                StageShape(tuple(Counter(sequence[a:b]).items()), s == 0, s == final)
                for s, (a, b) in enumerate(itertools.pairwise(cuts))
            )
        return self._cut_shapes[cuts]

    # --- blocks and stages ----------------------------------------------------------------------------

    def assignment(self, plan: Parallelism, block: str, shardings: Shardings) -> Assignment:
        """The block's assignment: given, or the named layout."""
        if block in shardings:
            return shardings[block]
        return named_layout(self.graph.block[block], self.pricer(plan).sizes, plan.sequence_parallel)

    def block(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> BlockCost:
        """One block under a policy."""
        given = shardings.get(name)
        data = self.mesh(plan).size("data")
        if given is None or _only_batch(given):
            data = min(data, 2)  # one device's share does not depend on how many others there are
        self._held[id(given)] = given
        degrees = (plan.tensor, plan.context, plan.expert, data, plan.micro_batch, plan.sequence_parallel)
        key = (*degrees, name, policy, id(given), id(shardings.get(self.main_layer)))
        if key not in self._blocks:
            pricer, block = self.pricer(plan), self.graph.block[name]
            common = None if name == self.main_layer else self._exit(plan, self.main_layer, shardings)
            entry = None if name == self.graph.first else common
            leaves = None if name == self.graph.last else common
            terms = block_terms(pricer, block, self.assignment(plan, name, shardings), entry, leaves)
            self._blocks[key] = block_cost(pricer, block, terms, policy)
        return self._blocks[key]

    def _exit(self, plan: Parallelism, name: str, shardings: Shardings) -> ShardingSpec:
        return exit_of(self.pricer(plan), self.graph.block[name], self.assignment(plan, name, shardings))

    def _unit(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> UnitCost:
        cost = self.block(plan, name, policy, shardings)
        key = (id(cost), id(self.mesh(plan)), plan.zero_stage, plan.shard_degree)
        if key not in self._units:
            place = self._place(name)
            if self.software.pads_shards and plan.zero_stage >= 2 and plan.shard_degree > 1:
                given = self.assignment(plan, name, shardings)
                padded = padded_weights(self.pricer(plan), self.graph.block[name], given, plan.shard_degree)
                cost = cost._replace(weights=padded)
            self._units[key] = UnitCost(cost, self._sync(cost.weights, plan, place), place)
        return self._units[key]

    def _place(self, name: str) -> Place:
        return "first" if name == self.graph.first else "last" if name == self.graph.last else "layer"

    def _beside_first(self, unit: UnitCost, name: str, plan: Parallelism) -> UnitCost:
        """The last block on the stage of the first: tied weights are stored and reduced once."""
        weights = [t for t in self.graph.block[name].tensors if t.role == "weight"]
        tied = {tensor for pair in self.graph.tied for tensor in pair}
        shared = sum(self.graph.elements(t) for t in weights if f"{name}.{t.name}" in tied)
        if not shared:
            return unit
        whole = sum(self.graph.elements(t) for t in weights)
        kept = tuple(g._replace(elements=g.elements * (1 - shared / whole)) for g in unit.block.weights)
        return unit._replace(block=unit.block._replace(weights=kept), sync=self._sync(kept, plan, "last"))

    def _sync(self, weights: tuple[WeightGroup, ...], plan: Parallelism, place: Place) -> Sync:
        reduced = (reduced_embedding_bytes if place == "first" else reduced_bytes)(self.job, self.software)
        copied = copied_bytes(self.job, self.software)
        return sync_of(weights, self.mesh(plan), plan, weight_bytes(self.job), reduced, copied)

    def stage(self, plan: Parallelism, shape: StageShape, policy: str, shardings: Shardings) -> StageCost:
        """One stage of the plan."""
        known = self._known_stages(plan, policy, shardings)
        if shape not in known:
            units = [(self._unit(plan, name, policy, shardings), count) for name, count in shape.layers]
            if shape.first and self.graph.first:
                units.insert(0, (self._unit(plan, self.graph.first, "none", shardings), 1))
            if shape.last and self.graph.last:
                head = self._unit(plan, self.graph.last, "none", shardings)
                units.append((self._beside_first(head, self.graph.last, plan) if shape.first else head, 1))
            known[shape] = stage_cost(units, plan, self.software, self.cluster.device.host_bandwidth)
        return known[shape]

    def _known_stages(
        self, plan: Parallelism, policy: str, shardings: Shardings
    ) -> dict[StageShape, StageCost]:
        """Stages priced so far for all that is not a stage's shape."""
        self._held[id(shardings)] = shardings
        degrees = (
            plan.tensor,
            plan.context,
            plan.expert,
            plan.data,
            plan.micro_batch,
            plan.sequence_parallel,
        )
        moved = plan.offload, plan.offload_share
        states = (plan.zero_stage, plan.shard_degree, plan.pipeline > 1, moved)
        return self._stages.setdefault((*degrees, *states, policy, id(shardings)), {})

    def stages(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: tuple[int, ...] | None = None
    ) -> tuple[StageCost, ...]:
        """Every stage, in order; ``shardings`` and ``cuts`` stand in for stages that the plan does not have."""
        shapes = self._shapes(cuts or self.cuts(plan))
        if not plan.stages:
            given = shardings if shardings is not None else _NOTHING_GIVEN
            known = self._known_stages(plan, plan.recompute, given)
            return tuple(
                known.get(shape) or self.stage(plan, shape, plan.recompute, given) for shape in shapes
            )
        return tuple(
            self.stage(
                plan,
                shape,
                plan.stages[s].recompute or plan.recompute,
                shardings if shardings is not None else self._given(plan, s),
            )
            for s, shape in enumerate(shapes)
        )

    def _given(self, plan: Parallelism, stage: int) -> Shardings:
        """Assignments written in the plan's stage; equal ones are one object."""
        read = {
            block: {op: tuple((a, split[a]) for a in AXES if split.get(a)) for op, split in ops.items()}
            for block, ops in plan.stages[stage].sharding.items()
        }
        key = tuple((block, tuple(ops.items())) for block, ops in read.items())
        return self._written.setdefault(key, read)

    # --- the answers ----------------------------------------------------------------------------------

    def floor(self, plan: Parallelism, shardings: Shardings, cuts: tuple[int, ...]) -> float:
        """Less than `estimate` will say of the step [s], without a simulation: for the search to prune by."""
        return step_floor(self.setting, plan, self.mesh(plan), self.stages(plan, shardings, cuts))

    def memory(self, plan: Parallelism, shardings: Shardings, cuts: tuple[int, ...]) -> float:
        """What `estimate` will say of the fullest device [bytes]."""
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        return max(m.total for _, m in memory_by_rank(self.setting, plan, mesh, stages))

    def estimate(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: tuple[int, ...] | None = None
    ) -> Estimate:
        """Price a plan. Raises ``InputError`` where its degrees contradict model, cluster or job."""
        _check(self.setting, plan)
        stages, mesh = self.stages(plan, shardings, cuts), self.mesh(plan)
        step = step_time(self.setting, plan, mesh, stages)
        by_rank = memory_by_rank(self.setting, plan, mesh, stages)
        fullest, memory = max(by_rank, key=lambda entry: (entry[1].total, -entry[0]))
        batch = self.job.global_batch
        tokens = batch * self.graph.dims[self.graph.token_dim]
        useful, repeated = model_flops(self.graph, batch), recompute_flops(self.graph, batch, plan.recompute)
        rate = 1 / (step.total * plan.num_devices)
        spread = 1 + self.software.uncertainty
        return Estimate(
            step_time_s=step.total,
            step_time_interval_s=(step.total / spread, step.total * spread),
            tokens_per_s=tokens / step.total,
            tokens_per_s_per_device=tokens * rate,
            model_flops_per_s_per_device=useful * rate,
            mfu=useful * rate / self.peak,
            hfu=(useful + repeated) * rate / self.peak,
            fits=memory.total <= self.cluster.device.memory,
            memory_bytes=memory.total,
            reserved_bytes=memory.reserved,
            tensor_bytes=memory.tensors,
            memory_limit_bytes=self.cluster.device.memory,
            fullest_stage=fullest,
            peak_phase=memory.phase,
            memory=memory.components,
            memory_over_step=_over_step(memory),
            time={name: seconds for name, seconds in step.parts.items() if seconds > 0},
            communication=step.sent_bytes,
            bubble_fraction=step.bubble_fraction,
        )


def _over_step(memory: DeviceMemory) -> tuple[MemoryMoment, ...]:
    """Live tensors by moment; the step starts with its states."""
    found = []
    for phase, passing in (Moment("start", {}), *memory.passing):
        tensors = {name: size for name, size in {**memory.resident, **passing}.items() if size > 0}
        found.append(MemoryMoment(phase=phase, tensor_bytes=sum(tensors.values()), tensors=tensors))
    return tuple(found)


_NOTHING_GIVEN: Shardings = {}


def _main_layer(graph: Graph) -> str:
    """The commonest layer: between any two blocks the activations lie as it leaves them."""
    return min(graph.sequence, key=lambda name: (-graph.sequence.count(name), name))


def _only_batch(assignment: Assignment) -> bool:
    """Whether the data axis splits nothing but the batch."""
    return all(dim == BATCH for strategy in assignment.values() for axis, dim in strategy if axis == "data")


def _check(setting: Setting, plan: Parallelism) -> None:
    """Refuse degrees that contradict the cluster, the batch or the layers."""
    graph, cluster, job = setting[:3]
    if plan.num_devices > cluster.num_devices:
        raise InputError(
            f"plan needs {plan.num_devices} devices (data {plan.data} x tensor {plan.tensor} x pipeline "
            f"{plan.pipeline} x context {plan.context}), cluster {cluster.name} has {cluster.num_devices}"
        )
    covered = plan.data * plan.micro_batch * plan.num_microbatches
    if covered != job.global_batch:
        raise InputError(
            f"data {plan.data} x micro_batch {plan.micro_batch} x num_microbatches {plan.num_microbatches} "
            f"= {covered} sequences, but global_batch is {job.global_batch}"
        )
    if "weights" in plan.offload:
        raise Unsupported(
            "offload of weights is not priced: what a step on the host costs is not known; leave it out"
        )
    if plan.pipeline * plan.virtual_stages > graph.num_layers:
        raise InputError(
            f"pipeline {plan.pipeline} x virtual_stages {plan.virtual_stages} needs as many layers, "
            f"model {graph.name} has {graph.num_layers}"
        )


def evaluate(plan: Plan) -> Estimate:
    """Price a plan, found or written by hand.

    Raises ``InputError`` where its parts contradict each other.
    """
    return Evaluator(plan.model, plan.cluster, plan.job).estimate(plan.plan)
