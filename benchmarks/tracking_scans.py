"""What the libraries' kernels of linear recurrences keep for their backward, and hold in it, kept as data.

    pip install torch==2.13.0 triton==3.9.0 einops fla-core==0.6.0
    git clone https://github.com/state-spaces/mamba && git -C mamba checkout e9594ce
    PYTHONPATH=mamba python benchmarks/tracking_scans.py    # write tests/data/scan_kept.jsonl again

Autograd functions run as they are, on CPU tensors; only the kernels that they launch are left out, so that what is
allocated and saved is what it would be on a GPU. The convolution's extension is a stand-in that makes what it makes.
"""

import contextlib
import json
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import KernelInterface

OUT = Path(__file__).parents[1] / "tests" / "data" / "scan_kept.jsonl"

CASES: tuple[Mapping[str, Any], ...] = (
    {"rule": "delta", "batch": 1, "seq": 2048, "groups": 16, "heads": 32, "key_dim": 128, "value_dim": 128},
    {"rule": "delta", "batch": 2, "seq": 1024, "groups": 8, "heads": 8, "key_dim": 64, "value_dim": 128},
    {
        "rule": "ssd",
        "batch": 1,
        "seq": 4096,
        "groups": 8,
        "heads": 96,
        "key_dim": 128,
        "value_dim": 80,
        "chunk": 256,
    },
    {
        "rule": "ssd",
        "batch": 2,
        "seq": 1024,
        "groups": 8,
        "heads": 128,
        "key_dim": 128,
        "value_dim": 64,
        "chunk": 128,
    },
)

DELTA_CHUNK = 64


class Live(TorchDispatchMode):
    """Bytes of the arrays that are alive among those made under it, and most of them at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        for array in (a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)):
            self._seen.setdefault(array.untyped_storage(), None)
        made = func(*args, **(kwargs or {}))
        for array in made if isinstance(made, tuple | list) else (made,):
            if isinstance(array, torch.Tensor):
                self._count(array.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen[storage] = None
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def without_kernels() -> None:
    """Leave out every launch; give the convolution's extension what it would make."""
    Autotuner.best_config = property(lambda self: self.configs[0])
    KernelInterface.__getitem__ = lambda self, grid: lambda *args, **kwargs: None
    torch.cuda.device = lambda index: contextlib.nullcontext()
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=132)
    functions = types.ModuleType("causal_conv1d.cpp_functions")
    functions.causal_conv1d_fwd_function = lambda x, *rest: torch.empty_like(x)  # type: ignore[attr-defined]
    functions.causal_conv1d_bwd_function = lambda x, weight, bias, *rest: (  # type: ignore[attr-defined]
        torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias), None,
    )  # fmt: skip
    functions.causal_conv1d_update_function = None  # type: ignore[attr-defined]
    package = types.ModuleType("causal_conv1d")
    package.causal_conv1d_fn = None  # type: ignore[attr-defined]
    sys.modules |= {"causal_conv1d": package, functions.__name__: functions}


def parameter(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Zeros with a gradient."""
    return torch.zeros(*sizes, dtype=dtype, requires_grad=True)


def delta(case: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
    """fla's gated delta rule, as transformers and Megatron-LM call it."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    shape = (case["batch"], case["seq"])
    q, k = (parameter(*shape, case["groups"], case["key_dim"]) for _ in "qk")
    v = parameter(*shape, case["heads"], case["value_dim"])
    decay = parameter(*shape, case["heads"], dtype=torch.float32)
    strength = parameter(*shape, case["heads"])
    return lambda: chunk_gated_delta_rule(q, k, v, decay, strength, use_qk_l2norm_in_kernel=True)[0]


def ssd(case: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
    """mamba_ssm's convolution and scan in one function, as Megatron-LM calls it: norm and projection follow it."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

    heads, inner = case["heads"], case["heads"] * case["value_dim"]
    channels = inner + 2 * case["groups"] * case["key_dim"]
    projected = parameter(case["batch"], case["seq"], inner + channels + heads)
    weight, bias = parameter(channels, 4), parameter(channels)
    rate, skip, step = (parameter(heads, dtype=torch.float32) for _ in range(3))
    return lambda: mamba_split_conv1d_scan_combined(
        projected, weight, bias, step, rate, skip, case["chunk"], rmsnorm_weight=parameter(inner),
        headdim=case["value_dim"], ngroups=case["groups"], norm_before_gate=False,
    )  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    """Every case with the bytes that it keeps, weights left out, and the most that its backward has made at a time."""
    for given in CASES:
        case = {"chunk": DELTA_CHUNK, **given}
        call = {"delta": delta, "ssd": ssd}[case["rule"]](case)
        kept: dict[int, int] = {}

        def pack(array: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            if array.dim() > 2 or not array.is_leaf or not array.requires_grad:
                kept[array.data_ptr()] = array.nbytes
            return array

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda array: array):
            result = call()
        gradient = torch.zeros_like(result)
        with Live() as live:
            result.backward(gradient)
        yield {**case, "kept_bytes": sum(kept.values()), "backward_bytes": live.peak}


def main() -> None:
    """Write the rows."""
    without_kernels()
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows()))


if __name__ == "__main__":
    main()
