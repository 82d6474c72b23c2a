"""A plan with an estimate, made by hand, for everything that only reads plans; and programs run as tests run them."""

import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.cluster import ClusterSpec, DeviceSpec, Efficiency, LinkSpec
from planner import search
from planner.models.catalog import load_model
from planner.models.model import Model
from planner.plans import Alternative, Estimate, Job, Optimality, Parallelism, Plan, StagePlan
from planner.verification import process

sys.path.insert(0, str(Path(__file__).parent))

from warm import MODULES, QUICKER, run_warm


@pytest.fixture
def device() -> DeviceSpec:
    return DeviceSpec(
        name="test-gpu",
        kind="gpu",
        vendor="none",
        peak_flops_per_second={"bf16": 1e15},
        memory=80 * 2.0**30,
        memory_bandwidth=3e12,
        compute_units=100,
        kernel_launch=3e-6,
        efficiency=Efficiency(matmul=0.8, attention_forward=0.7, attention_backward=0.6, memory=0.9),
    )


@pytest.fixture
def cluster(device: DeviceSpec) -> ClusterSpec:
    inner = LinkSpec(name="nvlink", kind="nvlink", devices=8, bandwidth=4e11, latency=1e-6, efficiency=0.8)
    outer = LinkSpec(name="ib", kind="infiniband", devices=16, bandwidth=5e10, latency=5e-6, efficiency=0.8)
    return ClusterSpec(name="test:2", device=device, nodes=2, devices_per_node=8, links=(inner, outer))


@pytest.fixture
def estimate() -> Estimate:
    return Estimate(
        step_time_s=12.5,
        step_time_interval_s=(10.0, 15.625),
        tokens_per_s=8 * 64 * 8192 / 12.5,
        tokens_per_s_per_device=8 * 64 * 8192 / 12.5 / 16,
        model_flops_per_s_per_device=4.1e14,
        mfu=0.41,
        hfu=0.52,
        fits=True,
        memory_bytes=60 * 2.0**30,
        reserved_bytes=58 * 2.0**30,
        tensor_bytes=55 * 2.0**30,
        memory_limit_bytes=80 * 2.0**30,
        fullest_stage=0,
        peak_phase="backward",
        memory={
            "weights": 10 * 2.0**30,
            "activations": 40 * 2.0**30,
            "optimizer": 9.99 * 2.0**30,
            "context": 2.0**20,
        },
        time={"compute": 8.0, "tensor": 3.0, "bubble": 1.25, "optimizer": 0.25},
        communication={"all_gather": 3 * 2.0**30, "send": 0.0},
        bubble_fraction=0.1,
    )


@pytest.fixture
def plan(cluster: ClusterSpec, estimate: Estimate) -> Plan:
    choice = Parallelism(
        data=4,
        tensor=2,
        pipeline=2,
        micro_batch=2,
        num_microbatches=64,
        zero_stage=3,
        sharding="FULL_SHARD",
        shard_degree=4,
        recompute="selective",
        stages=(
            StagePlan(blocks=(0, 9), devices=(0, 8), mesh={"tensor": 2, "data": 4}),
            StagePlan(blocks=(9, 20), devices=(8, 16), mesh={"tensor": 2, "data": 4}, recompute="full"),
        ),
    )
    return Plan(
        model=Model(name="test-model", family="llama"),
        cluster=cluster,
        job=Job(global_batch=512, seq_len=8192),
        plan=choice,
        estimate=estimate,
        optimality=Optimality(proven=True, gap=0.0, evaluated=1234, pruned=56789),
        alternatives=(
            Alternative(
                plan=choice.model_copy(update={"pipeline": 1, "data": 8, "stages": ()}),
                estimate=estimate.model_copy(update={"step_time_s": 13.0, "fits": False}),
                loses_because="more exposed all-gather between nodes",
            ),
        ),
        explanation="Two stages keep the gathered weights small enough for two sequences per micro-batch.",
        warnings=("only 25 % of the memory is free",),
    )


@pytest.fixture
def megatron() -> dict[str, str]:
    """Operators of a layer by the dimension split over "tensor": columns, then rows, sequences in between.

    Korthikanti et al., arXiv:2205.05198, figure 5.
    """
    return {
        "attn_norm": "seq",
        "qkv": "heads",
        "rotary": "heads",
        "attention": "heads",
        "attn_out": "heads",
        "attn_residual": "seq",
        "mlp_norm": "seq",
        "gate_up": "ffn",
        "activation": "ffn",
        "down": "ffn",
        "mlp_residual": "seq",
    }


@pytest.fixture
def hears_interrupts() -> dict[str, Callable[[], Any]]:
    """For `Popen`: a child that ends on Ctrl-C also where the tests run in the background, which ignores it."""
    return {"preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL)}


@pytest.fixture
def readable(plan: Plan) -> Plan:
    """The same of a model whose graph can be asked for what is in it, as comparisons do."""
    return plan.model_copy(update={"model": load_model("llama-3.1-8b")})


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`planner.plan` finds its plan and no more: nothing beside it is looked for that would be faster, and named."""
    monkeypatch.setattr(search, "naming_unsearched", lambda answer, pins: answer)
    monkeypatch.setattr(search, "naming_kernels", lambda answer: answer)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run in forks of a process that has imported their framework; in tests without this as users run them."""

    def run(command: list[str], variables: Mapping[str, str], timeout_seconds: float) -> str:
        framework = command[2].rpartition(".")[2].partition("_")[0]
        flags = {"XLA_FLAGS": f"{variables.get('XLA_FLAGS', '')} {QUICKER}"}
        done = run_warm(command[1:], MODULES[framework], {**variables, **flags}, timeout_seconds)
        if done.returncode:
            raise process.ProgramFailed(done.stderr)
        return done.stdout

    monkeypatch.setattr(process, "_run", run)
