"""Saving and loading, against what PyTorch's memory tracker counts of its own calls, and by what must hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.units import GIB
from cost_models.goodput import default
from planner import economics, load_cluster
from planner.evaluation import evaluate
from planner.evaluation.checkpoints import CheckpointCost, Checkpoints, checkpoints
from planner.models.adapters import Adapter
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism, Plan, StagePlan
from planner.runs.mapping import plan_from_run

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "published" / "torch_checkpoints.jsonl").read_text().splitlines()
]

CALLS = {
    "copied to the host": "dcp.async_save",
    "gathered by the first rank": "get_state_dict(full_state_dict=True, cpu_offload=True)",
    "dealt out by every rank": "set_state_dict(full_state_dict=True)",
    "spread by the first rank": "set_state_dict(full_state_dict=True, broadcast_from_rank0=True)",
}
"""What was measured -> how one calls it."""


def plan_of(row: dict[str, Any]) -> Plan:
    return plan_from_run({**row, "measured": {}})[0]


def way(found: Checkpoints | None, call: str) -> CheckpointCost:
    assert found is not None
    return next(each for each in found.ways if each.call == call)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
@pytest.mark.parametrize("name", CALLS)
def test_it_takes_what_pytorch_counts(row: dict[str, Any], name: str) -> None:
    found = checkpoints(plan_of(row))
    measured, cost = row["measured"][name], way(found, CALLS[name])
    between = way(found, "dcp.save").device_bytes
    assert (cost.device_bytes - between) / GIB == pytest.approx(measured["imagined"], rel=0.002)
    if name == "copied to the host":
        assert cost.host_bytes / GIB == pytest.approx(8 * measured["cpu"], rel=0.002)
    if name == "gathered by the first rank":
        assert cost.host_bytes / GIB == pytest.approx(measured["cpu"], rel=0.002)


def planned(
    stack: str, plan: Parallelism, cluster: str = "dgx-h100:4", model: str = "llama-3.1-8b", **job: Any
) -> Plan:
    return Plan(
        model=load_model(model),
        cluster=load_cluster(cluster),
        job=Job(**{"global_batch": 64, "seq_len": 4096, "stack": stack, **job}),
        plan=plan,
    )


SHARDED = Parallelism(data=32, zero_stage=3, shard_degree=32, num_microbatches=2, recompute="full")
STAGED = Parallelism(data=8, pipeline=4, zero_stage=1, shard_degree=8, num_microbatches=8)


def test_megatron_has_its_optimizer_states_twice_while_it_loads() -> None:
    found = checkpoints(planned("megatron", STAGED))
    assert found is not None
    save, load = found.ways
    of_stage = 8 * 218_112_000 + 128256 * 4096  # layers and an end
    assert load.device_bytes - save.device_bytes == pytest.approx(8 * of_stage / 8, rel=1e-3)


def test_megatron_loads_with_what_was_measured_beside() -> None:
    """NVIDIA/Megatron-LM issue 1746: 19128.37 MiB for a model of 20 billion in four stages of two ranks.

    It is not named: this one has 20.6 billion, and its fullest stage an end.
    """
    halves = Parallelism(data=2, pipeline=4, zero_stage=1, shard_degree=2, num_microbatches=8)
    found = checkpoints(planned("megatron", halves, "dgx-h100:1", model="gpt-neox-20b", seq_len=2048))
    assert found is not None
    save, load = found.ways
    assert load.device_bytes - save.device_bytes == pytest.approx(19128.37 * 2**20, rel=0.1)


def test_a_rank_reads_its_part_of_the_largest_weight() -> None:
    """Of a table of 128256 rows in fp32, over two tensor ranks and four data ranks."""
    plan = Parallelism(data=4, tensor=2, zero_stage=3, shard_degree=4, num_microbatches=16)
    cost = way(checkpoints(planned("torch-fsdp2", plan, "dgx-h100:1")), "dcp.save")
    assert cost.host_bytes == pytest.approx(8 * 4 * 128256 * 4096 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("stack", "plan"),
    [("torch-fsdp2", SHARDED), ("megatron", STAGED), ("nemo", STAGED), ("deepspeed", SHARDED)],
)
def test_states_are_written_once_whoever_shares_them(stack: str, plan: Parallelism) -> None:
    found = checkpoints(planned(stack, plan))
    assert found is not None
    keeps_copy = 2 if stack != "torch-fsdp2" else 0
    assert found.written_bytes == pytest.approx(load_model("llama-3.1-8b").parameters * (12 + keeps_copy))
    assert all(cost.fits for cost in found.ways if "whole" not in cost.way)


@pytest.mark.parametrize(("stack", "plan"), [("torch-fsdp2", SHARDED), ("megatron", STAGED)])
def test_goodput_counts_the_same_states(stack: str, plan: Parallelism) -> None:
    described = planned(stack, plan)
    found = checkpoints(described)
    assert found is not None
    estimate = evaluate(described)
    spent = economics(described.model_copy(update={"estimate": estimate}))
    seconds = found.written_bytes / (default("storage_bandwidth") * 32)
    assert spent.assumed["checkpoint_s"].startswith(f"{seconds:,.3g} s: all states")


def test_what_hosts_lack_is_said() -> None:
    """Eight processes that each read 90 GiB have more than half a terabyte."""
    host = load_cluster("dgx-h100:4").host.model_copy(update={"memory": 512e9})
    plan = planned("torch-fsdp2", SHARDED)
    small = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"host": host})})
    assert way(checkpoints(plan), "set_state_dict(full_state_dict=True)").fits
    assert not way(checkpoints(small), "set_state_dict(full_state_dict=True)").fits
    assert way(checkpoints(small), "dcp.load").fits


def test_what_is_offloaded_lies_on_the_host_all_the_time() -> None:
    offload = ("optimizer",)
    plain, away = (
        checkpoints(planned("torch-fsdp2", SHARDED.model_copy(update={"offload": offload[:n]})))
        for n in (0, 1)
    )
    kept = 8 * 12 * load_model("llama-3.1-8b").parameters / 32  # masters and moments of a node's eight ranks
    moved = way(away, "dcp.save").host_bytes - way(plain, "dcp.save").host_bytes
    assert moved == pytest.approx(kept, rel=0.01)
    assert way(away, "dcp.save").device_bytes < way(plain, "dcp.save").device_bytes
    anew = "set_state_dict(full_state_dict=True)"  # and so do shards that are made anew
    more = way(away, anew).host_bytes - way(plain, anew).host_bytes
    assert more == pytest.approx(kept + 8 * 8 * load_model("llama-3.1-8b").parameters / 32, rel=0.01)


def test_stages_that_are_written_out_take_as_much() -> None:
    plan = Parallelism(
        data=8, tensor=2, pipeline=2, zero_stage=1, shard_degree=8, num_microbatches=8, recompute="full"
    )
    halves = tuple(
        StagePlan(
            blocks=(16 * n, 16 * n + 16),
            devices=(16 * n, 16 * n + 16),
            mesh=plan.axes if n else {**plan.axes, "data": 4, "tensor": 4},
        )
        for n in range(2)
    )
    whole = checkpoints(planned("megatron", plan))
    parted = checkpoints(planned("megatron", plan.model_copy(update={"stages": halves})))
    assert whole is not None
    assert parted is not None
    assert parted.written_bytes == whole.written_bytes
    assert way(parted, "torch_dist").host_bytes == pytest.approx(
        way(whole, "torch_dist").host_bytes, rel=0.01
    )


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert checkpoints(planned("hf-fsdp", SHARDED)) is None
    assert checkpoints(planned("torch-fsdp2", SHARDED, adapter=Adapter(r=8))) is None
