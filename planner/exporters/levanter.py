"""Plan -> a trainer section for Levanter: mesh, mappings of named axes, batch, precision, checkpointing.

Keys are those of Levanter in marin-community/marin 165dd09, lib/levanter/src/levanter/{trainer,utils/mesh}.py;
releases of Levanter on PyPI (1.1) have no ``mesh``.
"""

from types import MappingProxyType
from typing import Any

import yaml

from planner.errors import Unsupported
from planner.exporters.header import comments
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import policy_of, shard_and_replicate
from planner.exporters.slices import split_axes
from planner.plans import Plan

TARGET, FILE = "levanter", "levanter.yaml"

POLICIES = MappingProxyType({"bf16": "p=f32,c=bfloat16", "fp32": "f32"})
"""Precision -> ``mp``, a policy of jmp."""

LIMITS = Limits(
    zero_stages=(0, 3),
    hybrid=(3,),
    recompute=MappingProxyType({"none": "false", "full": "true"}),
    precision=POLICIES,
    optimizers=MappingProxyType({"adamw": "adam"}),
    axes=("tensor",),
    sequence_parallel=False,
)


def to_levanter(plan: Plan) -> dict[str, str]:
    """``levanter.yaml`` for ``plan``; raises ``Unsupported`` beyond `LIMITS` and for states sharded across slices."""
    check_limits(plan, TARGET, LIMITS)
    return {FILE: f"{comments(plan)}\n" + yaml.safe_dump(_config(plan), sort_keys=False)}


def _config(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    return {
        "trainer": {
            "mp": POLICIES[job.precision],
            "train_batch_size": job.global_batch,
            "per_device_parallelism": p.micro_batch,
            "mesh": _mesh(plan),
        },
        "train_seq_len": job.seq_len,
        "model": {"gradient_checkpointing": policy_of(p) == "full"},
    }


def _mesh(plan: Plan) -> dict[str, Any]:
    """Axes ``data`` (which shards parameters), ``replica`` and ``model``; slices are always replicas."""
    p = plan.plan
    shard, replicate = shard_and_replicate(p)
    sizes = {"model": p.tensor, "data": shard, "replica": replicate}
    split = split_axes(sizes, plan.cluster, TARGET)
    if split.dcn["model"] > 1 or split.dcn["data"] > 1:
        raise Unsupported(f"target {TARGET} only replicates across slices; plan with --sharding HYBRID_SHARD")
    return {
        "axes": {name: split.ici[name] for name in ("replica", "data", "model")},
        "dcn_axes": {"replica_dcn": split.dcn["replica"]},
        "compute_mapping": {"batch": ["replica_dcn", "replica", "data"]},
        "param_mapping": {"embed": "data"} if p.zero_stage else {},
        "shared_mapping": {"mlp": "model", "heads": "model"},
    }
