"""Live tensors of pipeline stages by PyTorch's own tracker, kept as data: its runtime, its schedules, FSDP2 within.

    pip install torch==2.13.0
    python benchmarks/tracking_stages.py    # write tests/published/torch_stages.jsonl again

The Llama of tracking.py, its layers dealt out evenly, each rank in turn as a process of its own; the fullest counts.
A table that embedding and head share is on both ends, as there is no other way to train it.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds;
torch.distributed.pipelining.
"""

import sys
from collections.abc import Mapping
from typing import Any

from own_cases import SIZES, measure_cases
from tracked_optimizers import OPTIMIZERS
from tracking import SHARDINGS, USUAL

CASES: Mapping[str, Mapping[str, Any]] = {
    "1b-8/pp4-dp2-none-2048-m8-tied": {"seq": 2048, "pp": 4, "shard": 2, "microbatches": 8, "tied": True},
    "2b-8/pp2-dp4-full-2048-m4-tied": {
        "seq": 2048, "pp": 2, "shard": 4, "microbatches": 4, "tied": True, "recompute": "full",
    },
    "7b-8/pp4-dp4-none-4096-m32": {"seq": 4096, "pp": 4, "shard": 4, "microbatches": 32},
    "8b-8/pp4-dp2-full-8192-m16": {"seq": 8192, "pp": 4, "shard": 2, "microbatches": 16, "recompute": "full"},
    "7b-8/pp4-dp4-none-2048-m8-freed": {"seq": 2048, "pp": 4, "shard": 4, "microbatches": 8, "reshard": True},
    "7b-8/pp4-dp4-none-2048-m8-gpipe": {
        "seq": 2048, "pp": 4, "shard": 4, "microbatches": 8, "schedule": "gpipe",
    },
    "7b-8/pp2-dp4-full-4096-m6-gpipe": {
        "seq": 4096, "pp": 2, "shard": 4, "microbatches": 6, "recompute": "full", "schedule": "gpipe",
    },
    "1b-8/pp4-dp2-none-4096-m4": {"seq": 4096, "pp": 4, "shard": 2, "microbatches": 4},
}  # fmt: skip
"""Width and layers, stages, data ranks, recomputation, tokens, micro-batches -> what differs from what is usual."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured; weights stay gathered unless it says otherwise."""
    case = {**USUAL, "wrap": "titan", "reshard": False, "schedule": "1f1b", **CASES[name]}
    size, layers = name.partition("/")[0].split("-")
    shard, reshard, stages = case.pop("shard"), case.pop("reshard"), case.pop("pp")
    case["grad_accum"] = case.pop("microbatches")
    model = {"name": "llama-style", "layers": int(layers), **SIZES[size], "seq": case.pop("seq")}
    return {
        "id": f"torch-stages/{name}",
        "source": "benchmarks/tracking_stages.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "quality": "A",
        "series": "torch-tracker",
        "model": {**model, "gated_mlp": True, "tied": case.pop("tied", False)},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": shard * stages},
        "parallel": {
            "dp": shard, "dp_shard": shard, "dp_replicate": case.pop("replicate"), "pp": stages, "cp": 1, "ep": 1,
            "sharding": SHARDINGS[False, reshard], "reshard_after_forward": reshard, "attn": "flash",
            "loss": "ce_fp32", "global_batch": shard * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Peak of live tensors in the second step of ``row`` on the fullest rank."""
    peaks = [rank_peak(row, rank) for rank in range(row["parallel"]["pp"])]
    return {"tensor_gib_per_gpu": max(peaks), "tensor_gib_by_stage": peaks}


def rank_peak(row: Mapping[str, Any], rank: int) -> float:
    """The same on one rank [GiB]."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import _sharding_prop
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from tracked_stages import scheduled, stage_of

    plan = row["parallel"]
    _sharding_prop.detect_fake_mode = lambda *inputs: None
    dist.init_process_group(
        "fake", rank=rank * plan["dp"], world_size=plan["dp"] * plan["pp"], store=FakeStore()
    )
    mesh = init_device_mesh("cpu", (plan["pp"], plan["dp"]), mesh_dim_names=("stage", "shard"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = stage_of(row["model"], plan, rank)
        tokens = torch.zeros(
            (plan["micro_batch"] * plan["grad_accum"], row["model"]["seq"]), dtype=torch.int64
        )
    model.share(plan, mesh["shard"])
    with fake:
        optimizers = OPTIMIZERS[plan["optim"]](model)
        tracker = FSDPMemTracker(model, optimizers[0])
        tracker.track_inputs((tokens,))
        with tracker:
            step = scheduled(model, row, rank, mesh["stage"].get_group(), tracker.reset_mod_stats)
            for _ in range(2):
                tracker._peak_mem.clear()
                tracker._peak_mem_snap.clear()
                step(tokens)
                optimizers[0].step()
                model.zero_grad()
        found = tracker.get_tracker_snapshot("peak")
    dist.destroy_process_group()
    return next(int(sizes["Total"]) for sizes in found.values()) / 2**30


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_stages.jsonl", CASES, row_of, measured, wanted)
