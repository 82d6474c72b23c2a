"""Live tensors of steps whose backward steps each weight, by PyTorch's own tracker, kept as data.

    pip install torch==2.13.0
    python benchmarks/tracking_early_steps.py    # write tests/published/torch_early_steps.jsonl again

As tracking.py, whose Llama it has, but that each weight has an optimizer of its own, which steps it as its gradient is
there. On one device nothing is wrapped.

Source: torchtitan 0.2.2 ``torchtitan/components/optimizer.py`` (``OptimizersInBackwardContainer``), whose hooks these
are.
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from own_cases import measure_cases
from tracked_optimizers import OPTIMIZERS
from tracking import loss_of, tracked
from tracking import row_of as row_of_any

IN_BF16: Mapping[str, Any] = {"master_dtype": "bfloat16", "reduce_dtype": "bfloat16"}

CASES: Mapping[str, Mapping[str, Any]] = {
    "7b-6/one-full-512-bf16": {"seq": 512, "shard": 1, "recompute": "full", **IN_BF16},
    "7b-6/one-none-512-bf16-foreach": {"seq": 512, "shard": 1, "optim": "adamw_foreach", **IN_BF16},
    "7b-6/one-full-2048-bf16-foreach": {
        "seq": 2048, "shard": 1, "recompute": "full", "optim": "adamw_foreach", **IN_BF16,
    },
    "8b-4/one-full-512-bf16-foreach": {
        "seq": 512, "shard": 1, "recompute": "full", "optim": "adamw_foreach", **IN_BF16,
    },
    "8b-4/one-full-512-bf16": {"seq": 512, "shard": 1, "recompute": "full", **IN_BF16},
    "8b-16/one-none-512-bf16-tied": {"seq": 512, "shard": 1, "tied": True, **IN_BF16},
    "8b-4/one-none-2048-bf16": {"seq": 2048, "shard": 1, **IN_BF16},
    "1b-8/one-full-256-bf16-tied": {"seq": 256, "shard": 1, "recompute": "full", "tied": True, **IN_BF16},
    "1b-8/one-none-1024-bf16-tied-foreach": {
        "seq": 1024, "shard": 1, "tied": True, "optim": "adamw_foreach", **IN_BF16,
    },
    "7bv-6/one-full-512-bf16-foreach": {
        "seq": 512, "shard": 1, "recompute": "full", "optim": "adamw_foreach", **IN_BF16,
    },
    "7bv-6/one-full-8192-bf16": {"seq": 8192, "shard": 1, "recompute": "full", **IN_BF16},
    "7bv-6/one-none-256-bf16": {"seq": 256, "shard": 1, **IN_BF16},
    "7b-6/one-none-512-fp32": {"seq": 512, "shard": 1, "precision": "fp32", "param_dtype": "float32"},
    "8b-6/dp8-full-512-ends": {"seq": 512, "recompute": "full", "wrap": "titan"},
    "8b-6/dp8-none-1024": {"seq": 1024},
    "7b-6/dp8-full-512": {"seq": 512, "recompute": "full"},
    "7b-6/dp8-none-512-ends-foreach": {"seq": 512, "wrap": "titan", "optim": "adamw_foreach"},
    "7b-6/dp2-full-256-ends-foreach": {
        "seq": 256, "shard": 2, "recompute": "full", "wrap": "titan", "optim": "adamw_foreach",
    },
    "7b-6/dp2-full-256-foreach": {"seq": 256, "shard": 2, "recompute": "full", "optim": "adamw_foreach"},
    "7bv-6/dp2-full-256-ends-bf16-foreach": {
        "seq": 256, "shard": 2, "recompute": "full", "wrap": "titan", "optim": "adamw_foreach", **IN_BF16,
    },
    "8b-2/dp2-full-256-ends-foreach": {
        "seq": 256, "shard": 2, "recompute": "full", "wrap": "titan", "optim": "adamw_foreach",
    },
    "8b-2/dp2-full-256-ends": {"seq": 256, "shard": 2, "recompute": "full", "wrap": "titan"},
    "1b-8/dp8-none-1024-tied": {"seq": 1024, "tied": True},
    "1b-8/dp8-full-256-tied": {"seq": 256, "recompute": "full", "tied": True},
    "7bv-6/dp4-full-512-ends-kept": {
        "seq": 512, "shard": 4, "recompute": "full", "wrap": "titan", "reshard": False,
    },
    "70b-3/dp2-full-512-ends-bf16": {
        "seq": 512, "shard": 2, "recompute": "full", "wrap": "titan", **IN_BF16,
    },
    "8b-6/dp8-tp2-full-512-ends": {"seq": 512, "tp": 2, "recompute": "full", "wrap": "titan"},
}  # fmt: skip
"""Width and layers, ranks that share states, recomputation, tokens -> what differs from what is usual."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    row = row_of_any(name, CASES)
    row["parallel"] |= {"step_in_backward": True}
    if row["parallel"]["dp"] == 1:
        row["parallel"] |= {"sharding": "NO_SHARD"}
        del row["parallel"]["reshard_after_forward"]
    return row | {
        "id": f"torch-early-steps/{name}",
        "source": "benchmarks/tracking_early_steps.py (MemTracker of PyTorch, fake tensors, second step)",
        "series": "torch-tracker of steps within the backward",
    }


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    from tracked_model import model_of, parallelised

    built = partial(model_of, row)
    if row["parallel"]["dp"] > 1:
        return tracked(row, built, parallelised, loss_of, step_early)
    return _on_one_device(row, built)


def step_early(model: Any, optimizer: str) -> tuple[Any, ...]:
    """Let each weight be stepped once its gradient is there; no optimizer is left to step after the backward."""
    from torch import nn

    def stepping(weight: Any) -> Any:
        own = OPTIMIZERS[optimizer](nn.ParameterList([weight]))

        def hook(_: Any) -> None:
            for each in own:
                each.step()
                each.zero_grad()

        return hook

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(stepping(weight))
    return ()


def _on_one_device(row: Mapping[str, Any], built: Any) -> dict[str, float]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    plan = row["parallel"]
    with FakeTensorMode():
        model = built()
        tokens = torch.zeros((plan["micro_batch"], row["model"]["seq"]), dtype=torch.int64)
        step_early(model, plan["optim"])
        tracker = MemTracker()
        tracker.track_external(model, tokens)
        with tracker:
            for _ in range(2):
                tracker._peak_mem.clear()  # it has no other way to forget the step before
                tracker._peak_mem_snap.clear()
                tracker.reset_mod_stats()
                loss_of(model, tokens).backward()
                peak = sum(int(sizes["Total"]) for sizes in tracker.get_tracker_snapshot("peak").values())
    return {"tensor_gib_per_gpu": peak / 2**30}


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_early_steps.jsonl", CASES, row_of, measured, wanted)
