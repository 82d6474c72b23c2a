"""A Llama small enough for eight CPU devices, and plans for it."""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warm import run_warm

from cluster_specs.cluster import ClusterSpec
from planner.models.model import Model
from planner.plans import Job, Parallelism, Plan, StagePlan

HERE = Path(__file__).parent

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}

SEQ_LEN, GLOBAL_BATCH = 16, 16

# What scripts import that takes long, for `run_check`.
ACCELERATE = ("accelerate.commands.launch", "torch.distributed.fsdp")
TORCH = ("torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch._dynamo")
JAX = ("jax.numpy",)


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def tiny_model(**changes: Any) -> Model:
    config = CONFIG | changes
    return Model(name="tiny", family=config["model_type"], config=config)


def cluster(devices: int = 8) -> ClusterSpec:
    """A node of made-up devices: exporters read only its size."""
    device = {
        "name": "device",
        "kind": "gpu",
        "vendor": "none",
        "peak_flops_per_second": {"bf16": 1e12},
        "memory": 1e9,
        "memory_bandwidth": 1e11,
        "compute_units": 1,
        "kernel_launch": 1e-6,
        "efficiency": {"matmul": 1, "attention_forward": 1, "attention_backward": 1, "memory": 1},
    }
    link = {
        "name": "wire",
        "kind": "nvlink",
        "devices": devices,
        "bandwidth": 1e9,
        "latency": 1e-6,
        "efficiency": 1,
    }
    spec = {"name": "box", "device": device, "nodes": 1, "devices_per_node": devices, "links": [link]}
    return ClusterSpec.model_validate(spec)


def tiny_plan(
    model: Model | None = None,
    job: dict[str, Any] | None = None,
    stages: tuple[StagePlan, ...] = (),
    **degrees: Any,
) -> Plan:
    """A plan of the tiny Llama; ``degrees`` are fields of `Parallelism`."""
    sequences = degrees.get("data", 1) * degrees.get("micro_batch", 1)
    parallelism = Parallelism(stages=stages, num_microbatches=GLOBAL_BATCH // sequences, **degrees)
    settings = {"global_batch": GLOBAL_BATCH, "seq_len": SEQ_LEN, "precision": "fp32"} | (job or {})
    return Plan(
        model=model or tiny_model(),
        cluster=cluster(parallelism.num_devices),
        job=Job(**settings),
        plan=parallelism,
    )


def stage(plan: Parallelism, sharding: dict[str, dict[str, dict[str, str]]], **fields: Any) -> StagePlan:
    """The only stage of the tiny Llama, with explicit shardings of some blocks."""
    mesh = {
        "tensor": plan.tensor,
        "context": plan.context,
        "expert": plan.expert,
        "data": plan.data // plan.expert,
    }
    return StagePlan(
        blocks=(0, CONFIG["num_hidden_layers"]),
        devices=(0, plan.num_devices),
        mesh=mesh,
        sharding=sharding,
        **fields,
    )


def run_check(script: str, *arguments: str | Path, modules: Sequence[str] = (), **environment: str) -> str:
    """Run ``script`` of this folder, mostly on an exported file; its output, or a failure with what it said.

    ``modules`` are the slow ones that it imports, which scripts that follow each other share.
    """
    command = [str(HERE / script), *map(str, arguments)]
    done = run_warm(command, modules, {**os.environ, **environment})
    assert done.returncode == 0, f"{done.stdout}{done.stderr}ended with {done.returncode}"
    return done.stdout
