"""Pipelines that the rules of the space leave out: named where they are faster, by their own price."""

from typing import Any

import pytest
from small_cases import cluster_with, small_llama

from cluster_specs.units import format_seconds
from planner import evaluate, explain, load_model, plan
from planner.errors import Infeasible
from planner.plans import Faster, Pins, Plan
from planner.report.plans import optimality_statement
from planner.search import faster_pipeline
from planner.search.unsearched import OFFLOADS


@pytest.fixture(scope="module")
def over_slow_links() -> Plan:
    return plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096)


def test_a_pipeline_over_slow_links_is_named_with_the_time_that_asking_for_it_gives(
    over_slow_links: Plan,
) -> None:
    answer = over_slow_links
    named = [warning for warning in answer.warnings if "--pipeline 2" in warning]
    asked = plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096, pipeline=2)
    assert answer.plan.pipeline == 1
    assert asked.estimate is not None
    assert answer.estimate is not None
    assert asked.estimate.step_time_s < answer.estimate.step_time_s
    assert len(named) == 1
    assert f"{asked.estimate.step_time_s:.2f} s a step" in named[0]
    named_too = [("recompute", "mlp"), ("pipeline", 2), ("offload", "optimizer,weights")]
    assert [(faster.change, faster.value) for faster in answer.faster_with] == named_too
    assert "stages joined by slow links help (--pipeline 2)" in explain(answer)


@pytest.mark.parametrize(
    ("cluster", "pins"),
    [
        ("dgx-h100:1", Pins()),  # one domain
        ("a100-4x-50g:2", Pins(pipeline=1)),  # pipelines were forbidden
        ("dgx-h100:2", Pins()),  # links so fast that none is faster
    ],
)
def test_nothing_is_named_where_none_was_left_out_or_none_is_faster(cluster: str, pins: Pins) -> None:
    answer = plan("llama-2-7b", cluster, pins=pins, global_batch=64, seq_len=4096)
    assert faster_pipeline(answer, pins) is None
    assert not [warning for warning in answer.warnings if "--pipeline" in warning]


@pytest.mark.parametrize(
    ("cluster", "gib", "job"),
    [
        ("h100-pcie-8x:1", 24, {"global_batch": 64, "seq_len": 4096, "stack": "megatron"}),  # one domain
        # Faster by the policies of its stages alone.
        ("dgx-h100:2", 24, {"global_batch": 32, "seq_len": 512, "precision": "fp32"}),
    ],
)
def test_a_pipeline_for_want_of_memory_is_named(cluster: str, gib: float, job: dict[str, Any]) -> None:
    asked = load_model("llama-3.1-8b"), cluster_with(cluster, gib)
    answer = plan(*asked, **job)
    [faster] = [each for each in answer.faster_with if each.change == "pipeline"]
    assert answer.estimate is not None
    assert faster.step_time_s < 0.9 * answer.estimate.step_time_s
    then = plan(*asked, **job, pipeline=faster.value)
    assert then.estimate is not None
    assert then.estimate.step_time_s == pytest.approx(faster.step_time_s)


def test_pipelines_over_pools_or_unlike_stages_were_searched_and_are_not_named(over_slow_links: Plan) -> None:
    pools = plan("llama-2-7b", "a100-4x-50g:2+a100-4x-50g:2", global_batch=64, seq_len=4096, pipeline=1)
    assert faster_pipeline(pools) is None
    assert faster_pipeline(over_slow_links, Pins(unequal_stages=True)) is None


def test_offload_for_want_of_memory_is_named_with_the_time_that_asking_for_it_gives() -> None:
    asked = small_llama(), cluster_with("dgx-h100:1", 3.5)
    job = {"global_batch": 64, "seq_len": 4096}
    answer = plan(*asked, **job)
    [named] = [faster for faster in answer.faster_with if faster.change == "offload"]
    [warning] = [warning for warning in answer.warnings if "--offload" in warning]
    assert answer.estimate is not None
    pinned = {}
    for offload in OFFLOADS:
        then = plan(*asked, **job, offload=offload).estimate
        assert then is not None
        assert then.fits
        pinned[",".join(offload)] = then.step_time_s
    assert named.step_time_s == pinned[str(named.value)] < 0.97 * answer.estimate.step_time_s
    assert min(pinned.values()) >= 0.98 * named.step_time_s
    options = " ".join(f"--offload {what}" for what in str(named.value).split(","))
    assert f"{options} would take {format_seconds(named.step_time_s)}" in warning
    silent = plan(*asked, **job, offload=())
    assert not [faster for faster in silent.faster_with if faster.change == "offload"]


