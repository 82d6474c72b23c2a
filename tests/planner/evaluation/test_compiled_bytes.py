"""Bytes that XLA's and PyTorch's own steps move for the same sharding: compiled for CPU devices, or traced."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import evaluate
from planner.models.model import Model
from planner.plans import Job, Parallelism, Plan
from planner.verification.process import QUICKLY_COMPILED

HERE = Path(__file__).parent
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


JAX_CASES = ((8, 1, False), (1, 4, False), (2, 4, False), (8, 1, True), (2, 4, True))
"""(data, tensor, whether weights are sharded)."""


def needs(package: str, mark: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    missing = importlib.util.find_spec(package) is None
    return [mark, pytest.mark.skipif(missing, reason=f"{package} is not installed")]


@cache
def printed_by(script: str, cases: tuple[tuple[object, ...], ...]) -> tuple[dict[str, float], ...]:
    """Bytes by kind of each case; one process for all."""
    flags = " ".join(("--xla_force_host_platform_device_count=8", *QUICKLY_COMPILED))
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / script), json.dumps(cases)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tuple(json.loads(done.stdout))


def sent(script: str, cases: Iterable[tuple[object, ...]], *case: object) -> dict[str, float]:
    listed = tuple(cases)
    return printed_by(script, listed)[listed.index(case)]


def predicted(job: Job, **degrees: object) -> dict[str, float]:
    plan = Parallelism.model_validate(degrees)
    model = Model(name="tiny", family="llama", config=CONFIG)
    return dict(
        evaluate(Plan(model=model, cluster=load_cluster("dgx-h100:1"), job=job, plan=plan)).communication
    )


def in_jax(data: int, tensor: int, zero_stage: int, stack: str = "jax-xla") -> dict[str, float]:
    job = Job(global_batch=BATCH, seq_len=SEQ_LEN, precision="fp32", stack=stack, attention="plain")
    degrees = {"data": data, "tensor": tensor, "micro_batch": BATCH // data, "sequence_parallel": False}
    return predicted(job, **degrees, zero_stage=zero_stage, shard_degree=data if zero_stage else 1)


@pytest.mark.parametrize(
    ("data", "tensor"),
    [pytest.param(*case, marks=needs("jax", pytest.mark.jax)) for *case, shard in JAX_CASES if not shard],
)
def test_replicas_and_tensor_ranks_in_jax(data: int, tensor: int) -> None:
    """Gradients, and two sums a layer each way, one for the embedding, one for the head, three numbers a token."""
    theirs = sent("check_xla_bytes.py", JAX_CASES, data, tensor, False)
    assert in_jax(data, tensor, zero_stage=0) == pytest.approx(theirs, rel=0.005)


@pytest.mark.parametrize(
    ("data", "tensor"),
    [pytest.param(*case, marks=needs("jax", pytest.mark.jax)) for *case, shard in JAX_CASES if shard],
)
def test_shards_in_jax(data: int, tensor: int) -> None:
    """Nothing is computed again, so that what the forward gathered serves the backward: FSDP's SHARD_GRAD_OP.

    XLA has no reduce-scatter on CPU: it sums whole gradients, which moves twice as much.
    """
    ours = in_jax(data, tensor, zero_stage=2, stack="hf-fsdp")
    theirs = sent("check_xla_bytes.py", JAX_CASES, data, tensor, True)
    # The script does not shard the norms.
    assert ours["all_gather"] == pytest.approx(theirs["all_gather"], rel=0.02)
    sums = 2 * ours["reduce_scatter"] + ours.get("all_reduce", 0.0)
    assert sums == pytest.approx(theirs["all_reduce"], rel=0.005)


TORCH_CASES = {
    "resharded": (8, 1, True, 1),
    "not resharded": (8, 1, False, 1),
    "accumulated": (8, 1, True, 3),
    "tensor and sequence": (4, 2, True, 1),
    "tensor and sequence, accumulated": (2, 4, True, 2),
}


@pytest.mark.parametrize(
    ("data", "tensor", "reshard", "accumulate"),
    [pytest.param(*case, marks=needs("torch", pytest.mark.torch), id=i) for i, case in TORCH_CASES.items()],
)
def test_fsdp2_and_tensor_parallel(data: int, tensor: int, reshard: bool, accumulate: int) -> None:
    """To the byte, kind by kind."""
    job = Job(global_batch=data * accumulate, seq_len=SEQ_LEN, reduce_dtype="fp32", stack="hf-fsdp")
    degrees = {"data": data, "tensor": tensor, "num_microbatches": accumulate, "shard_degree": data}
    theirs = sent("check_torch_bytes.py", TORCH_CASES.values(), data, tensor, reshard, accumulate)
    assert predicted(job, **degrees, zero_stage=3 if reshard else 2) == pytest.approx(theirs)
