"""In which type gradients are reduced: what a plan prices, and what a target does whose files cannot choose."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster_specs.software import load_software
from planner.evaluation.states import reduced_type
from planner.plans import Plan


def priced_type(plan: Plan) -> str:
    """Type in which the prediction of ``plan`` reduces gradients."""
    return reduced_type(plan.job, load_software(plan.job.stack))


def _whole(plan: Plan) -> str:
    return "fp32"


def _computed(plan: Plan) -> str:
    """FSDP's mixed precision, as accelerate sets it."""
    return plan.job.precision


def _computed_or_stored(plan: Plan) -> str:
    """DistributedDataParallel, of replicas, reduces gradients in the type of the weights."""
    return _computed(plan) if plan.plan.zero_stage or not plan.job.master_weights else "fp32"


def _accumulated(plan: Plan) -> str:
    return plan.job.grad_dtype


def _accumulated_but_fp16(plan: Plan) -> str:
    """``accumulate_allreduce_grads_in_fp32`` is set for bfloat16 alone."""
    return "fp16" if plan.job.precision == "fp16" else plan.job.grad_dtype


ALWAYS: Mapping[str, Callable[[Plan], str]] = MappingProxyType(
    {
        "accelerate": _computed,
        "accelerate-fsdp1": _computed,
        "hf-trainer": _computed_or_stored,
        "axolotl": _computed_or_stored,
        "torchtitan": _whole,
        "torchtitan-0.2": _whole,
        "megatron-lm": _accumulated_but_fp16,
        "megatron-bridge": _accumulated,
        "nanotron": _accumulated,
    }
)
"""Target -> the type in which it reduces gradients whatever its file says.

Source: accelerate 1.15, accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin.set_mixed_precision);
torchtitan 0.2.2, torchtitan/config/job_config.py, and 0.3.0, torchtitan/config/configs.py: ``mixed_precision_reduce``
may be float32 alone; Megatron-LM d98e8a6, megatron/training/arguments.py; nanotron 2411b02,
src/nanotron/optim/gradient_accumulator.py.
"""


def other_type(plan: Plan, target: str) -> str | None:
    """Type in which ``target`` reduces gradients, if that is not the one that ``plan`` prices."""
    ranks = plan.plan.data * plan.plan.context
    if target not in ALWAYS or plan.job.precision == "fp32" or ranks == 1:
        return None
    found = ALWAYS[target](plan)
    return found if found != priced_type(plan) else None


def as_reduced_by(plan: Plan, target: str) -> Plan:
    """``plan``, whose job has gradients reduced as ``target`` does; its estimate stays."""
    dtype = other_type(plan, target)
    if dtype is None:
        return plan
    usual = plan.job.model_copy(update={"reduce_dtype": None})
    if reduced_type(usual, load_software(usual.stack)) == dtype:
        return plan.model_copy(update={"job": usual})
    said = "fp32" if dtype == "fp32" else "bf16"  # of 16 bits, whichever the job computes in
    return plan.model_copy(update={"job": plan.job.model_copy(update={"reduce_dtype": said})})
