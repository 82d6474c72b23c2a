"""What a refusal for want of memory names: the largest part, and what of the job's own choices makes that smaller."""

import re
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster, what_if
from planner import plan
from planner.errors import Infeasible

NODE = "dgx-a100-80g:1"
OPTIONS = ("--offload optimizer", "adamw8bit", "adafactor", "--fused-loss", "shorter sequence")

REPLICAS: dict[str, Any] = {"tensor": 1, "pipeline": 1, "context": 1, "zero_stage": 0, "recompute": "none"}


def advice(model: str, cluster: str = NODE, **question: Any) -> str:
    with pytest.raises(Infeasible) as refusal:
        plan(model, cluster, **{"global_batch": 8, "seq_len": 2048, **question})
    return refusal.value.least_change


@pytest.mark.parametrize(
    ("question", "part", "named"),
    [
        ({}, "optimizer states", {"--offload optimizer", "adamw8bit", "adafactor"}),
        ({"optimizer": "adamw8bit"}, "optimizer states", {"--offload optimizer", "adafactor"}),
        ({"optimizer": "plain-sgd"}, "optimizer states", {"--offload optimizer"}),
        ({"offload": ["optimizer"]}, "gradients", set()),
    ],
)
def test_only_what_makes_the_largest_part_smaller_is_named(
    question: dict[str, Any], part: str, named: set[str]
) -> None:
    said = advice(
        "llama-2-7b", **{**REPLICAS, "micro_batch": 1, "seq_len": 512, **question}, memory_headroom=0.7
    )
    assert f"the largest part is {part}, " in said
    assert {option for option in OPTIONS if option in said} == named
    assert "`meshwright fit` with the same arguments" in said


def test_logits_are_made_smaller_by_a_loss_in_chunks_unless_it_has_one() -> None:
    long = {"global_batch": 1, "seq_len": 65536}
    said = advice("llama-3.2-1b", "dgx-h100:1x1", **long)
    assert "the largest part is logits and the loss" in said
    assert {option for option in OPTIONS if option in said} == {"--fused-loss", "shorter sequence"}
    chunks = advice("llama-3.2-1b", "dgx-h100:1x1", **{**long, "seq_len": 524288}, fused_loss=True)
    assert "the largest part is activations" in chunks
    assert {option for option in OPTIONS if option in chunks} == {"shorter sequence"}


def test_more_devices_are_named_only_where_they_would_share() -> None:
    replicas = advice("llama-2-7b", **REPLICAS, micro_batch=1)
    assert "times the devices" not in replicas
    assert "devices with " in replicas
    sharded = advice("llama-2-7b", **{**REPLICAS, "zero_stage": 2}, memory_headroom=0.6)
    assert "times the devices" in sharded


def test_so_many_times_the_devices_as_are_named_suffice() -> None:
    states = {"global_batch": 64, "seq_len": 512, "pipeline": 1}
    said = re.search(r"about (\d+\.\d+) times the devices", advice("llama-3.1-70b", **states))
    assert said is not None
    enough = what_if(load_cluster(NODE), {"nodes": -(-float(said[1]) // 1)})
    assert plan("llama-3.1-70b", enough, **states).estimate is not None
