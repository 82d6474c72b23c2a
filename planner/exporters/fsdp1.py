"""Plan -> a Python script that wraps a module in PyTorch's first FSDP, with its ``ShardingStrategy``.

Source: torch 2.13, torch/distributed/fsdp/api.py and fully_sharded_data_parallel.py.
"""

from importlib.resources import files
from string import Template

from planner.exporters.fsdp import DTYPES, render_layers
from planner.exporters.header import describe
from planner.exporters.limits import NOTHING, Limits, check_limits
from planner.exporters.placements import layout_of
from planner.exporters.reductions import priced_type
from planner.exporters.script import SCRIPTS_OWN, policy_of
from planner.plans import Plan

FILE, TARGET = "fsdp1_plan.py", "fsdp1"

WHOLE = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
"""ZeRO stage -> ``ShardingStrategy`` over all ranks."""

HYBRID = {2: "_HYBRID_SHARD_ZERO2", 3: "HYBRID_SHARD"}
"""ZeRO stage -> ``ShardingStrategy`` over groups of ranks."""

LIMITS = Limits(
    zero_stages=tuple(WHOLE),
    hybrid=tuple(HYBRID),
    recompute={"none": "False", "full": "True"},
    precision=DTYPES,
    optimizers=SCRIPTS_OWN,
    schedules=NOTHING,
    fused_loss=True,
)


def to_fsdp1(plan: Plan) -> dict[str, str]:
    """``fsdp1_plan.py`` for ``plan``; raises ``Unsupported`` beyond `LIMITS`."""
    check_limits(plan, TARGET, LIMITS)
    layout = layout_of(plan, TARGET)
    p, job, data = plan.plan, plan.job, layout.data
    mixed = job.precision != "fp32"
    template = Template(files("planner.exporters").joinpath("templates", FILE + ".template").read_text())
    parts = {
        "description": "\n".join(describe(plan)),
        "mesh_shape": str((data.replicate, data.shard)),
        "strategy": (HYBRID if p.zero_stage and data.replicate > 1 else WHOLE)[p.zero_stage],
        "global_batch": str(job.global_batch),
        "micro_batch": str(p.micro_batch),
        "num_microbatches": str(p.num_microbatches),
        "seq_len": str(job.seq_len),
        "param_dtype": DTYPES[job.precision] if mixed else "None",
        "reduce_dtype": DTYPES[priced_type(plan)] if mixed else "None",
        "recompute": str(policy_of(p) == "full"),
        "layers": render_layers(layout),
    }
    return {FILE: template.substitute(parts)}