def test_nothing_is_left_to_hosts_that_cannot_hold_it() -> None:
    """Activations of 64 sequences are more than the bound on states knows of."""
    tight = cluster_with("dgx-h100:1", 3.5)
    host = tight.host.model_copy(update={"memory": 2 * 2**30})
    question = {"global_batch": 64, "seq_len": 4096, "offload": ("activations",), "recompute": "none"}
    ample = plan(small_llama(), tight, **question).estimate
    assert ample is not None
    assert ample.host_bytes > 2 * 2**30
    with pytest.raises(Infeasible, match="does not fit"):
        plan(small_llama(), tight.model_copy(update={"host": host}), **question)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({}, ["--pipeline", "--offload", "--recompute"]),
        ({"pipeline": 1}, ["--offload", "--recompute"]),
        ({"pipeline": 2, "offload": ()}, ["--schedule", "--recompute"]),
        ({"pipeline": 2, "offload": (), "schedule": "1f1b"}, ["--recompute"]),
        ({"pipeline": 1, "offload": ("activations",), "recompute": "full"}, []),
    ],
)
def test_a_proof_says_which_plans_its_space_has_not_unless_they_were_asked_for(
    pins: dict[str, Any], words: list[str]
) -> None:
    optimality = plan("gpt2", "dgx-h100:1", global_batch=32, seq_len=1024, **pins).optimality
    assert optimality is not None
    assert [left_out.split("(")[-1].rstrip(")") for left_out in optimality.left_out] == words
    assert optimality_statement(optimality).count("--") == len(words)


def test_nodes_that_only_slow_a_plan_down_are_named() -> None:
    """Among 72 devices 128 sequences do not divide."""
    answer, fewer = (plan("llama-3.1-8b", f"dgx-h100:{n}", global_batch=128, seq_len=8192) for n in (9, 8))
    assert answer.estimate is not None
    assert fewer.estimate is not None
    assert fewer.estimate.step_time_s < 0.9 * answer.estimate.step_time_s
    assert not [warning for warning in fewer.warnings if "do not divide" in warning]
    [named] = [warning for warning in answer.warnings if "do not divide" in warning]
    assert (
        f"all 72 devices: 8 of the 9 nodes would take {format_seconds(fewer.estimate.step_time_s)} a step"
        in named
    )
    nodes = Faster(change="nodes", value=8, step_time_s=fewer.estimate.step_time_s)
    assert [faster for faster in answer.faster_with if faster.change == "nodes"] == [nodes]
    assert not [faster for faster in fewer.faster_with if faster.change == "nodes"]


@pytest.mark.parametrize("nodes", [5, 12])
def test_nodes_that_help_are_not_named(nodes: int) -> None:
    answer = plan("llama-3.1-8b", f"dgx-h100:{nodes}", global_batch=128, seq_len=8192)
    assert not [warning for warning in answer.warnings if "do not divide" in warning]


def test_devices_of_a_node_that_only_slow_a_plan_down_are_named_by_the_cluster_that_leaves_them_out() -> None:
    """Among the 72 devices of a rack 64 sequences do not divide."""
    question = {"global_batch": 64, "seq_len": 4096}
    answer, fewer = (plan("gemma-3-12b", f"gb200-nvl72:{size}", **question) for size in ("1", "1x64"))
    assert answer.estimate is not None
    assert fewer.estimate is not None
    assert fewer.plan.num_devices == 64
    assert fewer.estimate.step_time_s < 0.9 * answer.estimate.step_time_s
    [named] = [faster for faster in answer.faster_with if faster.change == "devices_per_node"]
    assert (named.value, named.step_time_s) == (64, fewer.estimate.step_time_s)
    assert any(
        "64 of the 72 devices of each node (gb200-nvl72:1x64)" in warning for warning in answer.warnings
    )
    assert not [faster for faster in fewer.faster_with if faster.change == "devices_per_node"]


def test_recomputation_that_is_not_searched_is_named_with_the_time_that_asking_for_it_gives() -> None:
    question = {"global_batch": 64, "seq_len": 2048}
    answer = plan("qwen2.5-14b", "g5.48xlarge:2", **question)
    asked = plan("qwen2.5-14b", "g5.48xlarge:2", **question, recompute="mlp")
    assert answer.estimate is not None
    assert asked.estimate is not None
    assert asked.estimate.step_time_s < 0.9 * answer.estimate.step_time_s
    named = [faster for faster in answer.faster_with if faster.change == "recompute"]
    assert named == [Faster(change="recompute", value="mlp", step_time_s=asked.estimate.step_time_s)]
    assert any("--recompute mlp would take" in warning for warning in answer.warnings)
    assert not [faster for faster in asked.faster_with if faster.change == "recompute"]


