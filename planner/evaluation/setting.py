"""What stays the same while plans are compared: the model's graph, the cluster, the job and the software."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import InputError
from cluster_specs.software import (
    SoftwareSpec,
    device_on,
    in_training,
    load_software,
    replayed,
    software_on,
    updating,
)
from cost_models.compute import newton_schulz_flops
from planner.flops import matmul_dims
from planner.graph import Graph, count_parameters
from planner.models.adapters import adapted
from planner.models.catalog import build_graph
from planner.models.model import Model
from planner.operators import operator_rule
from planner.pipeline.generators import schedule_entry, stage_to_rank
from planner.plans import Job, Parallelism, StagePlan


class Setting(NamedTuple):
    """The inputs of every estimate."""

    graph: Graph
    cluster: ClusterSpec
    """Its device with the attention rates that the software reaches."""
    job: Job
    software: SoftwareSpec
    parameters: int
    """Of the whole model that are trained."""
    matrix_flops: float
    """Of orthogonalising every weight matrix once, as Muon does."""


def setting_of(model: Model, cluster: ClusterSpec, job: Job) -> Setting:
    """What is trained on one pool of devices, and how.

    Raises ``InputError`` where adapters fit neither model nor stack.
    """
    software = software_of(job, cluster.device)
    device = cluster.device if job.attention == "native" else device_on(cluster.device, software)
    runs_on = cluster.model_copy(update={"device": in_training(device)})
    check_adapter(job, software)
    graph = graph_of(model, job)
    matrices = orthogonalisation_flops(graph) if job.optimizer == "muon" else 0.0
    return Setting(graph, runs_on, job, software, count_parameters(graph), matrices)


def software_of(job: Job, device: DeviceSpec) -> SoftwareSpec:
    """The job's stack as it is on such a device, with the habits that the job changes."""
    software = software_on(load_software(job.stack), device)
    if job.cuda_graphs:
        software = replayed(software)
    return software if job.fused_optimizer is None else updating(software, job.fused_optimizer)


def graph_of(model: Model, job: Job) -> Graph:
    """The model's operators as they are trained: with adapters, where the job has any."""
    graph = build_graph(model, job.seq_len)
    return graph if job.adapter is None else adapted(graph, job.adapter)


def trained_parameters(model: Model, job: Job) -> int:
    """Of the model, or of what is trained in its place."""
    return model.parameters if job.adapter is None else count_parameters(graph_of(model, job))


def describe_trained(model: Model, job: Job) -> str:
    """What is trained where that is not all: adapters, and how many parameters of how many; else nothing."""
    if job.adapter is None:
        return ""
    trained = trained_parameters(model, job)
    everything = model.parameters + trained
    return f"{job.adapter}: {trained / 1e6:.1f}M of {everything / 1e9:.2f}B parameters trained"


def check_adapter(job: Job, software: SoftwareSpec) -> None:
    """Refuse adapters where nothing is known of how a stack trains them, or of what it would quantise."""
    if job.adapter is None:
        return
    if software.gradient_life != "late":
        raise InputError(
            f"adapters are priced for PyTorch's FSDP and DDP, not for stack {job.stack}: use --stack hf-fsdp or "
            "torch-fsdp2"
        )
    if job.precision not in ("bf16", "fp16", "fp32"):
        raise InputError(f"adapters are trained in bf16, fp16 or fp32, found precision {job.precision}")


def check_data_parallel(plan: Parallelism) -> None:
    """Refuse what is not known of adapters: any parallelism but that of data, and weights on the host."""
    degrees = {name: getattr(plan, name) for name in ("tensor", "pipeline", "context", "expert")}
    if split := [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]:
        raise InputError(f"adapters are trained data-parallel only (FSDP or DDP), found {', '.join(split)}")
    if "weights" in plan.offload:
        raise InputError("offload of weights: what it costs of frozen weights is not known")


def orthogonalisation_flops(graph: Graph) -> float:
    """FLOPs of one Newton-Schulz orthogonalisation of every matrix that multiplies activations."""
    total = 0.0
    for block, count in graph.instances():
        for op in (op for op in block.ops if operator_rule(op).arithmetic == "matmul"):
            for weight, dims in matmul_dims(op, block):
                if weight.role != "weight":
                    continue
                rows, columns, each = (
                    math.prod(graph.dims[d] for d in names)
                    for names in (dims.columns, dims.contracted, dims.grouped)
                )
                total += count * each * newton_schulz_flops(rows, columns)
    return total


def ranks_of(plan: Parallelism) -> tuple[tuple[int, ...], ...]:
    """Stages of each pipeline rank, in the order in which a micro-batch passes them; copies included."""
    return _ranks(plan.schedule, plan.pipeline, plan.virtual_stages)


