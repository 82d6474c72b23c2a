"""Plans that contradict the cluster, the batch, the layers or the stack are refused, in one sentence each."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.software import SoftwareSpec
from planner.evaluation.cuts import ENDS
from planner.evaluation.setting import Setting
from planner.graph import Graph, has_scans
from planner.models.adapter_steps import RANK, narrow_product
from planner.models.adapters import adapts_products
from planner.plans import Parallelism


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
    if plan.context > 1 and has_scans(graph):
        raise InputError(
            f"context {plan.context} splits sequences, which linear recurrences of {graph.name} are priced on whole: "
            "plan with context 1"
        )
    check_stages(plan, graph)
    if job.step_in_backward and (reason := waits(plan, setting.software)):
        raise InputError(f"step_in_backward: {reason}")
    if job.adapter is not None:
        check_adapted(graph, setting.software, plan)


WAITS: Mapping[str, Callable[[Parallelism, SoftwareSpec], bool]] = MappingProxyType(
    {
        "gradients of several micro-batches are added up first, so use one a step": (
            lambda plan, _: plan.num_microbatches > 1
        ),
        "a pipeline has several micro-batches, so plan without one": lambda plan, _: plan.pipeline > 1,
        "stacks refuse it beside ranks with experts of their own, so use expert 1": (
            lambda plan, _: plan.expert > 1 or plan.experts_over_tensor
        ),
        "the host steps what is offloaded, so leave optimizer and weights on the device": (
            lambda plan, _: bool({"optimizer", "weights"} & {*plan.offload})
        ),
        "ranks with whole copies of weights sum gradients after that, so share them by ZeRO 2 or 3": (
            lambda plan, software: plan.data * plan.context > 1 and plan.zero_stage < 2
        ),
        "units of one flat parameter have no gradients of weights, so use a stack of FSDP2": (
            lambda plan, software: plan.shard_degree > 1 and not software.sorts_shards
        ),
    }
)
"""Why a gradient cannot be used up where it is made -> the plans in which it is so.

Source: torchtitan 0.2.2 ``torchtitan/components/optimizer.py`` (``build_optimizers`` refuses pipelines and expert
ranks); torch 2.13 ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`` (``foreach_reduce`` calls hooks of
gradients that are reduced; DistributedDataParallel reduces after such hooks).
"""


EARLY = (
    "weights can be stepped within the backward: one micro-batch a step, no pipeline, no expert ranks, no optimizer or "
    "weights on the host, and ZeRO 2 or 3 over data or context ranks"
)
"""What a plan needs to have none of these."""


def waits(plan: Parallelism, software: SoftwareSpec) -> str | None:
    """Why weights cannot be stepped within the backward of a plan; None where they can."""
    return next((reason for reason, holds in WAITS.items() if holds(plan, software)), None)


def check_stages(plan: Parallelism, graph: Graph) -> None:
    """Refuse stages that contradict the degrees, are too many or too few, or do not hold each layer once, in order."""
    if not plan.stages:
        return
    expected = plan.pipeline * plan.virtual_stages
    if len(plan.stages) != expected:
        raise InputError(
            f"pipeline {plan.pipeline} x virtual_stages {plan.virtual_stages} has {expected} stages, "
            f"`stages` lists {len(plan.stages)}"
        )
    names, first = ("data", "tensor", "context", "expert"), plan.stages[0]
    for name, degree in zip(names, first.degrees if first.mesh else (), strict=False):
        if degree != getattr(plan, name):
            raise InputError(
                f"{name} is {getattr(plan, name)}, but stages[0].mesh has {degree}: a plan's degrees are those of its "
                "first stage; change both, or leave `stages` out"
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


def check_adapted(graph: Graph, software: SoftwareSpec, plan: Parallelism) -> None:
    """Refuse what is not known of adapters: of PyTorch's any parallelism but that of data, of Megatron Core's that of
    experts and layouts by operators; weights on the host; and ranks that tensor ranks cannot share.

    Source: NVIDIA/Megatron-LM ``megatron/core/tensor_parallel/layers.py`` (``divide``).
    """
    products = adapts_products(software)
    names = ("expert",) if products else ("tensor", "pipeline", "context", "expert")
    if split := [f"{name} {getattr(plan, name)}" for name in names if getattr(plan, name) > 1]:
        how = "on all experts' ranks alike" if products else "data-parallel only (FSDP or DDP)"
        raise InputError(f"adapters are trained {how}, found {', '.join(split)}")
    tensor = max((plan.tensor, *(stage.degrees[1] for stage in plan.stages)))
    if graph.dims[RANK] % tensor and _splits_ranks(graph):
        raise InputError(f"adapters of rank {graph.dims[RANK]} cannot be split over {tensor} tensor ranks")
    if tensor > 1 and any(stage.sharding for stage in plan.stages):
        raise InputError(
            "adapters on tensor ranks are priced in the named layout: leave `sharding` of `stages` out"
        )
    if "weights" in plan.offload:
        raise InputError("offload of weights: what it costs of frozen weights is not known")


def _splits_ranks(graph: Graph) -> bool:
    """Whether some adapter reads what tensor ranks have whole, so that they share its rank."""
    blocks = (graph.block[name] for name in dict.fromkeys(graph.sequence))
    downs = ((op, b) for b in blocks for op in b.ops if narrow_product(op, b) == "down")
    return any({*b.tensor[name].dims} == {RANK, "hidden"} for op, b in downs for name in op.weights)
