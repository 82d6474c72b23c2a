"""What stays the same while plans are compared: the model's graph, the cluster, the job and the software."""

import math
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from cluster_specs.adjusted import device_on, gathering, in_training, replayed, software_on, updating
from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import InputError
from cluster_specs.software import SoftwareSpec, load_software
from cluster_specs.usual_stacks import usual_stack
from cost_models.attention import Version, with_flash
from cost_models.compute import newton_schulz_flops
from cost_models.intervals import Spread, spread
from planner.evaluation.beyond_stack import choices_beyond, devices_beyond
from planner.flops import matmul_dims
from planner.graph import Graph, count_parameters, has_scans
from planner.models.adapters import adapted, adapts_products
from planner.models.autocast import autocast
from planner.models.catalog import build_graph, counted, sequence_length
from planner.models.documents import of_documents
from planner.models.dropout import as_trained
from planner.models.model import Model
from planner.operators import operator_rule
from planner.plans import Job, Plan


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
    runs_on = cluster.model_copy(update={"device": in_training(_attending(job, cluster.device, software))})
    check_adapter(job, software)
    check_autocast(job, software)
    check_early_steps(job, software)
    graph = graph_of(model, job)
    matrices = orthogonalisation_flops(graph) if job.optimizer == "muon" else 0.0
    return Setting(graph, runs_on, job, software, count_parameters(graph), matrices)


def _attending(job: Job, device: DeviceSpec, software: SoftwareSpec) -> DeviceSpec:
    """The device with the rates of the kernel of attention that the job has."""
    if job.attention == "native":
        return device
    found = device_on(device, software)
    return with_flash(found, VERSIONS[job.attention]) if job.attention in VERSIONS else found


VERSIONS: Mapping[str, Version] = MappingProxyType({"flash-1": "first_flash", "flash-2": "second_flash"})
"""Kernel of attention that a job names -> version of FlashAttention."""


def software_of(job: Job, device: DeviceSpec) -> SoftwareSpec:
    """The job's stack as it is on such a device, with the habits that the job changes."""
    software = software_on(load_software(job.stack), device)
    if job.cuda_graphs:
        software = replayed(software)
    if job.narrow_gathers is not None:
        software = gathering(software, job.narrow_gathers)
    return software if job.fused_optimizer is None else updating(software, job.fused_optimizer)


def spread_of(graph: Graph) -> Spread:
    """What such models may be off by: as those with experts where kernels are rooflines alone."""
    return spread("experts" if "experts" in graph.dims or has_scans(graph) else "dense")


def caveats(graph: Graph, software: SoftwareSpec, device: DeviceSpec) -> tuple[str, ...]:
    """What the time of such a model rests on that was never measured, or that its stack may lack, in sentences."""
    expanded = device.kind == "gpu" and software.expands_groups and "experts" in graph.dims
    return (*((EXPANDED,) if expanded else ()), *_of_scans(graph, software))


EXPANDED = (
    "experts are priced with grouped products: without a capacity XLA on GPUs multiplies with all experts of a rank "
    "instead, as many times slower, unless its flags or the program choose a kernel of cuDNN's, Transformer Engine's "
    "or Triton's"
)
"""Said of programs that XLA compiles for GPUs (`cluster_specs.software.SoftwareSpec.expands_groups`)."""


def _of_scans(graph: Graph, software: SoftwareSpec) -> tuple[str, ...]:
    """Kernels of linear recurrences are Triton's (fla's and mamba_ssm's), which XLA's programs do not call."""
    if not has_scans(graph):
        return ()
    found = (
        "kernels of linear recurrences were not measured: they have the time of what they multiply and move, which is "
        "the least that they take",
    )
    if software.partitioner is None:
        return found
    return (
        *found,
        f"{software.name} is priced with PyTorch's kernels of linear recurrences, which it does not have: what XLA "
        "makes of them takes longer and may keep several times as much",
    )


def caveats_of(plan: Plan) -> tuple[str, ...]:
    """The same of a plan, which may ask of its stack what that cannot do: a search does not."""
    device = plan.cluster.device
    software = software_of(plan.job, device)
    said = devices_beyond(plan.cluster, software), choices_beyond(plan.plan, software)
    return (*chain.from_iterable(said), *caveats(graph_of(plan.model, plan.job), software, device))


def graph_of(model: Model, job: Job) -> Graph:
    """The model's operators as they are trained: with adapters, where the job has any."""
    software = load_software(job.stack)
    graph = of_documents(build_graph(model, job.seq_len), job.document_len)
    graph = as_trained(graph, model, software.dropout)
    graph = graph if job.adapter is None else adapted(graph, job.adapter, software)
    return autocast(graph, software.fused_elementwise) if job.autocast else graph


def trained_parameters(model: Model, job: Job) -> int:
    """Of the model, or of what is trained in its place."""
    return model.parameters if job.adapter is None else count_parameters(graph_of(model, job))


