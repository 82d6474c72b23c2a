"""Live tensors of training steps by PyTorch's own tracker, kept as data: cases beside those that others measured.

    pip install torch==2.13.0 torchao==0.18.0
    python benchmarks/tracking.py    # write tests/published/torch_tracked.jsonl again

A Llama of few layers runs two steps under FSDP2 with fake tensors, on one process that takes itself for rank 0 of
many; the peak of the second step counts. What is offloaded leaves a device that is imagined (tracked_device.py). Norm
and rotary positions keep what fused kernels keep. Updates need no temporaries but where they are grouped (foreach):
AdamW is fused, SGD in place.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from own_cases import SIZES, measure_cases
from tracked_optimizers import OPTIMIZERS

CASES: Mapping[str, Mapping[str, Any]] = {
    "8b-6/dp8-full-512": {"seq": 512, "recompute": "full"},
    "8b-6/dp8-none-1024": {"seq": 1024},
    "8b-6/dp2-full-2048": {"seq": 2048, "recompute": "full", "shard": 2},
    "8b-6/dp4-full-256-kept": {"seq": 256, "recompute": "full", "shard": 4, "reshard": False},
    "8b-6/dp8-full-512-ends": {"seq": 512, "recompute": "full", "wrap": "titan"},
    "8b-6/dp4-full-512-ends": {"seq": 512, "recompute": "full", "wrap": "titan", "shard": 4},
    "8b-6/dp8-every_second-1024-ends": {"seq": 1024, "recompute": "selective_op", "wrap": "titan"},
    "1b-8/dp8-none-512-accumulated": {"seq": 512, "grad_accum": 4},
    "1b-8/dp8-none-4096-bf16": {"seq": 4096, "master_dtype": "bfloat16", "reduce_dtype": "bfloat16"},
    "1b-8/dp8-none-1024-fp32": {"seq": 1024, "precision": "fp32", "param_dtype": "float32"},
    "1b-8/dp8-none-512-reduced_in_bf16": {"seq": 512, "reduce_dtype": "bfloat16"},
    "7b-6/dp16-every_second-4096-mb2": {"seq": 4096, "recompute": "selective_op", "shard": 16, "micro_batch": 2},
    "7b-6/dp16-none-1024-kept": {"seq": 1024, "shard": 16, "reshard": False},
    "7b-6/dp2x8-full-1024": {"seq": 1024, "recompute": "full", "replicate": 2},
    "7b-6/dp8-full-1024-sgd": {"seq": 1024, "recompute": "full", "optim": "sgd"},
    "7b-6/dp2-none-256-ends": {"seq": 256, "shard": 2, "wrap": "titan"},
    "8b-4/dp2-none-512-ends-accumulated": {"seq": 512, "shard": 2, "wrap": "titan", "grad_accum": 4},
    "1b-6/dp16-full-256-ends-accumulated": {
        "seq": 256, "shard": 16, "recompute": "full", "wrap": "titan", "grad_accum": 4, "reduce_dtype": "bfloat16",
    },
    "7b-6/dp32-products-4096": {"seq": 4096, "recompute": "selective_op_all", "shard": 32},
    "2b-6/dp8-full-512": {"seq": 512, "recompute": "full"},
    "2b-6/dp8-none-1024-ends": {"seq": 1024, "wrap": "titan"},
    "2b-6/dp16-products-2048-bf16": {
        "seq": 2048, "recompute": "selective_op_all", "shard": 16, "master_dtype": "bfloat16",
        "reduce_dtype": "bfloat16",
    },
    "70b-4/dp64-full-2048": {"seq": 2048, "recompute": "full", "shard": 64},
    "70b-4/dp8-full-512-ends-accumulated": {"seq": 512, "recompute": "full", "wrap": "titan", "grad_accum": 4},
    "70b-3/dp32-every_second-1024-ends": {"seq": 1024, "recompute": "selective_op", "wrap": "titan", "shard": 32},
    "8b-6/dp8-full-512-mb8": {"seq": 512, "recompute": "full", "micro_batch": 8},
    "8b-6/dp16-none-512-kept-accumulated": {"seq": 512, "shard": 16, "reshard": False, "grad_accum": 4},
    "1b-8/dp4x4-none-1024-accumulated": {"seq": 1024, "shard": 4, "replicate": 4, "grad_accum": 2},
    "7b-6/dp8-products-1024-fp32": {
        "seq": 1024, "recompute": "selective_op_all", "precision": "fp32", "param_dtype": "float32",
    },
    "7b-6/dp2x16-full-512-ends": {"seq": 512, "recompute": "full", "shard": 16, "replicate": 2, "wrap": "titan"},
    "1b-8/dp8-full-32768-ends": {"seq": 32768, "recompute": "full", "wrap": "titan"},
    "7b-6/dp8-full-512-muon": {"seq": 512, "recompute": "full", "optim": "muon"},
    "70b-4/dp8-none-256-muon": {"seq": 256, "optim": "muon"},
    "1b-8/dp16-none-1024-ends-muon": {"seq": 1024, "shard": 16, "wrap": "titan", "optim": "muon"},
    "8b-6/dp8-full-512-8bit": {"seq": 512, "recompute": "full", "optim": "adamw8bit"},
    "7b-6/dp4-none-256-ends-8bit": {"seq": 256, "shard": 4, "wrap": "titan", "optim": "adamw8bit"},
    "70b-3/dp8-full-1024-bf16": {
        "seq": 1024, "recompute": "full", "master_dtype": "bfloat16", "reduce_dtype": "bfloat16",
    },
    "2b-6/dp4-none-512-bf16-sgd": {
        "seq": 512, "shard": 4, "master_dtype": "bfloat16", "reduce_dtype": "bfloat16", "optim": "sgd",
    },
    "1b-1/dp8-none-1024": {"seq": 1024},
    "1b-1/dp8-full-1024-ends": {"seq": 1024, "recompute": "full", "wrap": "titan"},
    "8b-1/dp8-none-512-kept": {"seq": 512, "reshard": False},
    "8b-2/dp4-full-256-ends-accumulated": {
        "seq": 256, "recompute": "full", "shard": 4, "wrap": "titan", "grad_accum": 2,
    },
    "1b-100/dp8-full-512": {"seq": 512, "recompute": "full"},
    "1b-100/dp64-none-256-ends": {"seq": 256, "shard": 64, "wrap": "titan"},
    "xl-6/dp7-none-1024": {"seq": 1024, "shard": 7},
    "xl-6/dp48-full-1000-ends": {"seq": 1000, "shard": 48, "recompute": "full", "wrap": "titan"},
    "xl-6/dp24-none-256-accumulated": {"seq": 256, "shard": 24, "grad_accum": 4},
    "1b-6/dp8-none-1024-tied": {"seq": 1024, "tied": True},
    "1b-6/dp16-full-256-tied-accumulated": {
        "seq": 256, "recompute": "full", "shard": 16, "grad_accum": 4, "tied": True,
    },
    "2b-6/dp4-full-256-tied": {"seq": 256, "recompute": "full", "shard": 4, "tied": True},
    "2b-4/dp16-none-512-tied-kept": {"seq": 512, "shard": 16, "reshard": False, "tied": True},
    "7b-6/dp8-full-256-foreach": {"seq": 256, "recompute": "full", "optim": "adamw_foreach"},
    "8b-6/dp2-full-256-ends-foreach": {
        "seq": 256, "recompute": "full", "shard": 2, "wrap": "titan", "optim": "adamw_foreach",
    },
    "70b-4/dp4-full-256-ends": {"seq": 256, "recompute": "full", "shard": 4, "wrap": "titan"},
    "7b-8/dp2-full-256-bf16-foreach": {
        "seq": 256, "recompute": "full", "shard": 2, "master_dtype": "bfloat16", "reduce_dtype": "bfloat16",
        "optim": "adamw_foreach",
    },
    "7b-6/dp2-full-256-momentum": {"seq": 256, "recompute": "full", "shard": 2, "optim": "sgd_momentum"},
    "7b-6/dp2-full-256-clipped": {"seq": 256, "recompute": "full", "shard": 2, "clip": True},
    "8b-6/dp8-none-512-ends-clipped-accumulated": {"seq": 512, "wrap": "titan", "clip": True, "grad_accum": 4},
    "1b-8/dp8-none-1024-fp16": {
        "seq": 1024, "precision": "fp16", "param_dtype": "float16", "reduce_dtype": "float16",
    },
    "7b-6/dp4-full-512-fp16-ends": {
        "seq": 512, "recompute": "full", "shard": 4, "precision": "fp16", "param_dtype": "float16", "wrap": "titan",
    },
    "8b-6/dp4x8-none-512-ends-accumulated": {
        "seq": 512, "shard": 4, "replicate": 8, "wrap": "titan", "grad_accum": 2,
    },
    "7b-6/dp8x2-none-512-kept": {"seq": 512, "replicate": 2, "reshard": False},
    "70b-3/dp2x8-full-512": {"seq": 512, "recompute": "full", "replicate": 2},
    "7b-6/dp8-full-512-fp32-ends": {
        "seq": 512, "recompute": "full", "precision": "fp32", "param_dtype": "float32", "wrap": "titan",
    },
    "1b-8/dp4-none-512-fp32-accumulated": {
        "seq": 512, "shard": 4, "precision": "fp32", "param_dtype": "float32", "grad_accum": 4,
    },
    "8b-6/dp4-full-256-fp32-kept": {
        "seq": 256, "recompute": "full", "shard": 4, "precision": "fp32", "param_dtype": "float32", "reshard": False,
    },
    "7b-6/dp8-none-512-weights_away": {"seq": 512, "cpu_offload_weights": True},
    "8b-6/dp4-none-256-ends-weights_away": {"seq": 256, "shard": 4, "wrap": "titan", "cpu_offload_weights": True},
    "1b-8/dp8-none-1024-weights_away": {"seq": 1024, "cpu_offload_weights": True, "reduce_dtype": "bfloat16"},
    "70b-3/dp8-none-256-weights_away": {"seq": 256, "cpu_offload_weights": True, "optim": "adamw_foreach"},
    "1b-8/dp4-none-512-ends-accumulated-weights_away": {
        "seq": 512, "shard": 4, "wrap": "titan", "grad_accum": 4, "cpu_offload_weights": True,
    },
    "7b-6/dp8-none-4096-saved_away": {"seq": 4096, "act_offload": True},
    "8b-6/dp8-none-2048-ends-saved_away": {"seq": 2048, "wrap": "titan", "act_offload": True},
    "1b-16/dp8-none-8192-both_away": {"seq": 8192, "act_offload": True, "cpu_offload_weights": True},
    "8b-6/dp8-tp8-none-4096": {"seq": 4096, "tp": 8},
    "8b-6/dp8-tp4-products-4096": {"seq": 4096, "tp": 4, "recompute": "selective_op_all"},
    "8b-6/dp4-tp8-every_second-8192-ends": {
        "seq": 8192, "tp": 8, "shard": 4, "recompute": "selective_op", "wrap": "titan",
    },
    "70b-4/dp8-tp8-every_second-4096": {"seq": 4096, "tp": 8, "recompute": "selective_op"},
    "7b-6/dp8-tp2-full-1024-ends": {"seq": 1024, "tp": 2, "recompute": "full", "wrap": "titan"},
    "7b-6/dp4-tp4-none-2048-whole": {"seq": 2048, "tp": 4, "shard": 4, "sequence_parallel": False},
    "8b-6/dp8-tp2-full-2048-whole": {"seq": 2048, "tp": 2, "recompute": "full", "sequence_parallel": False},
    "1b-8/dp8-tp2-none-2048-kept-accumulated": {"seq": 2048, "tp": 2, "reshard": False, "grad_accum": 4},
    "7b-12/dp8-none-1024-kept_in_4": {"seq": 1024, "reshard": 4},
    "7b-16/dp16-full-2048-ends-kept_in_2": {
        "seq": 2048, "shard": 16, "recompute": "full", "wrap": "titan", "reshard": 2,
    },
    "1b-8/dp32-none-4096-kept_in_2-accumulated": {"seq": 4096, "shard": 32, "reshard": 2, "grad_accum": 4},
    "8b-6/dp8-tp4-none-2048-logits_whole": {"seq": 2048, "tp": 4, "loss_parallel": False},
    "1b-8/dp4-tp8-full-4096-ends-logits_whole": {
        "seq": 4096, "tp": 8, "shard": 4, "recompute": "full", "wrap": "titan", "loss_parallel": False,
    },
    "7b-6/dp8-tp2-none-2048-all_whole": {
        "seq": 2048, "tp": 2, "sequence_parallel": False, "loss_parallel": False,
    },
    "7b-6/dp4-full-512-bf16-reduced_in_fp32": {
        "seq": 512, "shard": 4, "recompute": "full", "master_dtype": "bfloat16",
    },
    "1b-8/dp8-none-1024-ends-bf16-reduced_in_fp32": {
        "seq": 1024, "wrap": "titan", "master_dtype": "bfloat16", "grad_accum": 2,
    },
    "7b-6/dp8-every_2nd_layer-4096": {"seq": 4096, "recompute": "full every 2nd layer"},
    "70b-6/dp32-every_3rd_layer-4096-ends": {
        "seq": 4096, "shard": 32, "recompute": "full every 3rd layer", "wrap": "titan",
    },
    "8b-6/dp2-cp4-none-8192": {"seq": 8192, "shard": 2, "cp": 4},
    "1b-8/dp4-cp2-full-8192-ends": {"seq": 8192, "shard": 4, "cp": 2, "recompute": "full", "wrap": "titan"},
    "7b-6/dp1-cp8-none-16384": {"seq": 16384, "shard": 1, "cp": 8},
    "7b-6/dp4-cp4-none-8192": {"seq": 8192, "shard": 4, "cp": 4},
    "8b-6/dp2-cp8-full-32768": {"seq": 32768, "shard": 2, "cp": 8, "recompute": "full"},
    "1b-8/dp2-cp4-none-16384-accumulated": {"seq": 16384, "shard": 2, "cp": 4, "grad_accum": 4},
    "8b-4/dp4-cp2-none-4096-ends": {"seq": 4096, "shard": 4, "cp": 2, "wrap": "titan"},
    "70b-3/dp2-cp8-full-32768-ends": {
        "seq": 32768, "shard": 2, "cp": 8, "recompute": "full", "wrap": "titan",
    },
    "7bv-6/dp8-full-8192": {"seq": 8192, "recompute": "full"},
    "8bv-6/dp8-full-8192-ends": {"seq": 8192, "recompute": "full", "wrap": "titan"},
    "8bv-4/dp8-none-8192": {"seq": 8192},
    "7bv-6/dp8-full-8192-tiled": {"seq": 8192, "recompute": "full", "mlp_tiles": 8},
    "8bv-6/dp8-full-8192-ends-tiled": {"seq": 8192, "recompute": "full", "wrap": "titan", "mlp_tiles": 8},
    "7b-6/dp1-cp16-full-131072": {"seq": 131072, "shard": 1, "cp": 16, "recompute": "full"},
    "7b-4/dp2-cp8-full-65536-ends": {
        "seq": 65536, "shard": 2, "cp": 8, "recompute": "full", "wrap": "titan",
    },
    "7b-6/dp4x2-full-512-ends-kept-accumulated": {
        "seq": 512, "shard": 4, "replicate": 2, "recompute": "full", "wrap": "titan", "reshard": False,
        "grad_accum": 4,
    },
    "1b-6/dp8-tp4-none-1024-tied": {"seq": 1024, "tp": 4, "tied": True},
    "3b-4/dp4-tp2-full-1024-tied-accumulated": {
        "seq": 1024, "tp": 2, "shard": 4, "recompute": "full", "grad_accum": 2, "tied": True,
    },
    "8b-4/dp4-tp8-full-256-tied": {"seq": 256, "tp": 8, "shard": 4, "recompute": "full", "tied": True},
    "1b-6/dp8-tp4-full-256-ends": {"seq": 256, "tp": 4, "recompute": "full", "wrap": "titan"},
    "8b-4/dp8-tp8-full-256-ends-accumulated": {
        "seq": 256, "tp": 8, "recompute": "full", "wrap": "titan", "grad_accum": 2,
    },
    "1b-6/dp8-tp4-full-256-ends-accumulated": {
        "seq": 256, "tp": 4, "recompute": "full", "wrap": "titan", "grad_accum": 4,
    },
    "70b-4/dp8-tp8-full-2048-ends-clipped": {
        "seq": 2048, "tp": 8, "recompute": "full", "wrap": "titan", "clip": True,
    },
    "7b-6/dp8-tp4-every_2nd_layer-4096": {"seq": 4096, "tp": 4, "recompute": "full every 2nd layer"},
    "70b-6/dp8-tp8-every_3rd_layer-8192-ends": {
        "seq": 8192, "tp": 8, "recompute": "full every 3rd layer", "wrap": "titan",
    },
    "8b-6/dp8-tp4-full-1024-foreach": {"seq": 1024, "tp": 4, "recompute": "full", "optim": "adamw_foreach"},
    "7b-6/dp8-none-1024-kept-accumulated-momentum": {
        "seq": 1024, "reshard": False, "grad_accum": 4, "optim": "sgd_momentum",
    },
    "8b-6/dp8-products-2048-kept": {"seq": 2048, "recompute": "selective_op_all", "reshard": False},
    "7b-6/dp4x2-tp2-full-1024-ends": {
        "seq": 1024, "shard": 4, "replicate": 2, "tp": 2, "recompute": "full", "wrap": "titan",
    },
    "7b-6/dp8-none-512-ends-accumulated-muon": {"seq": 512, "wrap": "titan", "grad_accum": 4, "optim": "muon"},
    "8b-6/dp8-every_second-2048-accumulated-bf16": {
        "seq": 2048, "recompute": "selective_op", "grad_accum": 2, "master_dtype": "bfloat16",
        "reduce_dtype": "bfloat16",
    },
    "8bv-6/dp8-tp4-full-8192-in_tiles": {"seq": 8192, "tp": 4, "recompute": "full", "mlp_tiles": 4},
    "7b-6/dp2-cp4-products-16384": {"seq": 16384, "shard": 2, "cp": 4, "recompute": "selective_op_all"},
    "14b-4/dp8-none-512-ends-accumulated-saved_away": {
        "seq": 512, "wrap": "titan", "grad_accum": 2, "act_offload": True,
    },
    "14b-4/dp8-full-512-bf16-muon": {
        "seq": 512, "recompute": "full", "master_dtype": "bfloat16", "reduce_dtype": "bfloat16", "optim": "muon",
    },
    "14b-6/dp8-full-512-kept-clipped-momentum": {
        "seq": 512, "recompute": "full", "reshard": False, "clip": True, "optim": "sgd_momentum",
    },
    "14b-4/dp4-tp8-none-2048-ends-kept-accumulated": {
        "seq": 2048, "tp": 8, "shard": 4, "wrap": "titan", "reshard": False, "grad_accum": 4,
    },
    "13b-6/dp4x4-tp4-full-2048-foreach": {
        "seq": 2048, "tp": 4, "shard": 4, "replicate": 4, "recompute": "full", "optim": "adamw_foreach",
    },
    "3b-8/dp16-every_second-1024-accumulated-8bit": {
        "seq": 1024, "shard": 16, "recompute": "selective_op", "grad_accum": 4, "optim": "adamw8bit",
    },
    "13b-4/dp4-none-2048-mb4-fp16-clipped": {
        "seq": 2048, "shard": 4, "micro_batch": 4, "precision": "fp16", "param_dtype": "float16",
        "reduce_dtype": "float16", "clip": True,
    },
}  # fmt: skip
"""Width and layers, data ranks, recomputation, tokens -> what differs from `USUAL`."""

USUAL: Mapping[str, Any] = {
    "shard": 8, "replicate": 1, "micro_batch": 1, "grad_accum": 1, "recompute": "none", "precision": "bf16",
    "param_dtype": "bfloat16", "reduce_dtype": "float32", "master_dtype": "float32", "optim": "adamw_fused",
    "tp": 1, "sequence_parallel": True, "loss_parallel": True,
    "wrap": "block", "reshard": True, "act_offload": False, "cpu_offload_weights": False,
}  # fmt: skip

SHARDINGS: Mapping[tuple[bool, bool], str] = {
    (False, True): "FULL_SHARD", (False, False): "SHARD_GRAD_OP",
    (True, True): "HYBRID_SHARD", (True, False): "_HYBRID_SHARD_ZERO2",
}  # fmt: skip
"""Whether there are copies of shards, whether weights are freed after the forward -> PyTorch's name."""


