"""Live tensors of the first FSDP by PyTorch's own tracker, kept as data.

    pip install torch==2.13.0
    python benchmarks/tracking_flat.py    # write tests/published/torch_flat.jsonl again

As tracking_replicas.py, with small models whose tensors are real: flat parameters get and give back the memory of their
storages, which the tracker follows. Other ranks are imagined: shards are those of as many. Adapters lie in one unit
with the weights that they adapt; with litgpt-fsdp all micro-batches but the last are within ``no_sync``, and tokens so
few that it hardly matters whose modules these are.

Source: torch.distributed._tools.mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from own_cases import measure_cases
from tracked_optimizers import OPTIMIZERS
from tracking import SHARDINGS, USUAL, loss_of
from tracking_replicas import IN_BF16, IN_FP32, SIZES

ADAPTER: Mapping[str, Any] = {"r": 8, "target_modules": ["q_proj", "v_proj"]}

CASES: Mapping[str, Mapping[str, Any]] = {
    "small-6/dp8-none-256": {},
    "small-6/dp8-full-1024": {"recompute": "full"},
    "wide-4/dp16-none-128-fp32_reduced": {"shard": 16, "reduce_dtype": "float32"},
    "wide-4/dp4-none-256-accumulated": {"shard": 4, "grad_accum": 2},
    "small-6/dp8-none-256-kept": {"reshard": False},
    "small-12/dp2-full-64": {"shard": 2, "recompute": "full"},
    "wide-4/dp8-full-512-bf16": {**IN_BF16, "recompute": "full"},
    "small-6/dp4-none-128-fp32": {**IN_FP32, "reduce_dtype": "float32", "shard": 4},
    "wide-4/dp8-none-64-foreach": {"optim": "adamw_foreach"},
    "small-6/dp8-none-128-kept-accumulated": {"reshard": False, "grad_accum": 2},
    "wide-4/dp2-full-1024-momentum": {"shard": 2, "recompute": "full", "optim": "sgd_momentum"},
    "wide-4/dp8-none-512-bf16-kept": {**IN_BF16, "reshard": False},
    "wide-4/dp8-none-256-bf16-adapters": {**IN_BF16, "adapter": ADAPTER},
    "wide-6/dp2-full-64-bf16-adapters": {**IN_BF16, "shard": 2, "recompute": "full", "adapter": ADAPTER},
    "small-12/dp4-full-64-fp32_masters-adapters": {"shard": 4, "recompute": "full", "adapter": ADAPTER},
    "wide-6/dp2-full-64-bf16-adapters-no_sync": {
        **IN_BF16, "shard": 2, "recompute": "full", "grad_accum": 2, "adapter": ADAPTER, "stack": "litgpt-fsdp",
    },
    "wide-6/dp8-full-64-bf16-adapters-no_sync": {
        **IN_BF16, "recompute": "full", "grad_accum": 4, "adapter": ADAPTER, "stack": "litgpt-fsdp",
    },
    "wide-6/dp4-full-64-bf16-no_sync": {
        **IN_BF16, "shard": 4, "recompute": "full", "grad_accum": 3, "stack": "litgpt-fsdp",
    },
}  # fmt: skip
"""Width and layers, ranks, recomputation, tokens -> what differs from what is usual."""

BUFFERS = ("_local_shard", "_mp_shard", "_full_param_padded", "_full_prec_full_param_padded")
"""Tensors of a flat parameter, whose memory comes and goes."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    case = {**USUAL, "reduce_dtype": "bfloat16", "stack": "torch-fsdp1", **CASES[name]}
    size, layers = name.partition("/")[0].split("-")
    shard, reshard, adapter = case.pop("shard"), case.pop("reshard"), case.pop("adapter", None)
    del case["replicate"], case["wrap"]
    model = {"name": "llama-style", "layers": int(layers), **SIZES[size], "gated_mlp": True, "tied": False}
    return {
        "id": f"torch-flat/{name}",
        "source": "benchmarks/tracking_flat.py (MemTracker of PyTorch, real tensors, third step)",
        "quality": "A",
        "series": "torch-flat",
        "model": {**model, "seq": int(name.split("/")[1].split("-")[2])},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": shard},
        **({"adapter": adapter} if adapter else {}),
        "parallel": {
            "dp": shard, "dp_shard": shard, "dp_replicate": 1, "pp": 1, "cp": 1, "ep": 1,
            "sharding": SHARDINGS[False, reshard], "attn": "flash", "loss": "ce_fp32",
            "global_batch": shard * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the third step of ``row``, when buffers and the optimizer's states are made."""
    import torch
    import torch.distributed as dist
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.testing._internal.distributed.fake_pg import FakeStore

    plan = row["parallel"]
    dist.init_process_group("fake", rank=0, world_size=plan["dp"], store=FakeStore())
    model = _sharded(row)
    optimizers = OPTIMIZERS[plan["optim"]](model)
    tokens = torch.zeros((plan["micro_batch"], row["model"]["seq"]), dtype=torch.int64)
    waits = plan["grad_accum"] - 1 if plan["stack"] == "litgpt-fsdp" else 0
    within = [model.no_sync] * waits + [nullcontext] * (plan["grad_accum"] - waits)
    _step(model, optimizers, tokens, within)
    tracker = MemTracker()
    # Modules' parameters are views of flat ones by then: these are tracked instead.
    tracker._track_module_params_and_buffers = lambda module, install_grad_hooks=True: (0, 0)
    tracker.track_external(*_lasting(model, optimizers), tokens)
    with tracker:
        for _ in range(2):
            tracker._peak_mem.clear()  # it has no other way to forget the step before
            tracker._peak_mem_snap.clear()
            _step(model, optimizers, tokens, within, tracker.reset_mod_stats)
    peak = sum(int(sizes["Total"]) for sizes in tracker.get_tracker_snapshot("peak").values())
    dist.destroy_process_group()
    return {"tensor_gib_per_gpu": peak / 2**30}


def _sharded(row: Mapping[str, Any]) -> Any:
    """The model of ``row`` with its layers as units of FSDP, all else the root's."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from tracked_model import Layer, Model

    plan = row["parallel"]
    torch.set_default_dtype(getattr(torch, plan["master_dtype"]))
    model = Model(row["model"], plan["recompute"], False)
    if "adapter" in row:
        _adapt(model, row["adapter"]["r"])
    torch.set_default_dtype(torch.float32)
    dtypes = {name: getattr(torch, plan[name]) for name in ("param_dtype", "reduce_dtype")}
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[plan["sharding"]],
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        mixed_precision=MixedPrecision(**dtypes),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def _adapt(model: Any, rank: int) -> None:
    """Freeze ``model`` but for adapters on queries and values, as litgpt's have them within blocks."""
    from tracked_model import Adapted

    model.requires_grad_(False)
    for layer in model.layers:
        own = layer.attention
        own.q, own.v = Adapted(own.q, rank), Adapted(own.v, rank)


def _lasting(model: Any, optimizers: tuple[Any, ...]) -> list[Any]:
    """Tensors that outlive a step: those of flat parameters, buffers, the optimizers' states."""
    import torch

    flat = [unit._handle.flat_param for unit in model.fsdp_modules(model)]
    states = [t for o in optimizers for state in o.state.values() for t in state.values()]
    buffers = [getattr(weight, name) for weight in flat for name in BUFFERS if hasattr(weight, name)]
    return [*buffers, *model.buffers(), *(t for t in states if isinstance(t, torch.Tensor))]


def _step(
    model: Any,
    optimizers: tuple[Any, ...],
    tokens: Any,
    within: Sequence[Callable[[], AbstractContextManager[Any]]],
    before: Callable[[], None] = lambda: None,
) -> None:
    """One step, of a micro-batch ``within`` each of what says whether ranks sum gradients; ``before`` comes first."""
    for context in within:
        before()
        with context():
            (loss_of(model, tokens) / len(within)).backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad()


if __name__ == "__main__":
    measure_cases("torch_flat.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else "")
