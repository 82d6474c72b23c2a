"""Stacks are planned with on devices that they run on, and over axes that they split."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cluster_specs.software import Axis, load_software
from cluster_specs.usual_stacks import lacking_axes, runs_on
from planner import plan
from planner.api import judged, read_plan
from planner.errors import InputError
from planner.plans import Plan
from planner.search import doubts, faster_pipeline

JOB: dict[str, Any] = {"global_batch": 64, "seq_len": 4096}

PUBLISHED = Path(__file__).parents[2] / "published"


def published() -> Iterator[Plan]:
    """Plans of measured runs; rows that cannot be read are counted elsewhere."""
    for name in ("runs_gpu", "runs_tpu", "runs_mixtures", "runs_memory"):
        for line in (PUBLISHED / f"{name}.jsonl").read_text().splitlines():
            try:
                yield read_plan(json.loads(line)).plan
            except InputError:
                continue


def test_no_stack_is_said_to_lack_what_someone_measured_it_with() -> None:
    seen = 0
    for run in published():
        software = load_software(run.job.stack)
        assert runs_on(software, run.cluster.device)
        assert not [axis for axis in lacking_axes(software) if getattr(run.plan, axis) > 1]
        seen += any(getattr(run.plan, axis) > 1 for axis in get_args(Axis))
    assert seen > 500


@pytest.mark.parametrize(
    ("cluster", "stack", "usual"),
    [
        ("tpu-v5p:4x4x4", "torch-fsdp2", "jax-xla"),
        ("tpu-v5p:4x4x4", "paddle", "jax-xla"),
        ("dgx-h100:1", "torch-xla", "torch-fsdp2"),
        ("dgx-h100:1", "neuronx", "torch-fsdp2"),
        ("trn1.32xlarge:1", "jax-xla", "neuronx"),
        ("dgx-a100-80g:1+dgx-h100:1", "libtpu-0.0.51", "torch-fsdp2"),
    ],
)
def test_devices_that_a_stack_does_not_run_on_are_refused(cluster: str, stack: str, usual: str) -> None:
    with pytest.raises(InputError, match=rf"stack {stack} runs on .*use --stack {usual}, or another"):
        plan("llama-3.2-1b", cluster, **JOB, stack=stack)


@pytest.mark.parametrize(
    ("stack", "axis"), [("hf-fsdp", "pipeline"), ("hf-kernels", "tensor"), ("composer-2022", "context")]
)
@pytest.mark.parametrize("unequal", [False, True])
def test_axes_that_a_stack_lacks_are_refused_where_they_are_pinned(
    stack: str, axis: str, unequal: bool
) -> None:
    with pytest.raises(InputError, match=f"--{axis} 2: stack {stack} has no {axis} ranks"):
        plan("llama-3.2-1b", "dgx-h100:1", **JOB, stack=stack, unequal_stages=unequal, **{axis: 2})


@pytest.mark.usefixtures("unnamed")
def test_the_space_has_no_axis_that_the_stack_lacks() -> None:
    # Large for one node: where a stack has pipelines they are searched.
    asked: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "stack": "hf-fsdp"}
    found = plan("llama-3.1-70b", "dgx-h100:8", **asked)
    assert found.plan.num_devices == 64
    assert {p.plan.tensor * p.plan.pipeline for p in (found, *found.alternatives)} == {1}
    assert found.optimality is not None
    assert found.optimality.left_out[0].startswith("tensor, pipeline, expert ranks, which hf-fsdp")
    assert found.plan == plan("llama-3.1-70b", "dgx-h100:8", **asked, tensor=1, pipeline=1, expert=1).plan
    free = plan("llama-3.1-70b", "dgx-h100:8", **{**asked, "stack": "transformers-fsdp2"})
    assert max(p.plan.tensor * p.plan.pipeline for p in (free, *free.alternatives)) > 1
    assert free.optimality is not None
    assert not [words for words in free.optimality.left_out if "ranks" in words]


def test_no_pipeline_is_named_that_the_stack_cannot_run() -> None:
    # tests/planner/search/test_unsearched.py: the usual stack has one named here.
    answer = plan("llama-2-7b", "a100-4x-50g:2", **JOB, stack="composer-2023")
    assert answer.plan.num_devices == answer.plan.data
    assert faster_pipeline(answer) is None
    assert "pipeline" not in [faster.change for faster in answer.faster_with]


@pytest.mark.usefixtures("unnamed")
def test_pools_are_used_one_by_one_where_the_stack_has_no_pipelines() -> None:
    found = plan("llama-3.2-1b", "dgx-a100-80g:1+dgx-h100:1", **JOB, stack="composer-2023").plan
    assert (found.pipeline, found.data) == (1, 8)


@pytest.mark.parametrize(
    ("stack", "changes", "said"),
    [
        ("composer-2023", {"hardware": "dgx-h100:1", "tp": 2, "dp": 4}, "has no tensor ranks"),
        ("hf-fsdp", {"hardware": "dgx-h100:1", "pp": 2, "dp": 4}, "has no pipeline ranks"),
        ("torch-fsdp2", {"hardware": "tpu-v5p:2x2x2", "tp": 1, "dp": 8}, "does not run on tpu-v5p"),
        ("hf-fsdp", {"hardware": "dgx-h100:1", "cp": 2, "dp": 4}, None),
    ],
)
def test_runs_that_are_given_are_priced_with_a_warning(
    stack: str, changes: dict[str, Any], said: str | None
) -> None:
    parallel = {key: value for key, value in changes.items() if key != "hardware"}
    run = {
        "model": {"name": "llama-3.2-1b", "seq": 4096},
        "hardware": changes["hardware"],
        "parallel": {"stack": stack, "micro_batch": 1, "global_batch": 32, "precision": "bf16", **parallel},
    }
    found = judged(run)
    assert found.estimate is not None
    warned = [warning for warning in found.warnings if warning.startswith(stack)]
    assert len(warned) == (said is not None)
    assert all(said in warning for warning in warned if said)


def test_gpus_and_tpus_in_one_job_are_warned_of() -> None:
    job = {"global_batch": 16, "seq_len": 2048, "pipeline": 2, "stack": "jax-xla"}
    said = "jax-xla is not known to train on gpu and tpu devices in one job"
    mixed = plan("llama-3.2-1b", "dgx-h100:1+tpu-v5p:2x2x2", **job)
    assert sum(said in warning for warning in mixed.warnings) == 1
    assert any(said in warning for warning in doubts(mixed))
    alike = plan("llama-3.2-1b", "dgx-a100-80g:1+dgx-h100:1", **job)
    assert not any("in one job" in warning for warning in alike.warnings)