def row_of(name: str, cases: Mapping[str, Mapping[str, Any]] = CASES) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    case = {**USUAL, **cases[name]}
    size, layers = name.partition("/")[0].split("-")
    shard, replicate = case.pop("shard"), case.pop("replicate")
    ranks, reshard, context = shard * replicate, case.pop("reshard"), case.pop("cp", 1)
    sharding = SHARDINGS[replicate > 1, reshard is not False]
    model = {"name": "llama-style", "layers": int(layers), **SIZES[size], "seq": case.pop("seq")}
    return {
        "id": f"torch-tracked/{name}",
        "source": "benchmarks/tracking.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "quality": "A",
        "series": "torch-tracker",
        "model": {**model, "gated_mlp": True, "tied": case.pop("tied", False)},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": ranks * case["tp"] * context},
        "parallel": {
            "dp": ranks, "dp_shard": shard, "dp_replicate": replicate, "pp": 1, "cp": context, "ep": 1,
            "sharding": sharding, "reshard_after_forward": reshard, "attn": "flash", "loss": "ce_fp32",
            "global_batch": ranks * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    import torch
    from tracked_model import Model, parallelised

    def built() -> Any:
        torch.set_default_dtype(getattr(torch, row["parallel"]["master_dtype"]))
        tiles = row["parallel"].get("mlp_tiles", 1)
        sizes = {**row["model"], "seq": row["model"]["seq"] // row["parallel"]["cp"], "mlp_tiles": tiles}
        model = Model(sizes, row["parallel"]["recompute"], row["parallel"]["act_offload"])
        torch.set_default_dtype(torch.float32)
        return model

    return tracked(row, built, parallelised, loss_of)


def tracked(
    row: Mapping[str, Any],
    built: Callable[[], Any],
    parallelised: Callable[[Any, Mapping[str, Any], Any], None],
    loss: Callable[[Any, Any], Any],
    optimizers_of: Callable[[Any, str], tuple[Any, ...]] = lambda model, name: OPTIMIZERS[name](model),
) -> dict[str, float]:
    """Peak in the second step of the model that is ``built``; ``loss`` takes it and its tokens.

    ``optimizers_of`` a model are those that are left to step once the backward is done.
    """
    import torch
    import torch.distributed as dist
    import tracked_device
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from tracked_model import ranks_of

    sizes, plan = row["model"], row["parallel"]
    # Whole tensors of which DTensor asks only for their shapes are then of another mode, which is not tracked.
    _sharding_prop.detect_fake_mode = lambda *inputs: None
    device = tracked_device.registered() if plan["act_offload"] or plan["cpu_offload_weights"] else "cpu"
    dist.init_process_group(
        "fake", rank=0, world_size=plan["dp"] * plan["tp"] * plan["cp"], store=FakeStore()
    )
    mesh, fake = ranks_of(plan, device), FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.device(device):
        model = built()
        tokens = torch.zeros((plan["micro_batch"], sizes["seq"] // plan["cp"]), dtype=torch.int64)
    # Meshes that are made of two need real ranks; nothing real is on a device that is imagined.
    with nullcontext() if device == "cpu" else fake:
        parallelised(model, plan, mesh)
    with fake:
        optimizers = optimizers_of(model, plan["optim"])
        tracker = FSDPMemTracker(model, *optimizers[:1])
        tracker.track_inputs((tokens,))
        with tracker:
            whole = partial(_step, model, optimizers, tracker, lambda: loss(model, tokens), plan)
            with loss_parallel() if plan["tp"] > 1 and plan["loss_parallel"] else nullcontext():
                peaks = [whole()[device] for _ in range(2)]
    dist.destroy_process_group()
    return {"tensor_gib_per_gpu": peaks[-1] / 2**30}


def loss_of(model: Any, tokens: Any) -> Any:
    """Of the next token, in fp32."""
    from torch.nn import functional

    return functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def step(
    model: Any,
    optimizers: tuple[Any, ...],
    loss: Callable[[], Any],
    plan: Mapping[str, Any],
    before: Callable[[], None] = lambda: None,
) -> None:
    """All micro-batches, each with what comes ``before`` it, and the update."""
    import torch

    micro_batches = plan["grad_accum"]
    for i in range(micro_batches):
        before()
        model.set_requires_gradient_sync(i == micro_batches - 1)
        (loss() / micro_batches).backward()
    if plan.get("clip"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad()


def _step(
    model: Any, optimizers: tuple[Any, ...], tracker: Any, loss: Callable[[], Any], plan: Mapping[str, Any]
) -> dict[str, int]:
    """One step; its peak by device."""
    tracker._peak_mem.clear()  # it has no other way to forget the step before
    tracker._peak_mem_snap.clear()
    step(model, optimizers, loss, plan, tracker.reset_mod_stats)
    return {
        device.type: int(sizes["Total"]) for device, sizes in tracker.get_tracker_snapshot("peak").items()
    }


if __name__ == "__main__":
    measure_cases("torch_tracked.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else "")
