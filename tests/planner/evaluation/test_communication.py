"""Bytes that one device sends in a step, by collective: PyTorch's and XLA's own counts of whole training steps.

A collective of ``b`` bytes (the whole array) over ``n`` ranks sends ``b (n - 1) / n`` bytes from each, an all-reduce
twice that: the rings of nccl-tests, doc/PERFORMANCE.md.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import communication
import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator, evaluate
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run

PUBLISHED = Path(__file__).parents[2] / "published"

KINDS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
}
"""PyTorch's operators."""


def rows_of(name: str) -> dict[str, Any]:
    rows = map(json.loads, (PUBLISHED / name).read_text().splitlines())
    return {row["id"]: row for row in rows if row["measured"].get("collectives")}


TRACKED, COMPILED = rows_of("torch_memory.jsonl"), rows_of("xla_memory.jsonl")


def predicted(row: Mapping[str, Any]) -> Mapping[str, float]:
    return evaluate(plan_from_run(parse_run(row))[0]).communication


@pytest.mark.parametrize("run", TRACKED)
def test_torch_sends_as_much_of_every_kind(run: str) -> None:
    """FSDP2 whole, hybrid, without resharding, accumulated; with tensor and sequence parallelism; recomputed.

    Over 512 ranks with parameters of 256 rows, which are padded.
    """
    sent = Counter[str]()
    for call in TRACKED[run]["measured"]["collectives"]:
        kind, ranks = KINDS[call["op"]], call["group"]
        sent[kind] += call["bytes"] * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)
    assert predicted(TRACKED[run]) == pytest.approx(sent, rel=1e-4)


def compiled(run: str, kind: str, axes: str = "") -> float:
    """Bytes on the wire of a kind, over all axes or some (XLA's count)."""
    calls = COMPILED[run]["measured"]["collectives"].items()
    found = [call for name, call in calls if name.startswith(f"{kind}|{axes}")]
    return float(sum(call["wire_bytes"] for call in found))


def parallel(run: str, degree: str) -> int:
    return int(COMPILED[run]["parallel"][degree])


