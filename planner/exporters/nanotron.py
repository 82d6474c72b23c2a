"""Plan -> the sections of a nanotron configuration that decide how it runs.

Keys are those of nanotron 2411b02, src/nanotron/config/{parallelism_config,config}.py. nanotron cuts a pipeline by
its own estimate of each block's cost.
"""

from types import MappingProxyType
from typing import Any

import yaml

from planner.errors import Unsupported
from planner.exporters.header import comments
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import TORCH_PRECISIONS, policy_of
from planner.plans import Plan

TARGET, FILE = "nanotron", "nanotron.yaml"

ENGINES = MappingProxyType({"1f1b": "1f1b", "gpipe": "afab"})
"""Schedule -> ``pp_engine``; afab is all forward, all backward."""

LIMITS = Limits(
    zero_stages=(0, 1),
    recompute=MappingProxyType({"none": "false", "full": "true"}),
    precision=TORCH_PRECISIONS,
    optimizers=MappingProxyType({"adamw": "adamW", "sgd": "sgd"}),
    axes=("tensor", "pipeline"),
    schedules=ENGINES,
)


def to_nanotron(plan: Plan) -> dict[str, str]:
    """``nanotron.yaml`` for ``plan``; raises ``Unsupported`` beyond `LIMITS`."""
    check_limits(plan, TARGET, LIMITS)
    if plan.plan.virtual_stages > 1:
        raise Unsupported(f"target {TARGET} has one stage a rank; plan with --virtual-stages 1")
    note = "# Merge these sections into a full configuration: data, model, tokenizer and learning rate are yours.\n"
    return {FILE: f"{comments(plan)}\n{note}" + yaml.safe_dump(_config(plan), sort_keys=False)}


def _config(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    return {
        "parallelism": {
            "dp": p.data,
            "pp": p.pipeline,
            "tp": p.tensor,
            "pp_engine": ENGINES.get(p.schedule, "1f1b"),
            "tp_mode": "REDUCE_SCATTER" if p.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": p.sequence_parallel,
            "recompute_layer": policy_of(p) == "full",
            "expert_parallel_size": 1,
            "context_parallel_size": 1,
        },
        "tokens": {
            "sequence_length": job.seq_len,
            "micro_batch_size": p.micro_batch,
            "batch_accumulation_per_replica": p.num_microbatches,
        },
        "optimizer": {
            "zero_stage": p.zero_stage,
            "accumulate_grad_in_fp32": job.grad_dtype == "fp32",
            "optimizer_factory": {"name": LIMITS.optimizers[job.optimizer]},
        },
        "model": {"dtype": TORCH_PRECISIONS[job.precision]},
    }
