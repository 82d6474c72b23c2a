"""Sharded plans are real: on 8 to 64 simulated devices they compile, run, and give the numbers of one.

XLA compiles the collectives that were priced, operator by operator.
"""

import importlib.util
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from warm import MODULES, QUICKER, run_warm

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner import Program, ShardedProgram, shard
from planner.errors import InputError
from planner.verification import process, with_program
from planner.verification.record import Verification
from planner.verification.with_program import trace_function, verify_program

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
CASES = Path(__file__).parent / "cases.py"
SECOND_RUNS = Path(__file__).parent / "check_second_runs.py"


class Expected(NamedTuple):
    """How a model is sharded."""

    room: float = 1.0
    """Memory allowed, as a share of what the fastest plan takes."""
    mesh: tuple[int, ...] = (2, 4)
    slower_links: float = 1.0


EXPECTED = {
    "mlp": Expected(),
    "mlp_with_adam": Expected(room=0.8),
    "gpt": Expected(),
    "llama": Expected(),
    "mixtral": Expected(),
    "t5": Expected(),
    "vit": Expected(),
    "resnet": Expected(),
    "unet": Expected(),
    "dlrm": Expected(),
    "branching": Expected(),
    "wide_gpt": Expected(mesh=(4, 4)),
    "wide_llama": Expected(mesh=(4, 8)),
    "mlp on 64": Expected(mesh=(4, 4, 4)),
    "wide_gpt on 64": Expected(mesh=(8, 8)),
    "joined_heads": Expected(),
    "joined_batch": Expected(),
    "joined_rows": Expected(),
    "ring_gpt": Expected(slower_links=100),
}
AXES = ("data", "model", "third")

JOINED = {"joined_heads": {8}, "joined_batch": {16}, "joined_rows": {1024}, "ring_gpt": {2, 512}}
"""Models with attentions as one operator -> length of what axes split there: heads, sequences, queries."""

ADDED_UP = {"gpt", "llama", "mixtral", "t5", "vit"}
"""Models in whose backward pass products are only added up: what is left in parts is summed once."""


def traced(name: str, trips: int | None = None) -> Program:
    """What `trace_function` finds, without a process for each."""
    from planner.verification.programs.trace import trace

    return trace({"function": f"{CASES}:{name}", "replicate_unknown": False, "trips": trips})


def slow_cluster(nodes: int, slower_links: float = 1.0) -> ClusterSpec:
    """So that a model small enough for a test is worth sharding; or worth a ring, by links that work can hide."""
    cluster = load_cluster(f"dgx-h100:{nodes}")
    rates = dict.fromkeys(cluster.device.peak_flops_per_second, 2e12 / nodes)
    slow = {"peak_flops_per_second": rates, "memory_bandwidth": 1e11 / nodes, "kernel_launch": 1e-7}
    if slower_links > 1:
        slow |= {"peak_flops_per_second": dict.fromkeys(rates, 2e11), "memory_bandwidth": 3e12}
    links = (link.model_copy(update={"bandwidth": link.bandwidth / slower_links}) for link in cluster.links)
    device = cluster.device.model_copy(update=slow)
    return cluster.model_copy(update={"device": device, "links": tuple(links)})