@pytest.mark.parametrize("run", [run for run in COMPILED if parallel(run, "tp") > 1])
def test_xla_sums_as_much_over_tensor_ranks(run: str) -> None:
    """Two all-reduces a layer each way and one recomputed, one for the embedding and one for the head."""
    row = COMPILED[run]
    expected = compiled(run, "all-reduce", "tensor")
    alone = row | {"parallel": row["parallel"] | {"dp": 1, "dp_shard": 1, "dp_replicate": 1}}
    ranks = parallel(run, "tp")
    alone["parallel"]["global_batch"] = row["parallel"]["micro_batch"]
    alone["hardware"] = {"gpu": "tpu-v5e", "n_gpus": ranks, "topology": f"1x{ranks}"}
    assert predicted(alone)["all_reduce"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("run", [run for run in COMPILED if parallel(run, "dp_shard") == 1])
def test_xla_sums_as_much_over_replicas(run: str) -> None:
    """Gradients in 16 bits, those of the embedding in 32."""
    assert predicted(COMPILED[run]) == pytest.approx({"all_reduce": compiled(run, "all-reduce")}, rel=0.02)


def test_xla_gathers_layers_twice_and_ends_once() -> None:
    """With four copies of the shards it seems to gather the head twice, 3.5 % of all; steps of ours do not."""
    run = "xla/8B/v5e:8x8/d4f16t1/b2/full/splash"
    assert 0.96 < predicted(COMPILED[run])["all_gather"] / compiled(run, "all-gather") < 1


SUMS_WHOLE = [run for run in COMPILED if parallel(run, "dp_shard") == 64]


@pytest.mark.parametrize("run", SUMS_WHOLE)
def test_over_whole_slices_xla_sums_whole_gradients(run: str) -> None:
    """Over 64 ranks it makes an all-reduce of a reduce-scatter.

    Over 4 to 32 ranks it moves weights piece by piece beside the products that read them (collective-permute), which
    these rows do not tell apart; those below do.
    """
    ours = predicted(COMPILED[run])
    for kind in ("all-reduce", "all-gather"):
        assert ours[kind.replace("-", "_")] == pytest.approx(compiled(run, kind), rel=0.001)


SHARDED = [run for run in COMPILED if parallel(run, "dp_shard") > 1 and parallel(run, "tp") == 1]


@pytest.mark.parametrize("run", SHARDED)
def test_xla_exchanges_as_many_columns_of_tokens(run: str) -> None:
    assert predicted(COMPILED[run])["all_to_all"] == pytest.approx(compiled(run, "all-to-all"), rel=0.001)


def sent_in(name: str) -> dict[str, Any]:
    """Programs of our own, compiled: rings count as what they do (docs/communication.md)."""
    rows = map(json.loads, (PUBLISHED / name).read_text().splitlines())
    return {row["id"]: row for row in rows if "sent_bytes" in row["measured"]}


OWN = sent_in("xla_compiled.jsonl")


@pytest.mark.parametrize(
    ("stack", "times"), [("torch-fsdp2", 4), ("jax-xla", 4), ("torch-no-sync", 1), ("deepspeed", 1)]
)
def test_copies_of_shards_are_summed_as_often_as_the_stack_does(stack: str, times: int) -> None:
    """Over four micro-batches."""

    def summed(micro_batches: int) -> float:
        plan = Parallelism(
            data=16, micro_batch=1, num_microbatches=micro_batches, zero_stage=3, sharding="HYBRID_SHARD",
            shard_degree=8, replicate_degree=2,
        )  # fmt: skip
        job = Job(global_batch=16 * micro_batches, seq_len=2048, stack=stack)
        evaluator = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:2"), job)
        return evaluator.estimate(plan).communication["all_reduce"]

    assert summed(4) == pytest.approx(times * summed(1))


NOT_PRICED = {
    "xla-compiled/t5-small/v5e:4x4/fsdp16-none-mb8",
    "xla-compiled/t5-11b/v5p:2x2x4/tp4-fsdp4-full-mb2",
    "xla-compiled/t5-small/v5e:4x4/tp4-fsdp4-none",
    "xla-compiled/1b-4/v6e:2x4/cp4-fsdp2-none",
    "xla-compiled/7bv-2/v5e:4x4/tp4-fsdp4-full",
    "xla-compiled/bert-large/v5p:2x2x2/tp2-fsdp4-full-mb4",
    "xla-compiled/olmo2-4/v5e:4x4/tp4-fsdp4-full",
    "xla-compiled/phi-4-14b/v5p:2x2x4/tp4-fsdp4-selective",
}
"""docs/communication.md says why."""
SHIPPED = sent_in("xla_models.jsonl") | sent_in("xla_fresh.jsonl")
HELD_OUT = sent_in("xla_held_out.jsonl") | SHIPPED | sent_in("xla_families.jsonl")
EXPERTS = sent_in("xla_experts.jsonl")


def layers_priced(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Bytes that as many layers again add to the step."""
    more = {**row, "model": {**row["model"], "layers": 2 * row["model"]["layers"]}}
    once, twice = predicted(row), predicted(more)
    return {kind: twice[kind] - once.get(kind, 0.0) for kind in twice}


def degree(row: Mapping[str, Any], name: str) -> int:
    return int(row["parallel"][name])


def test_every_kind_of_sharding_was_compiled() -> None:
    """Copies, ZeRO-3, both, tensor ranks with and without split sequences, context ranks, and their products."""
    seen = {
        (degree(r, "tp") > 1, degree(r, "cp") > 1, degree(r, "dp_shard") > 1, degree(r, "dp_replicate") > 1)
        for r in OWN.values()
    }
    assert len(seen) >= 6
    assert {r["parallel"]["sequence_parallel"] for r in OWN.values() if degree(r, "tp") > 1} == {True, False}


def parts_of(row: Mapping[str, Any]) -> list[str]:
    """What can be compared: shipped models are whole; ZeRO-1 and 2 gather weights after the loop over layers."""
    looped = "layers" in row["model"] and row["parallel"].get("zero_stage") not in (1, 2)
    return ["sent_bytes_of_layers", "sent_bytes"] if looped else ["sent_bytes"]


COMPARED = [
    (run, part) for run, row in (OWN | HELD_OUT).items() if run not in NOT_PRICED for part in parts_of(row)
]


@pytest.mark.parametrize(("run", "part"), COMPARED)
def test_compiled_steps_send_what_is_priced_of_every_kind(run: str, part: str) -> None:
    """Within 2 % of the kind, or 0.2 % of all."""
    row = (OWN | HELD_OUT)[run]
    sent = dict(row["measured"][part])
    ours = dict(predicted(row) if part == "sent_bytes" else layers_priced(row))
    ours["p2p"] = ours.pop("send", 0.0)
    everything = sum(sent.values())
    for kind in {*ours, *sent}:
        assert ours.get(kind, 0.0) == pytest.approx(sent.get(kind, 0), rel=0.02, abs=0.002 * everything)
    assert sum(ours.values()) == pytest.approx(everything, rel=0.01)


@pytest.mark.parametrize("run", sorted(NOT_PRICED))
def test_what_is_said_not_to_be_priced_is_not(run: str) -> None:
    """Some kind is further off than 2 % of it and 0.2 % of all."""
    row = (OWN | HELD_OUT)[run]
    ours, sent = dict(predicted(row)), row["measured"]["sent_bytes"]
    ours["p2p"] = ours.pop("send", 0.0)
    least = 0.002 * sum(sent.values())
    off = {kind: abs(ours.get(kind, 0.0) - sent.get(kind, 0)) for kind in {*ours, *sent}}
    assert any(off[kind] > max(0.02 * sent.get(kind, 0), least) for kind in off)


def test_the_readme_counts_them() -> None:
    found = len(OWN | HELD_OUT)
    said = " ".join((PUBLISHED.parents[1] / "README.md").read_text().split())
    assert f"{found - len(NOT_PRICED)} of {found} shardings" in said


EXPERTS_NOT_PRICED = {"xla-experts/v5e:4x4/ep4-tp4-top4"}
"""docs/communication.md says why."""


@pytest.mark.parametrize("run", sorted(EXPERTS_NOT_PRICED))
def test_what_is_exchanged_beside_four_tensor_ranks_is_not_priced(run: str) -> None:
    sent = EXPERTS[run]["measured"]["sent_bytes"]["all_to_all"]
    assert abs(layers_priced(EXPERTS[run])["all_to_all"] / sent - 1) > 0.02


@pytest.mark.parametrize("run", [run for run in EXPERTS if run not in EXPERTS_NOT_PRICED])
def test_ranks_with_experts_exchange_what_is_priced(run: str) -> None:
    """Tokens there and back, and their gradients; masks and the router's weights are small."""
    sent = EXPERTS[run]["measured"]["sent_bytes"]["all_to_all"]
    assert layers_priced(EXPERTS[run])["all_to_all"] == pytest.approx(sent, rel=0.02)


def test_what_is_written_is_what_is_priced() -> None:
    stale = communication.DOCUMENT.read_text() != communication.document()
    assert not stale, "run python benchmarks/communication.py"
