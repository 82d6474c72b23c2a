"""The one place where plans get their numbers.

An `Evaluator` holds one model, cluster and job, prices blocks once per distinct assignment, and turns any
`Parallelism` into an `Estimate`. The search, the command line, validation and what-ifs all come here.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.software import device_on, load_software
from cluster_specs.topology import comm_group
from cost_models.collectives import send
from cost_models.compute import optimizer_seconds, peak, stream_seconds
from planner.evaluation.blocks import Assignment, BlockCost, block_cost, block_terms, exit_of
from planner.evaluation.memory import DeviceMemory, device_memory, gradient_bytes, weight_bytes
from planner.evaluation.stages import PARTS, StageCost, UnitCost, reduces_every_microbatch, stage_cost
from planner.evaluation.states import Sync, sharded_elements, sync_of
from planner.graph import BATCH, Graph
from planner.models.catalog import build_graph
from planner.models.model import Model
from planner.operators import model_flops, recompute_flops
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES
from planner.pipeline.simulator import StageTimes, makespan
from planner.plans import AXES, Estimate, Job, Parallelism, Plan
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.pricing import Pricer
from planner.sharding.spec import ShardingSpec, Sizes

Shardings = Mapping[str, Assignment]
"""Block name -> assignment, where a stage departs from the named layout."""


class StageShape(NamedTuple):
    """What a stage is made of; equal shapes cost the same."""

    layers: tuple[tuple[str, int], ...]
    """(block, count)."""
    first: bool
    last: bool


class StepTime(NamedTuple):
    """One optimizer step on the critical rank [s]."""

    parts: Mapping[str, float]
    bubble_fraction: float
    sent_bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.parts.values())


class Evaluator:
    """Prices plans of one model on one cluster for one job."""

    def __init__(self, model: Model, cluster: ClusterSpec, job: Job) -> None:
        """Raises ``InputError`` where the device has no rate for the job's precision."""
        self.software = load_software(job.stack)
        self.job = job
        self.cluster = cluster.model_copy(update={"device": device_on(cluster.device, self.software)})
        self.graph: Graph = build_graph(model, job.seq_len)
        self.peak = peak(cluster.device, job.precision)
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        self._pricers: dict[tuple[object, ...], Pricer] = {}
        self._blocks: dict[tuple[object, ...], BlockCost] = {}
        self._units: dict[tuple[object, ...], UnitCost] = {}
        self._stages: dict[tuple[object, ...], StageCost] = {}
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
            self._pricers[key] = Pricer(self.graph, sizes, self.job, self.software)
        return self._pricers[key]

    def cuts(self, plan: Parallelism) -> tuple[int, ...]:
        """Boundaries of the stages in layers: those of the plan, or an even split with the rest in the middle."""
        if plan.stages:
            return (0, *(stage.blocks[1] for stage in plan.stages))
        return even_cuts(self.graph.num_layers, plan.pipeline * plan.virtual_stages)

    def shapes(self, cuts: Sequence[int]) -> tuple[StageShape, ...]:
        """What each stage runs."""
        sequence, final = self.graph.sequence, len(cuts) - 2
        return tuple(
            StageShape(tuple(Counter(sequence[a:b]).items()), s == 0, s == final)
            for s, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))
        )

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
        key = (plan.tensor, plan.context, plan.expert, data, plan.micro_batch, plan.sequence_parallel,
               name, policy, id(given))
        if key not in self._blocks:
            pricer, block = self.pricer(plan), self.graph.block[name]
            entry = leaves = None
            if name == self.graph.last:
                entry = self._exit(plan, self.graph.sequence[-1], shardings)
            elif name == self.graph.first:
                leaves = self._exit(plan, self.graph.sequence[0], shardings)
            terms = block_terms(pricer, block, self.assignment(plan, name, shardings), entry, leaves)
            self._blocks[key] = block_cost(pricer, block, terms, policy)
        return self._blocks[key]

    def _exit(self, plan: Parallelism, name: str, shardings: Shardings) -> ShardingSpec:
        return exit_of(self.pricer(plan), self.graph.block[name], self.assignment(plan, name, shardings))

    def _unit(self, plan: Parallelism, name: str, policy: str, shardings: Shardings) -> UnitCost:
        cost = self.block(plan, name, policy, shardings)
        key = (id(cost), plan.zero_stage > 0, plan.shard_degree)
        if key not in self._units:
            wire = weight_bytes(self.job), gradient_bytes(self.job)
            self._units[key] = UnitCost(cost, sync_of(cost.weights, self.mesh(plan), plan, *wire))
        return self._units[key]

    def stage(self, plan: Parallelism, shape: StageShape, policy: str, shardings: Shardings) -> StageCost:
        """One stage of the plan."""
        units = [(self._unit(plan, name, policy, shardings), count) for name, count in shape.layers]
        if shape.first and self.graph.first:
            units.insert(0, (self._unit(plan, self.graph.first, "none", shardings), 1))
        if shape.last and self.graph.last:
            units.append((self._unit(plan, self.graph.last, "none", shardings), 1))
        key = (tuple((id(u), n) for u, n in units), plan.zero_stage, plan.pipeline > 1, plan.offload)
        if key not in self._stages:
            self._stages[key] = stage_cost(units, plan, self.software, self.cluster.device.host_bandwidth)
        return self._stages[key]

    def stages(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: Sequence[int] | None = None
    ) -> tuple[StageCost, ...]:
        """Every stage, in order."""
        policies = [stage.recompute or plan.recompute for stage in plan.stages]
        shapes = self.shapes(cuts or self.cuts(plan))
        return tuple(
            self.stage(plan, shape, policies[s] if policies else plan.recompute, shardings if shardings is not None else self._given(plan, s))
            for s, shape in enumerate(shapes)
        )

    def _given(self, plan: Parallelism, stage: int) -> Shardings:
        """Assignments written in the plan's stage; equal ones are one object."""
        if not plan.stages:
            return {}
        written = plan.stages[stage].sharding
        read = {
            block: {op: tuple((a, split[a]) for a in AXES if split.get(a)) for op, split in ops.items()}
            for block, ops in written.items()
        }
        key = tuple((block, tuple(ops.items())) for block, ops in read.items())
        return self._written.setdefault(key, read)

    # --- the estimate ---------------------------------------------------------------------------------

    def estimate(
        self, plan: Parallelism, shardings: Shardings | None = None, cuts: Sequence[int] | None = None
    ) -> Estimate:
        """Price a plan; ``shardings`` and ``cuts`` stand in for stages that it does not have. Raises ``InputError`` where its degrees contradict model, cluster or job."""
        self._check(plan)
        stages = self.stages(plan, shardings, cuts)
        step = self._step(plan, stages)
        ranks = self._memory(plan, stages)
        fullest = max(range(len(ranks)), key=lambda r: ranks[r].total)
        memory = ranks[fullest]
        tokens = self.job.global_batch * self.graph.dims[self.graph.token_dim]
        useful = model_flops(self.graph, self.job.global_batch)
        repeated = recompute_flops(self.graph, self.job.global_batch, plan.recompute)
        rate = 1 / (step.total * plan.num_devices)
        spread = self.software.uncertainty
        return Estimate(
            step_time_s=step.total,
            step_time_interval_s=(step.total / (1 + spread), step.total * (1 + spread)),
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
            time={name: seconds for name, seconds in step.parts.items() if seconds > 0},
            communication=step.sent_bytes,
            bubble_fraction=step.bubble_fraction,
        )

    def _check(self, plan: Parallelism) -> None:
        if plan.num_devices > self.cluster.num_devices:
            raise InputError(
                f"plan needs {plan.num_devices} devices (data {plan.data} x tensor {plan.tensor} x pipeline "
                f"{plan.pipeline} x context {plan.context}), cluster {self.cluster.name} has "
                f"{self.cluster.num_devices}"
            )
        covered = plan.data * plan.micro_batch * plan.num_microbatches
        if covered != self.job.global_batch:
            raise InputError(
                f"data {plan.data} x micro_batch {plan.micro_batch} x num_microbatches {plan.num_microbatches} "
                f"= {covered} sequences, but global_batch is {self.job.global_batch}"
            )
        if plan.pipeline * plan.virtual_stages > self.graph.num_layers:
            raise InputError(
                f"pipeline {plan.pipeline} x virtual_stages {plan.virtual_stages} needs as many layers, "
                f"model {self.graph.name} has {self.graph.num_layers}"
            )

    @cached_property
    def _tied_first_last(self) -> float:
        """Elements of weights that the first and last block share."""
        return sum(
            self.graph.elements(self.graph.block[b].tensor[t])
            for b, t in (second.split(".", 1) for _, second in self.graph.tied)
        )

    def _send_seconds(self, plan: Parallelism, stages: Sequence[StageCost]) -> tuple[float, ...]:
        """Passing one micro-batch's boundary activations on, per boundary between stages."""
        per_stage = plan.num_devices // plan.pipeline
        group = comm_group(self.cluster, ((plan.pipeline, per_stage),))
        return tuple(send(stage.boundary_bytes, group).seconds for stage in stages[:-1])

    def _step(self, plan: Parallelism, stages: Sequence[StageCost]) -> StepTime:
        """Simulate the pipeline, then add what comes after it on the rank that is busiest."""
        m, p, v = plan.num_microbatches, plan.pipeline, plan.virtual_stages
        on_rank = self.ranks_of(plan)
        work = [sum(stages[s].seconds for s in on_rank[r]) for r in range(p)]
        busiest = max(range(p), key=lambda r: work[r])
        span = m * work[0]
        if p > 1:
            times = StageTimes(
                [s.forward for s in stages], [s.backward_input for s in stages], [s.backward_weight for s in stages]
            )
            span = makespan(plan.schedule, p, v, m, times, self._send_seconds(plan, stages)).makespan
        parts = dict.fromkeys(PARTS, 0.0)
        sent: dict[str, float] = {}
        for s in on_rank[busiest]:
            for name, seconds in stages[s].parts.items():
                parts[name] += m * seconds
            for name, num_bytes in stages[s].sent_bytes.items():
                sent[name] = sent.get(name, 0.0) + m * num_bytes
        parts["bubble"] = max(0.0, span - m * work[busiest])
        tail = max((self._tail(plan, [stages[s] for s in ss], sent if r == busiest else {})
                    for r, ss in enumerate(on_rank)), key=lambda t: sum(t.values()))
        for name, seconds in tail.items():
            parts[name] = parts.get(name, 0.0) + seconds
        parts["overhead"] = self.software.step_overhead
        nodes = max(1, plan.num_devices / self.cluster.devices_per_node)
        parts["stragglers"] = sum(parts.values()) * self.software.straggler * math.log2(nodes)
        return StepTime(parts, parts["bubble"] / span if span else 0.0, sent)

    def _tail(self, plan: Parallelism, stages: Sequence[StageCost], sent: dict[str, float]) -> dict[str, float]:
        """After the last backward on one rank: exposed gradient reduction, optimizer, gathering of weights."""
        sync = Sync()
        for stage in stages:
            sync += stage.sync
        backward = sum(s.backward_input + s.backward_weight for s in stages)
        forward = sum(s.forward for s in stages)
        every = reduces_every_microbatch(plan)
        m = plan.num_microbatches
        last_reduce = sync.replicate if every else sync.reduce + sync.replicate
        exposed = max(0.0, last_reduce - self.software.overlap_data * backward)
        if plan.zero_stage == 1:
            exposed += max(0.0, sync.gather - self.software.overlap_data * forward)
        _add(sent, "reduce_scatter" if plan.zero_stage else "all_reduce", sync.reduce_bytes * (m if every else 1))
        _add(sent, "all_reduce", sync.replicate_bytes)
        gathers = {0: 0, 1: 1, 2: m if plan.pipeline == 1 else 1, 3: 2 * m}[plan.zero_stage]
        _add(sent, "all_gather", sync.gather_bytes * gathers)
        mesh = self.mesh(plan)
        shard = sum(sharded_elements(s.weights, mesh, plan.shard_degree if plan.zero_stage else 1) for s in stages)
        return {"data": exposed, "optimizer": self._optimizer_seconds(plan, shard)}

    def _optimizer_seconds(self, plan: Parallelism, elements: float) -> float:
        """Gradient norm and clip (one read, one read and write), and the update; over the host link if offloaded."""
        device, job = self.cluster.device, self.job
        clip = stream_seconds(3 * elements * gradient_bytes(job), device).seconds
        update = optimizer_seconds(
            elements, job.optimizer, device, weight_bytes=weight_bytes(job), grad_bytes=gradient_bytes(job),
            master_weights=job.master_weights, fused=self.software.fused_optimizer, matrix_flops=0.0,
        ).seconds
        if "optimizer" in plan.offload and device.host_bandwidth:
            update = elements * (gradient_bytes(job) + weight_bytes(job)) / device.host_bandwidth
        return clip + update

    def ranks_of(self, plan: Parallelism) -> tuple[tuple[int, ...], ...]:
        """Stages of each pipeline rank."""
        p, v = plan.pipeline, plan.virtual_stages
        if p == 1:
            return (tuple(range(v)),)
        if SCHEDULES[plan.schedule].placement == "v":
            return tuple((rank, 2 * p - 1 - rank) for rank in range(p))
        return tuple(tuple(range(rank, v * p, p)) for rank in range(p))

    def _memory(self, plan: Parallelism, stages: Sequence[StageCost]) -> tuple[DeviceMemory, ...]:
        """Every pipeline rank's memory."""
        saved = [s.saved_bytes for s in stages]
        if plan.pipeline == 1:
            held: Sequence[float] = (sum(saved),)
        else:
            dependencies = arranged(plan.schedule, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
            held = peak_bytes(dependencies, saved, [0.0] * len(saved))
        mesh = self.mesh(plan)
        return tuple(
            device_memory([stages[s] for s in ss], held[r], self.job, plan, mesh, self.software)
            for r, ss in enumerate(self.ranks_of(plan))
        )


def _add(sent: dict[str, float], name: str, num_bytes: float) -> None:
    if num_bytes:
        sent[name] = sent.get(name, 0.0) + num_bytes


def _only_batch(assignment: Assignment) -> bool:
    """Whether the data axis splits nothing but the batch."""
    return all(dim == BATCH for strategy in assignment.values() for axis, dim in strategy if axis == "data")


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Boundaries of an even split; what is left over goes to the middle stages, away from embedding and head."""
    base, extra = divmod(num_layers, num_stages)
    start = (num_stages - extra) // 2
    cuts = [0]
    for s in range(num_stages):
        cuts.append(cuts[-1] + base + (start <= s < start + extra))
    return tuple(cuts)


def evaluate(plan: Plan) -> Estimate:
    """Price a plan, found or written by hand.

    Raises ``InputError`` where its parts contradict each other.
    """
    return Evaluator(plan.model, plan.cluster, plan.job).estimate(plan.plan)