def sharded(program: Program, expected: Expected) -> ShardedProgram:
    mesh = dict(zip(AXES, expected.mesh, strict=False))
    cluster = slow_cluster(max(1, math.prod(expected.mesh) // 8), expected.slower_links)
    answer = shard(program, cluster, mesh, seconds=20)
    if expected.room == 1:
        return answer
    return shard(program, cluster, mesh, seconds=60, memory_limit=expected.room * answer.memory_bytes)


def figures(answer: Verification) -> dict[str, tuple[float, float]]:
    return {c.name: (c.predicted, c.found) for c in answer.comparisons}


@pytest.mark.jax
@needs_jax
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_sharded_model_computes_what_one_device_does(name: str) -> None:
    expected = EXPECTED[name]
    plan = sharded(traced(name.partition(" ")[0]), expected)
    assert plan.proven
    if name in ADDED_UP or name in {"mlp", "resnet", "unet", "dlrm"}:
        assert any(o.parts for o in plan.operators) == (name in ADDED_UP)
    attentions = {op.name: op for op in plan.program.operations if op.attention is not None}
    assert bool(attentions) == (name in JOINED)
    for way in (o for o in plan.operators if o.name in attentions):
        assert {attentions[way.name].sizes[f] for f in way.split.values()} == JOINED[name]
        assert way.ring == (("model",) if name == "ring_gpt" else ())
    answer = verify_program(plan)
    assert answer.passed, answer.failures()
    assert [c.name for c in answer.checks][0] == "output[0]"
    assert len(answer.checks) == 2
    found = figures(answer)
    assert found["operators that exchange"][0] > 0
    assert found["operators that differ"] == (0, 0)
    assert answer.operators == ()


@pytest.mark.jax
@needs_jax
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("name", "room"), [("blocks", 0.7), ("scanned_gpt", 0.17), ("scanned_norms", 0.3)])
def test_what_is_recomputed_is_not_kept(name: str, room: float, tmp_path: Path) -> None:
    """The same plan with and without its second runs: the numbers of one device, in less memory."""
    plan = sharded(traced(name), Expected(room=room, mesh=(2,)))
    assert plan.recomputed
    assert all(o.name.startswith("scan.") == (name != "blocks") for o in plan.recomputed)
    assert bool(plan.collected) == (name == "scanned_norms")
    answer = verify_program(plan)
    assert answer.passed, answer.failures()
    assert answer.operators == ()
    _, with_second_runs, kept = compiled_bytes(plan, tmp_path)
    assert with_second_runs < kept


def compiled_bytes(plan: ShardedProgram, folder: Path) -> list[float]:
    """All memory, what is temporary, and that without second runs [B]."""
    path = folder / "sharded.json"
    path.write_text(plan.to_json())
    flags = " ".join((*with_program.FLAGS, QUICKER)).format(8)
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **with_program.THREADS}
    paths = {"PYTHONPATH": process.searched()}
    done = run_warm([str(SECOND_RUNS), str(path)], MODULES["jax"], {**os.environ, **environment, **paths})
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[float] = json.loads(done.stdout)
    return found


@pytest.mark.jax
@needs_jax
@pytest.mark.parametrize("room", [0.8, 0.6])
def test_rows_that_are_brought_for_a_loop_are_held_until_it_ends(room: float, tmp_path: Path) -> None:
    """Without them, and what is collected, a plan would take half of what is compiled."""
    plan = sharded(traced("deep_mlp"), Expected(room=room))
    found, _, _ = compiled_bytes(plan, tmp_path)
    assert plan.memory_bytes == pytest.approx(found, rel=0.15)


@pytest.mark.jax
@needs_jax
@pytest.mark.usefixtures("warm")
def test_a_loop_that_ends_on_a_condition() -> None:
    plan = sharded(traced("iterating", trips=5), Expected())
    assert any(o.split for o in plan.operators if o.name.startswith("while."))
    answer = verify_program(plan)
    assert answer.passed, answer.failures()


@pytest.fixture(scope="module")
def mlp_plan() -> ShardedProgram:
    return sharded(trace_function(f"{CASES}:mlp"), EXPECTED["mlp"])


@pytest.mark.jax
@needs_jax
@pytest.mark.usefixtures("warm")
def test_sums_of_16_bits_run_in_32_on_a_cpu() -> None:
    """Weights are fp32, products bf16: all that differs is that XLA's CPU backend widens what it sums."""
    answer = verify_program(sharded(traced("mixed_gpt"), Expected()))
    assert answer.passed, answer.failures()
    assert answer.operators
    for found in answer.operators:
        wider = {kind: size * (2 if kind == "sum" else 1) for kind, size in found.priced.items()}
        assert found.compiled == wider, found.operator


@pytest.mark.jax
@needs_jax
def test_fewer_devices_keep_the_axes(mlp_plan: ShardedProgram) -> None:
    answer = verify_program(mlp_plan, devices=4)
    assert answer.passed
    assert "compiled for 8 CPU devices (data 2, model 4), run on 4 (data 2, model 2)" in answer.what


@pytest.mark.jax
@needs_jax
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_mlp", "is not the function that was planned"),
        ("wide_mlp", "the plan's program has float32"),
        ("lost", "has no 'lost'"),
        ("module", "is a module of PyTorch"),
    ],
)
def test_another_function_is_refused(mlp_plan: ShardedProgram, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify_program(mlp_plan, f"{CASES}:{name}")
