"""Bytes that XLA's own programs move for the same sharding, compiled for eight CPU devices."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import evaluate
from planner.models.model import Model
from planner.plans import Job, Parallelism, Plan

SCRIPT = Path(__file__).parent / "check_xla_bytes.py"
SEQ_LEN, BATCH = 16, 16
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

pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
]


def compiled(data: int, tensor: int, shard: bool) -> dict[str, float]:
    wanted = json.dumps({"data": data, "tensor": tensor, "shard": shard})
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), wanted]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def predicted(data: int, tensor: int, zero_stage: int) -> dict[str, float]:
    plan = Parallelism(
        data=data,
        tensor=tensor,
        micro_batch=BATCH // data,
        sequence_parallel=False,
        zero_stage=zero_stage,
        shard_degree=data if zero_stage else 1,
    )
    job = Job(global_batch=BATCH, seq_len=SEQ_LEN, precision="fp32", stack="jax-xla", attention="plain")
    model = Model(name="tiny", family="llama", config=CONFIG)
    return dict(
        evaluate(Plan(model=model, cluster=load_cluster("dgx-h100:1"), job=job, plan=plan)).communication
    )


@pytest.mark.parametrize(("data", "tensor"), [(8, 1), (1, 4), (2, 4)])
def test_replicas_and_tensor_ranks(data: int, tensor: int) -> None:
    """Gradients, and two sums a layer each way, one for the embedding, one for the head, three numbers a token."""
    assert predicted(data, tensor, zero_stage=0) == pytest.approx(
        compiled(data, tensor, shard=False), rel=0.005
    )


@pytest.mark.parametrize(("data", "tensor"), [(8, 1), (2, 4)])
def test_shards(data: int, tensor: int) -> None:
    """Nothing is computed again, so that what the forward gathered serves the backward (as SHARD_GRAD_OP).

    XLA has no reduce-scatter on CPU: it sums whole gradients, which moves twice as much.
    """
    ours, theirs = predicted(data, tensor, zero_stage=2), compiled(data, tensor, shard=True)
    # The script does not shard the norms.
    assert ours["all_gather"] == pytest.approx(theirs["all_gather"], rel=0.02)
    sums = 2 * ours["reduce_scatter"] + ours.get("all_reduce", 0.0)
    assert sums == pytest.approx(theirs["all_reduce"], rel=0.005)
