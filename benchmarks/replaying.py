"""What PyTorch's allocator reserves in training steps: their allocations, in order, through a replayed allocator.

    pip install torch==2.13.0
    python benchmarks/replaying.py    # write tests/published/torch_replayed.jsonl again

As tracking.py: a Llama runs two steps under FSDP2 with fake tensors, on one process that takes itself for rank 0 of
many. Here each storage is recorded as it is made, resized and freed, with its stream, and the record is replayed twice:
with segments as they are by default, and with expandable ones. What kernels and libraries take for themselves is left
out.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tracking
from own_cases import measure_cases
from replayed_allocator import Allocator, Block

if TYPE_CHECKING:
    from recorded_steps import Event

CASES: Mapping[str, Mapping[str, Any]] = {
    "8b-32/dp8-none-4096-ends": {"seq": 4096, "wrap": "titan"},
    "8b-32/dp8-every_2nd_layer-4096-ends": {
        "seq": 4096, "wrap": "titan", "recompute": "full every 2nd layer",
    },
    "8b-32/dp8-full-4096-ends": {"seq": 4096, "wrap": "titan", "recompute": "full"},
    "8b-32/dp8-every_second-8192-ends-mb2": {
        "seq": 8192, "wrap": "titan", "recompute": "selective_op", "micro_batch": 2,
    },
    "8b-32/dp128-every_second-8192-ends-mb2": {
        "seq": 8192, "wrap": "titan", "recompute": "selective_op", "micro_batch": 2, "shard": 128,
    },
    "8b-32/dp16-full-8192-ends-accumulated": {
        "seq": 8192, "wrap": "titan", "recompute": "full", "shard": 16, "grad_accum": 2,
    },
    "7b-32/dp8-full-4096-mb2": {"seq": 4096, "recompute": "full", "micro_batch": 2},
    "7b-32/dp32-none-4096": {"seq": 4096, "shard": 32},
    "1b-16/dp8-none-4096": {"seq": 4096},
    "7b-32/dp8-full-4096-kept": {"seq": 4096, "recompute": "full", "reshard": False},
}  # fmt: skip
"""As `tracking.CASES`, of whole models."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    row = tracking.row_of(name, CASES)
    source = "benchmarks/replaying.py (allocations of PyTorch, fake tensors, two steps, replayed)"
    return {**row, "id": f"torch-replayed/{name}", "source": source}


def replayed(events: "Sequence[Event]", expandable: bool) -> Allocator:
    """The allocator once all ``events`` are over."""
    allocator = Allocator(expandable)
    blocks: dict[int, Block] = {}
    for event in events:
        if event.size:
            blocks[event.storage] = allocator.take(event.size, event.stream)
        else:
            allocator.give(blocks.pop(event.storage))
    return allocator


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors, and what is reserved for them."""
    from recorded_steps import recorded

    events = recorded(row)
    usual, expanding = (replayed(events, expandable) for expandable in (False, True))
    return {
        "tensor_gib_per_gpu": usual.peak_live / 2**30,
        "reserved_gib_per_gpu": usual.reserved / 2**30,
        "reserved_expandable_gib_per_gpu": expanding.reserved / 2**30,
    }


if __name__ == "__main__":
    measure_cases("torch_replayed.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else "")
