"""Weights stepped within the backward: what PyTorch's tracker sees, what is spared, and which plans have none of it."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from memory_rows import predicted, rows_of

from cluster_specs.catalog import load_cluster
from planner.errors import InputError
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

TRACKED = rows_of("torch_early_steps.jsonl")
"""Cases of benchmarks/tracking_early_steps.py: one device, and FSDP2."""

MODEL, NODE = load_model("llama-3.1-8b"), load_cluster("dgx-h100:1")
IN_BF16 = {"master_weights": False, "grad_dtype": "bf16"}
SHARED: dict[str, Any] = {"zero_stage": 3, "sharding": "FULL_SHARD"}


def estimate(early: bool, job: dict[str, Any], **degrees: Any) -> Estimate:
    given = {"global_batch": 8, "seq_len": 2048, "stack": "torch-eager"} | job
    return Evaluator(MODEL, NODE, Job.model_validate(given | {"step_in_backward": early})).estimate(
        Parallelism(**{"data": 8, "shard_degree": 8, "recompute": "full", **SHARED, **degrees})
    )


INSIDE_A_LAYER = "torch-early-steps/7bv-6/one-full-8192-bf16"
"""Here the peak is where an activation is gone that the prediction still has: what the last product read."""


@pytest.mark.parametrize("run", TRACKED)
def test_the_tracker_saw_as_much(run: str) -> None:
    measured = TRACKED[run]["measured"]["tensor_gib_per_gpu"]
    tolerance = 0.02 if run == INSIDE_A_LAYER else 0.005
    assert predicted(run, TRACKED).tensor_bytes / 2**30 == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_one_device_never_pile_up(fused: bool) -> None:
    """A whole set of gradients less, and beside one weight's its own temporaries alone."""
    alone = {"data": 1, "shard_degree": 1, "zero_stage": 0, "sharding": "NO_SHARD"}
    job = {"global_batch": 1, "seq_len": 256, "fused_optimizer": fused, **IN_BF16}
    late, early = (estimate(how, job, **alone) for how in (False, True))
    assert late.peak_phase == "optimizer"
    assert late.memory["gradients"] == 2 * MODEL.parameters
    assert "gradients" not in {name for moment in early.memory_over_step for name in moment.tensors}
    table = 128256 * 4096
    spared = late.memory["gradients"] + late.memory.get("optimizer_temporaries", 0.0)
    held = early.tensor_bytes - (late.tensor_bytes - spared)
    least = (2 if fused else 4) * table
    assert least < held < least + 0.2 * 2**30


def test_shards_of_fsdp_go_unit_by_unit() -> None:
    late, early = (estimate(how, {}) for how in (False, True))
    assert early.tensor_bytes < late.tensor_bytes
    assert not any(moment.tensors.get("gradients") for moment in early.memory_over_step)


def test_the_update_reads_and_writes_as_much_and_nothing_is_clipped() -> None:
    """Reading gradients once for their norm, and once more, with a write, to clip them, is all that is spared."""
    late, early = (estimate(how, {}) for how in (False, True))
    clip = 3 * 4 * MODEL.parameters / 8 / NODE.device.memory_bandwidth
    assert late.time["optimizer"] - early.time["optimizer"] == pytest.approx(clip, rel=0.2)
    assert {**late.time, "optimizer": 0} == {**early.time, "optimizer": 0}


@pytest.mark.parametrize(
    ("job", "degrees", "reason"),
    [
        ({"global_batch": 16}, {"num_microbatches": 2}, "several micro-batches are added up"),
        ({"global_batch": 4}, {"data": 4, "shard_degree": 4, "pipeline": 2}, "plan without one"),
        ({}, {"offload": ("optimizer",)}, "the host steps what is offloaded"),
        ({}, {"zero_stage": 0, "sharding": "NO_SHARD", "shard_degree": 1}, "share them by ZeRO 2 or 3"),
        ({"stack": "torch-fsdp1"}, {}, "use a stack of FSDP2"),
        ({"stack": "megatron"}, {}, "stack megatron keeps gradients until the step"),
    ],
)
def test_gradients_that_have_to_wait_are_refused(
    job: dict[str, Any], degrees: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=f"step_in_backward.*{reason}"):
        estimate(True, job, **degrees)


@pytest.mark.torch
@pytest.mark.parametrize(("compiled", "at_once"), [(False, 1), (True, 4)])
def test_what_is_compiled_gives_all_its_gradients_at_once(
    compiled: bool, at_once: int, tmp_path: Path
) -> None:
    """By PyTorch's profiler of its allocator: gradients of the weights of four products beside each other."""
    torch = pytest.importorskip("torch")
    width, trace = 256, tmp_path / "trace.json"
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda stepped: setattr(stepped, "grad", None))
    run = torch.compile(model, backend="aot_eager") if compiled else model
    read = torch.ones(1, width)
    run(read).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run(read).sum().backward()
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    sizes = (event["args"]["Bytes"] for event in events if event.get("name") == "[memory]")
    assert max(accumulate(sizes)) // (4 * width**2) == at_once


def test_a_compiled_layer_holds_all_its_gradients_on_one_device() -> None:
    """Those of the others of a layer's weights, beside the largest: of 7 products and two norms."""
    alone = {"data": 1, "shard_degree": 1, "zero_stage": 0, "sharding": "NO_SHARD"}
    job = {"global_batch": 1, "seq_len": 16, "fused_loss": True, **IN_BF16}
    eager, compiled = (estimate(True, {**job, "stack": s}, **alone) for s in ("torch-eager", "torch-fsdp2"))
    layer, largest = 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096), 2 * 4096 * 14336

    def most(found: Estimate) -> float:
        buffers = [moment.tensors.get("gradient_buffers", 0.0) for moment in found.memory_over_step]
        return max(size for size in buffers if size < 2 * 128256 * 4096)

    assert (most(eager), most(compiled)) == (largest, layer)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b"])
def test_a_table_that_both_ends_use_waits_for_both_gradients(name: str) -> None:
    """Tied, it is beside every layer's, and at the end there are two and their sum; untied, each is stepped alone."""
    model = load_model(name)
    job = {"global_batch": 1, "seq_len": 256, "stack": "torch-eager", "fused_optimizer": False, **IN_BF16}
    evaluator = Evaluator(model, NODE, Job.model_validate({**job, "step_in_backward": True}))
    found = evaluator.estimate(Parallelism(recompute="full"))
    moments = [moment.tensors for moment in found.memory_over_step if moment.phase == "backward"]
    *inside, end, update = [moment.get("gradient_buffers", 0.0) for moment in moments]
    table = 2 * 128256 * model.config["hidden_size"]
    tied = name == "llama-3.2-1b"
    assert (end / table, update / table) == (3 if tied else 1, 1)
    assert min(inside) == (table if tied else 0.0)
    assert moments[-1]["optimizer_temporaries"] == table
