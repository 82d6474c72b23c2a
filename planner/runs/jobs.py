"""What a run computes and in which types, apart from how it is spread: its `Job`."""

import re
from types import MappingProxyType

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.software import load_software
from planner.plans import Job
from planner.runs import experts, vocabulary
from planner.runs.assumptions import Assumptions
from planner.runs.graphs import read_graphs
from planner.runs.origins import Origin
from planner.runs.record import RunFile
from planner.runs.releases import fuses_update

USUAL_PRECISIONS = ("bf16", "fp16", "fp32")
"""What is trained in where no source says so: the first that the device has a rate for."""

FP8_SCALINGS = MappingProxyType(
    {
        "fp8-ds": "delayed",
        "fp8-cs": "tensorwise",
        "fp8-tensorwise": "tensorwise",
        "fp8-mx": "mxfp8",
        "mxfp8": "mxfp8",
    }
)
"""Words of Megatron-Bridge and torchtitan for a recipe of fp8 -> `Job.fp8_scaling`."""


def job_of(run: RunFile, origin: Origin, global_batch: int, cluster: ClusterSpec, assume: Assumptions) -> Job:
    """The job of a run of ``global_batch`` sequences a step, as its source says or as its origin's runs are.

    Raises ``InputError`` where the sequence's length is missing, or a word of the source has no meaning here.
    """
    parallel = run.parallel
    if run.model.seq is None:
        raise InputError("model.seq is missing: tokens per sequence, as in model = {name = ..., seq = 4096}")
    master = _master_dtype(run, origin, assume)
    gradient = parallel.grad_dtype or _stored_gradient(run, origin.stack, master)
    rates = cluster.device.peak_flops_per_second
    usual_precision = next((known for known in USUAL_PRECISIONS if known in rates), USUAL_PRECISIONS[0])
    precision = assume.understand("precision", parallel.precision, vocabulary.PRECISIONS, usual_precision)
    habits = vocabulary.STACK_HABITS[origin.stack]
    narrow = habits.fp16_grad_dtype if precision == "fp16" else None
    usual_gradient = narrow or habits.grad_dtype
    return Job.model_validate(
        {
            "global_batch": global_batch,
            "seq_len": run.model.seq,
            "precision": precision,
            "autocast": parallel.autocast,
            "optimizer": assume.understand("optimizer", parallel.optim, vocabulary.OPTIMIZERS, "adamw"),
            "master_weights": master is None
            or vocabulary.mean(vocabulary.DTYPES, "master_dtype", master).value == "fp32",
            "grad_dtype": assume.understand("grad_dtype", gradient, vocabulary.DTYPES, usual_gradient),
            "reduce_dtype": _reduce_dtype(run, origin, assume),
            "attention": _attention(run, origin, assume),
            "fused_loss": _fused_loss(parallel.fused_loss, habits, assume),
            "mlp_tiles": parallel.mlp_tiles,
            "document_len": parallel.document_len,
            "fused_optimizer": _fused_optimizer(run),
            "step_in_backward": parallel.step_in_backward,
            "narrow_gathers": _narrow_gathers(run),
            "narrow_weight_gathers": parallel.narrow_weight_gathers,
            "narrow_attention": parallel.narrow_attention,
            "narrow_gate_inputs": parallel.narrow_gate_inputs,
            "fp8_scaling": FP8_SCALINGS.get((parallel.precision or "").lower()),
            **read_graphs(parallel.cuda_graph or "none")._asdict(),
            "token_exchange": experts.token_exchange(run, origin),
            "expert_routing": experts.expert_routing(run),
            "overlap_experts": bool(parallel.moe_a2a_overlap) or "all-to-all overlap" in (run.notes or ""),
            "expert_capacity": experts.expert_capacity(run),
            "adapter": run.adapter,
            "stack": origin.stack,
            "memory_headroom": 0.0,
        }
    )


def _reduce_dtype(run: RunFile, origin: Origin, assume: Assumptions) -> str | None:
    published = run.parallel.reduce_dtype
    if published is not None:
        return vocabulary.mean(vocabulary.DTYPES, "reduce_dtype", published).value
    return origin.reduce_dtype and assume.default("reduce_dtype", None, origin.reduce_dtype)


def _master_dtype(run: RunFile, origin: Origin, assume: Assumptions) -> str | None:
    published = run.parallel.master_dtype
    return published or (origin.master_dtype and assume.default("master_dtype", None, origin.master_dtype))


def _stored_gradient(run: RunFile, stack: str, master: str | None) -> str | None:
    """Type of gradients by that of their reduction; FSDP stores them as the sharded weights, whatever it reduces in."""
    parallel = run.parallel
    if parallel.mp_mode == "PURE":
        return parallel.reduce_dtype or "bf16"
    late = load_software(stack).gradient_life == "late"
    return master if late else parallel.reduce_dtype


def _fused_optimizer(run: RunFile) -> bool | None:
    """By PyTorch's words for its kernels, else by the release that a published run had.

    None, which is the stack's habit, where the run names its stack, or has no source: then it is somebody's own.
    """
    kernel = re.search(r"fused|foreach", run.parallel.optim or "", re.IGNORECASE)
    if kernel:
        return kernel[0].lower() == "fused"
    if run.parallel.stack is not None or run.source is None:
        return None
    return fuses_update(run.series or "", str(run.source))


def _narrow_gathers(run: RunFile) -> bool | None:
    """In 16 bits where every row has a scale (pytorch/torchtitan@820504e: ``Float8ColwiseParallel`` is tensorwise)."""
    recipe = str((run.parallel.model_extra or {}).get("fp8_recipe"))
    return False if "rowwise" in recipe else None


def _fused_loss(published: bool | None, habits: vocabulary.Habits, assume: Assumptions) -> bool:
    return assume.default("fused_loss", published, True) if habits.fused_loss else bool(published)


def _attention(run: RunFile, origin: Origin, assume: Assumptions) -> str:
    text = run.parallel.attention or run.parallel.attn
    if text is None and run.notes:
        if re.search(r"(no|without) flash ?attention|flash ?attention not used", run.notes, re.IGNORECASE):
            return "plain"
        if re.search(r"flash ?attention(?! not stated)|flash-?attn", run.notes, re.IGNORECASE):
            return "flash" if origin.attention == "plain" else origin.attention
    return assume.understand("attention", text, vocabulary.ATTENTIONS, origin.attention)
