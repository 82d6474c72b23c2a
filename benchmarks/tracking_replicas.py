"""Live tensors of replicas under DistributedDataParallel by PyTorch's own tracker, kept as data.

    pip install torch==2.13.0
    python benchmarks/tracking_replicas.py    # write tests/published/torch_replicas.jsonl again

As tracking.py, with small models whose tensors are real: DDP's reducer is no program of Python and cannot run on shapes
alone. One process of gloo stands for all: buckets are those of any number of ranks. Tokens are so few
that it hardly matters whose modules these are.

Source: torch.distributed._tools.mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from own_cases import measure_cases
from tracked_optimizers import OPTIMIZERS
from tracking import USUAL, loss_of

SIZES: Mapping[str, Mapping[str, Any]] = {
    "small": {"hidden": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64, "ffn_hidden": 2816, "vocab": 8192},
    "wide": {"hidden": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128, "ffn_hidden": 5632, "vocab": 4096},
}  # fmt: skip

IN_FP32: Mapping[str, Any] = {"precision": "fp32", "param_dtype": "float32"}
IN_BF16: Mapping[str, Any] = {"master_dtype": "bfloat16", "reduce_dtype": "bfloat16"}

CASES: Mapping[str, Mapping[str, Any]] = {
    "small-6/none-256-fp32": IN_FP32,
    "small-8/none-64-bf16": IN_BF16,
    "small-6/none-64-fp32-accumulated": {**IN_FP32, "grad_accum": 2},
    "wide-3/none-64-bf16-foreach": {**IN_BF16, "optim": "adamw_foreach"},
    "wide-3/full-256-bf16-accumulated": {**IN_BF16, "recompute": "full", "grad_accum": 4},
    "small-6/none-512-fp32-momentum": {**IN_FP32, "optim": "sgd_momentum"},
}  # fmt: skip
"""Width and layers, recomputation, tokens -> what differs from what is usual."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    size, layers = name.partition("/")[0].split("-")
    case = {**USUAL, **CASES[name]}
    del case["shard"], case["replicate"], case["reshard"], case["wrap"]
    model = {"name": "llama-style", "layers": int(layers), **SIZES[size], "gated_mlp": True, "tied": False}
    return {
        "id": f"torch-replicas/{name}",
        "source": "benchmarks/tracking_replicas.py (MemTracker of PyTorch, real tensors, third step)",
        "quality": "A",
        "series": "torch-replicas",
        "model": {**model, "seq": int(name.split("/")[1].split("-")[1])},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": 8},
        "parallel": {
            "stack": "hf-fsdp", "dp": 8, "pp": 1, "cp": 1, "ep": 1, "sharding": "NO_SHARD", "attn": "flash",
            "loss": "ce_fp32", "global_batch": 8 * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the third step of ``row``, once DDP has dealt its buckets anew."""
    import torch
    import torch.distributed as dist
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn.parallel import DistributedDataParallel
    from tracked_model import Model

    plan = row["parallel"]
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'ranks'}"
        dist.init_process_group("gloo", rank=0, world_size=1, init_method=store)
        torch.set_default_dtype(getattr(torch, plan["master_dtype"]))
        model = Model(row["model"], plan["recompute"], False)
        torch.set_default_dtype(torch.float32)
        replica = DistributedDataParallel(model)
        optimizers = OPTIMIZERS[plan["optim"]](model)
        tokens = torch.zeros((plan["micro_batch"], row["model"]["seq"]), dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, *optimizers, tokens)
        with tracker:
            peaks = [_step(replica, optimizers, tracker, tokens, plan["grad_accum"]) for _ in range(3)]
        dist.destroy_process_group()
    return {"tensor_gib_per_gpu": peaks[-1] / 2**30}


def _step(replica: Any, optimizers: tuple[Any, ...], tracker: Any, tokens: Any, micro_batches: int) -> int:
    """One step, in which only the last micro-batch sums gradients over ranks; its peak [bytes]."""
    tracker._peak_mem.clear()  # it has no other way to forget the step before
    tracker._peak_mem_snap.clear()
    for i in range(micro_batches):
        tracker.reset_mod_stats()
        with nullcontext() if i == micro_batches - 1 else replica.no_sync():
            (loss_of(replica, tokens) / micro_batches).backward()
    for optimizer in optimizers:
        optimizer.step()
    replica.zero_grad()
    return sum(int(sizes["Total"]) for sizes in tracker.get_tracker_snapshot("peak").values())


if __name__ == "__main__":
    measure_cases("torch_replicas.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else "")
