"""Plan -> a DeepSpeed configuration (JSON): ZeRO, offload, the batch, automatic tensor parallelism.

Keys are those of DeepSpeed 0.19.8, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py; bucket sizes
count elements, not bytes.
"""

import json
from types import MappingProxyType
from typing import Any

from cluster_specs.software import load_software
from planner.errors import Unsupported
from planner.exporters.limits import Limits, check_limits
from planner.exporters.reductions import priced_type
from planner.exporters.script import SCRIPTS_OWN, notes_file, policy_of, script_notes
from planner.models.catalog import build_graph
from planner.plans import Plan
from planner.sharding.widths import DTYPE_BYTES

TARGET = "deepspeed"

FILE, NOTES_FILE = "deepspeed.json", "deepspeed_notes.txt"

PRECISIONS = MappingProxyType({"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"})
"""Precision -> section of the configuration; fp32 needs none."""

LIMITS = Limits(
    zero_stages=(0, 1, 2, 3),
    recompute=MappingProxyType({"none": "none", "full": "full"}),
    precision=PRECISIONS,
    optimizers=SCRIPTS_OWN,
    axes=("tensor",),
    sequence_parallel=False,
    offload=("optimizer", "weights", "activations"),
    fused_loss=True,
)


def to_deepspeed(plan: Plan) -> dict[str, str]:
    """``deepspeed.json`` for ``plan``.

    Raises ``Unsupported`` beyond `LIMITS`, and for ZeRO 3 with tensor parallelism (DeepSpeed issue 8167).
    """
    check_limits(plan, TARGET, LIMITS)
    _check(plan)
    return {FILE: json.dumps(_config(plan), indent=2) + "\n", NOTES_FILE: notes_file(plan, *_notes(plan))}


def _check(plan: Plan) -> None:
    p = plan.plan
    if p.tensor > 1 and p.zero_stage == 3:
        raise Unsupported(
            f"target {TARGET} trains with tensor parallelism only at ZeRO 0 to 2; plan with --zero 2"
        )
    if "activations" in p.offload and policy_of(p) != "full":
        raise Unsupported(f"target {TARGET} offloads activations only with --recompute full")
    if "weights" in p.offload and p.zero_stage != 3:
        raise Unsupported(f"target {TARGET} offloads weights only with ZeRO 3; plan with --zero 3")
    if "optimizer" in p.offload and p.zero_stage == 0:
        raise Unsupported(
            f"target {TARGET} offloads the optimizer only with ZeRO; plan with --zero 1 or more"
        )


def _notes(plan: Plan) -> tuple[str, ...]:
    checkpointing = "call model.gradient_checkpointing_enable()" if policy_of(plan.plan) == "full" else ""
    notes = [*script_notes(plan), f"Start {plan.plan.num_devices} processes."]
    return (*notes, f"In the script: {checkpointing}.") if checkpointing else tuple(notes)


def _config(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    config: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": p.micro_batch,
        "gradient_accumulation_steps": p.num_microbatches,
        "gradient_clipping": 1.0,
    }
    if job.precision != "fp32":
        config[PRECISIONS[job.precision]] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": job.grad_dtype}
    config["communication_data_type"] = priced_type(plan)
    config["zero_optimization"] = _zero(plan)
    if p.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": p.tensor}
    if policy_of(p) == "full":
        in_host = "activations" in p.offload
        config["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": in_host}
    return config


def _zero(plan: Plan) -> dict[str, Any]:
    """The ZeRO section; buckets and prefetching as the estimate assumes them."""
    p, job = plan.plan, plan.job
    if p.zero_stage == 0:
        return {"stage": 0}
    software = load_software(job.stack)
    section: dict[str, Any] = {"stage": p.zero_stage, "overlap_comm": True, "contiguous_gradients": True}
    if software.gradient_bucket:
        section["reduce_bucket_size"] = round(software.gradient_bucket / DTYPE_BYTES[priced_type(plan)])
    if "optimizer" in p.offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if "weights" in p.offload:
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    if p.zero_stage == 3:
        section["stage3_prefetch_bucket_size"] = software.prefetch_units * _largest_layer(plan)
        section["stage3_gather_16bit_weights_on_model_save"] = True
    return section


def _largest_layer(plan: Plan) -> int:
    """Elements of the largest layer."""
    graph = build_graph(plan.model, plan.job.seq_len)
    weights = (
        [graph.elements(t) for t in graph.block[name].tensors if t.role == "weight"]
        for name in dict.fromkeys(graph.sequence)
    )
    return round(max(map(sum, weights)))