def places_of(plan: Parallelism) -> tuple[tuple[int, int], ...]:
    """Half-open range of devices of each stage, where all ranks have as many; of copies, that of the last."""
    each = plan.num_devices // plan.pipeline
    rank_of = {stage: rank for rank, own in enumerate(ranks_of(plan)) for stage in own}
    return tuple((rank_of[s] * each, (rank_of[s] + 1) * each) for s in range(len(rank_of)))


def stage_plans(plan: Parallelism, cuts: Sequence[int]) -> tuple[StagePlan, ...]:
    """Stages with the named layout, in the order in which a micro-batch passes them, cut at ``cuts``."""
    layers = zip(cuts, cuts[1:], strict=False)
    return tuple(
        StagePlan(blocks=blocks, devices=devices, mesh=plan.axes)
        for blocks, devices in zip(layers, places_of(plan), strict=True)
    )


@lru_cache(maxsize=1024)
def _ranks(schedule: str, p: int, v: int) -> tuple[tuple[int, ...], ...]:
    if p == 1:
        return (tuple(range(v)),)
    stages: list[set[int]] = [set() for _ in range(p)]
    for stage, rank in enumerate(stage_to_rank(schedule, p, v)):
        stages[rank].add(stage)
        if schedule_entry(schedule).copies > 1:
            stages[p - 1 - rank].add(stage)
    return tuple(tuple(sorted(held)) for held in stages)


def copies_of(plan: Parallelism) -> int:
    """How often the plan's schedule holds every stage; each copy sees an equal share of the micro-batches."""
    return schedule_entry(plan.schedule).copies if plan.pipeline > 1 else 1


ENDS = 2
"""Embedding and head, which may have a stage each to themselves, as if they were layers.

Source: NVIDIA/Megatron-LM ``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``.
"""


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Boundaries of an even split; what is left over goes to the middle stages, away from embedding and head."""
    base, extra = divmod(num_layers, num_stages)
    start = (num_stages - extra) // 2
    cuts = [0]
    for s in range(num_stages):
        cuts.append(cuts[-1] + base + (start <= s < start + extra))
    return tuple(cuts)


def check_degrees(cluster: ClusterSpec, setting: Setting, plan: Parallelism) -> None:
    """Refuse degrees that contradict the whole ``cluster``, the batch or the layers."""
    graph, job = setting.graph, setting.job
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
    if plan.pipeline * plan.virtual_stages > graph.num_layers + ENDS:
        raise InputError(
            f"pipeline {plan.pipeline} x virtual_stages {plan.virtual_stages} needs as many layers, "
            f"model {graph.name} has {graph.num_layers}"
        )
    if plan.context_experts > 1 and not setting.software.experts_nearest:
        raise InputError(
            f"expert {plan.expert} does not divide data {plan.data}, and stack {job.stack} spreads experts over data "
            "ranks only"
        )
    check_stages(plan, graph)
    if job.adapter is not None:
        check_data_parallel(plan)


def unlike_priced(software: SoftwareSpec, stage: int) -> str:
    """What to say of a ZeRO stage that the stack's programs run otherwise than it is priced; nothing of others."""
    if stage not in (software.unlike_zero_stages or ()):
        return ""
    return (
        f"ZeRO {stage} under stack {software.name}: weights lie whole between its steps, and ZeRO {stage} is priced "
        "with shards of them"
    )


def check_stages(plan: Parallelism, graph: Graph) -> None:
    """Refuse stages that are not as many as the pipeline has, or do not hold every layer once and in order."""
    if not plan.stages:
        return
    expected = plan.pipeline * plan.virtual_stages
    if len(plan.stages) != expected:
        raise InputError(
            f"pipeline {plan.pipeline} x virtual_stages {plan.virtual_stages} has {expected} stages, "
            f"`stages` lists {len(plan.stages)}"
        )
    for s, stage in enumerate(plan.stages):
        data, _, _, expert = stage.degrees
        found, due = stage.mesh.get("context_expert", 1), expert // math.gcd(expert, data)
        if found != due:
            where = f"stages[{s}].mesh has context_expert {found}"
            raise InputError(f"{where}, but expert {expert} over data {data} needs {due}")
    ends = [end for _, end in (stage.blocks for stage in plan.stages)]
    for s, (stage, start) in enumerate(zip(plan.stages, (0, *ends), strict=False)):
        if stage.blocks[0] != start or stage.blocks[1] < start:
            raise InputError(
                f"stages[{s}].blocks must begin with layer {start}, where the stage before it ends, and not end "
                f"before that; found {list(stage.blocks)}"
            )
    if ends[-1] != graph.num_layers:
        raise InputError(
            f"the last of `stages` must end with layer {graph.num_layers} of {graph.name}, found {ends[-1]}"
        )
