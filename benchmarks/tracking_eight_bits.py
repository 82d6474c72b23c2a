"""Live tensors of torchao's linear layers in 8 bits under FSDP2 by PyTorch's own tracker, kept as data.

    pip install torch==2.13.0 torchao==0.18.0
    python benchmarks/tracking_eight_bits.py    # write tests/published/torch_eight_bits.jsonl again

As tracking.py, whose Llama it has; all linear layers but the head are torchao's, scaled by tensor, in eager PyTorch.
"""

import sys
from collections.abc import Mapping
from typing import Any

from own_cases import measure_cases
from tracking import loss_of, tracked
from tracking import row_of as row_in_16_bits

CASES: Mapping[str, Mapping[str, Any]] = {
    "8b-4/dp8-none-512-kept": {"seq": 512, "reshard": False},
    "7b-6/dp8-none-1024-kept-ends-bf16": {
        "seq": 1024, "reshard": False, "wrap": "titan", "master_dtype": "bfloat16", "reduce_dtype": "bfloat16",
    },
    "8b-6/dp8-full-512-ends": {"seq": 512, "recompute": "full", "wrap": "titan"},
    "7b-6/dp16-none-2048": {"seq": 2048, "shard": 16},
    "1b-8/dp8-full-1024-kept-accumulated": {"seq": 1024, "recompute": "full", "reshard": False, "grad_accum": 4},
    "70b-3/dp32-every_second-1024-ends": {"seq": 1024, "recompute": "selective_op", "wrap": "titan", "shard": 32},
}  # fmt: skip
"""Width and layers, data ranks, recomputation, tokens -> what differs from what is usual."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    row = row_in_16_bits(name, CASES)
    row["parallel"] |= {"precision": "fp8", "narrow_weight_gathers": True}
    return row | {
        "id": f"torch-eight-bits/{name}",
        "source": "benchmarks/tracking_eight_bits.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "series": "torch-tracker of 8 bits",
    }


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from tracked_model import model_of, parallelised

    def built() -> Any:
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
        return convert_to_float8_training(
            model_of(row), config=config, module_filter_fn=lambda module, name: "layers." in name
        )

    return tracked(row, built, parallelised, loss_of)


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_eight_bits.jsonl", CASES, row_of, measured, wanted)