def test_where_nothing_divides_fewer_nodes_are_named_for_which_there_are_plans() -> None:
    """37 is prime and more than the layers."""
    question = {"global_batch": 512, "seq_len": 8192}
    with pytest.raises(Infeasible, match="296 devices and the global batch of 512 divide") as refusal:
        plan("llama-3.1-8b", "dgx-h100:37", **question)
    assert refusal.value.least_change.startswith("36 of the 37 nodes")
    assert plan("llama-3.1-8b", "dgx-h100:36", **question).estimate is not None


def test_where_degrees_of_all_devices_are_pinned_no_fewer_are_looked_at() -> None:
    """They have no place for the last stage."""
    question = {"global_batch": 7, "seq_len": 4096, "pipeline": 3}
    free = plan("llama-3.2-1b", "dgx-h100:1x3", **question)
    pinned = plan("llama-3.2-1b", "dgx-h100:1x3", **question, data=1, tensor=1, context=1)
    assert (pinned.plan, pinned.estimate) == (free.plan, free.estimate)


def test_a_kernel_written_for_the_device_is_named_with_the_time_that_the_plan_then_takes() -> None:
    question = {"global_batch": 16, "seq_len": 65536}
    answer = plan("llama-3.1-8b", "dgx-h100:1", **question)
    [named] = [warning for warning in answer.warnings if "--attention native" in warning]
    native = answer.model_copy(update={"job": answer.job.model_copy(update={"attention": "native"})})
    seconds = evaluate(native).step_time_s
    assert f"would take {format_seconds(seconds)} a step" in named
    attention = [faster for faster in answer.faster_with if faster.change == "attention"]
    assert attention == [Faster(change="attention", value="native", step_time_s=seconds)]


@pytest.mark.parametrize("cluster", ["dgx-a100-80g:1", "dgx-h100:1"])
def test_a_stack_without_a_kernel_is_not_said_to_have_the_rate_of_one(cluster: str) -> None:
    answer = plan("llama-3.1-8b", cluster, global_batch=16, seq_len=8192, stack="levanter")
    [named] = [warning for warning in answer.warnings if "--attention native" in warning]
    assert "is a loop over tiles in levanter; " in named
    assert "Transformer Engine" in named


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        ("dgx-a100-80g:1", {}),  # FlashAttention-2 was written for it
        ("dgx-h100:1", {"attention": "native"}),
        ("dgx-h100:1", {"stack": "megatron"}),  # has one nearly as fast
    ],
)
def test_no_kernel_is_named_where_none_is_faster(cluster: str, options: dict[str, str]) -> None:
    answer = plan("llama-3.1-8b", cluster, global_batch=16, seq_len=65536, **options)
    assert not [warning for warning in answer.warnings if "--attention" in warning]


def test_graphs_of_whole_steps_are_named_where_the_host_holds_up_the_device() -> None:
    question = {"global_batch": 8, "seq_len": 1024}
    answer = plan("gpt2", "dgx-h100:1", **question)
    replayed = answer.model_copy(update={"job": answer.job.model_copy(update={"cuda_graphs": True})})
    seconds = evaluate(replayed).step_time_s
    assert answer.faster_with == (Faster(change="cuda_graphs", value=True, step_time_s=seconds),)
    [named] = answer.warnings
    assert f"would take {format_seconds(seconds)} a step" in named
    assert "--cuda-graphs" in named
    then = plan("gpt2", "dgx-h100:1", **question, cuda_graphs=True)
    assert then.estimate is not None
    assert then.estimate.step_time_s <= seconds
    assert not then.faster_with


@pytest.mark.parametrize(
    ("model", "cluster", "question"),
    [
        ("llama-3.2-1b", "dgx-h100:1", {"global_batch": 64, "seq_len": 4096}),  # the device is never idle
        ("gpt2", "mi300x-8x:1", {"global_batch": 8, "seq_len": 1024}),  # no CUDA
        ("gpt2", "tpu-v5e:2x4", {"global_batch": 8, "seq_len": 1024}),  # steps are compiled whole
        (
            "deepseek-v2-lite-16b",
            "dgx-h200:1",
            {"global_batch": 8, "seq_len": 512},
        ),  # counts of tokens are read
    ],
)
def test_no_graphs_are_named_where_none_help_or_none_can_be_captured(
    model: str, cluster: str, question: dict[str, Any]
) -> None:
    answer = plan(model, cluster, **question)
    assert not [faster for faster in answer.faster_with if faster.change == "cuda_graphs"]