def usual_job(model: Model, device: DeviceSpec) -> dict[str, Any]:
    """Fields of a `Job` that nobody has to say: the devices' stack, and the inputs' length where the model fixes it."""
    length = sequence_length(model)
    return {"stack": usual_stack(device)} | ({} if length is None else {"seq_len": length})


def batch_name(model: Model, job: Job) -> str:
    """A step's batch: ``64 sequences of 8192 tokens``, or ``256 images``."""
    if counted(model) != "tokens":
        return f"{job.global_batch} {counted(model)}"
    packed = f" in documents of {job.document_len}" if job.document_len else ""
    return f"{job.global_batch} sequence{'s' * (job.global_batch != 1)} of {job.seq_len} tokens{packed}"


def describe_trained(model: Model, job: Job) -> str:
    """What is trained where that is not all: adapters, and how many parameters of how many; else nothing."""
    if job.adapter is None:
        return ""
    trained = trained_parameters(model, job)
    everything = model.parameters + trained
    return f"{job.adapter}: {trained / 1e6:.1f}M of {everything / 1e9:.2f}B parameters trained"


class _Known(NamedTuple):
    """What is known of adapters on a stack."""

    precisions: tuple[str, ...]
    bases: tuple[str, ...]
    """Types of stored frozen weights."""


_ADAPTED = _Known(("bf16", "fp16", "fp32"), ("nf4", "int8", "bf16"))
_ADAPTED_ON_PRODUCTS = _Known(("bf16", "fp16", "fp32", "fp8"), ("fp8", "bf16"))


def check_adapter(job: Job, software: SoftwareSpec) -> None:
    """Refuse adapters where nothing is known of how a stack trains them, or of what it would quantise."""
    if job.adapter is None:
        return
    if software.adapts == "none":
        raise InputError(
            "adapters are priced for PyTorch's FSDP and DDP, DeepSpeed and Megatron Core, not for stack "
            f"{job.stack}: use --stack hf-fsdp, torch-fsdp2, deepspeed-transformers, megatron or nemo"
        )
    known = _ADAPTED_ON_PRODUCTS if adapts_products(software) else _ADAPTED
    if job.precision not in known.precisions:
        raise InputError(
            f"adapters are trained in one of {', '.join(known.precisions)} on stack {job.stack}, found precision "
            f"{job.precision}"
        )
    base = job.adapter.base
    if base is not None and base not in known.bases:
        raise InputError(
            f"frozen weights are stored in one of {', '.join(known.bases)} on stack {job.stack}, found base {base}"
        )
    if base is not None and software.adapts == "units":
        raise InputError(
            f"stack {job.stack} has frozen weights in one flat parameter with adapters, of one type, found base "
            f"{base}: leave it out, or use --stack hf-fsdp, which shards them one by one"
        )
    if base == "fp8" and job.precision != "fp8":
        raise InputError(f"frozen weights in fp8 are multiplied in fp8, found precision {job.precision}")
    if job.adapter.a2a_experimental and not adapts_products(software):
        raise InputError(
            f"a2a_experimental is of adapters on tensor ranks, which stack {job.stack} has none of: leave it out"
        )


def check_autocast(job: Job, software: SoftwareSpec) -> None:
    """Refuse autocast where a stack has none, or nothing is left to cast."""
    if not job.autocast:
        return
    if software.gradient_life != "late":
        raise InputError(
            f"autocast is PyTorch's, and stack {job.stack} casts weights itself: leave it out, or use --stack hf-fsdp "
            "or torch-fsdp2"
        )
    if job.precision not in ("bf16", "fp16") or not job.master_weights:
        raise InputError(
            f"autocast lowers fp32 weights to bf16 or fp16, found precision {job.precision} with "
            f"{'fp32' if job.master_weights else 'no fp32'} weights"
        )


def check_early_steps(job: Job, software: SoftwareSpec) -> None:
    """Refuse steps within the backward where gradients have memory of their own, or a compiler makes the step."""
    if job.step_in_backward and software.gradient_life != "late":
        raise InputError(
            f"step_in_backward is PyTorch's, and stack {job.stack} keeps gradients until the step: leave it out, or "
            "use --stack torch-fsdp2 or torch-eager"
        )


def orthogonalisation_flops(graph: Graph) -> float:
    """FLOPs of one Newton-Schulz orthogonalisation of every matrix that multiplies activations."""
    total = 0.0
    for block, count in graph.instances():
        for op in (op for op in block.ops if operator_rule(op).arithmetic == "matmul"):
            for weight, dims in matmul_dims(op, block):
                if weight.role != "weight" or not weight.stepped:
                    continue
                rows, columns, each = (
                    math.prod(graph.dims[d] for d in names)
                    for names in (dims.columns, dims.contracted, dims.grouped)
                )
                total += count * each * newton_schulz_flops(rows, columns)
    return total
