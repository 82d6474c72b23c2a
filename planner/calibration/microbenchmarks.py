"""Measurements by PyTorch on the machine at hand: products, attention, copies, launches, collectives.

Alone or, for collectives, under ``torchrun``, one process per device. Imported only where it runs.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from planner.calibration.measurements import (
    AttentionMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    LaunchMeasurement,
    MatmulMeasurement,
    Measurement,
    Precision,
)
from planner.errors import InputError

Device = Literal["cpu", "cuda"]
Say = Callable[[str], None]

WARM_UPS = 3
ROUNDS = 5
"""The median of so many counts."""
LEAST_ROUND_SECONDS = 0.01
"""Calls are repeated until a round takes this long, so that clocks and launches do not matter."""
MOST_CALLS = 2000


class Sizes(NamedTuple):
    """What is measured on one kind of device: large enough to fill it, small enough to end soon."""

    dtype: Precision
    matmuls: Sequence[tuple[int, int, int]]
    attentions: Sequence[tuple[int, int, int, int, int]]
    """(batch, heads, kv_heads, seq, head_dim)."""
    copies: Sequence[int]
    """Bytes of one buffer."""
    messages: Sequence[int]
    """Bytes of a collective."""
    collectives: Sequence[str]
    backend: str


SIZES: Mapping[Device, Sizes] = {
    "cuda": Sizes(
        dtype="bf16",
        matmuls=(
            (1024, 4096, 4096),
            (2048, 8192, 8192),
            (4096, 4096, 4096),
            (4096, 14336, 4096),
            (8192, 4096, 14336),
            (8192, 8192, 8192),
            (16384, 8192, 8192),
        ),
        attentions=(
            (4, 32, 8, 2048, 128),
            (2, 32, 32, 4096, 128),
            (1, 32, 8, 8192, 128),
            (1, 32, 8, 16384, 128),
        ),
        copies=tuple(2**exponent for exponent in range(26, 31)),
        messages=tuple(2**exponent for exponent in range(10, 31)),
        collectives=("all_reduce", "all_gather", "reduce_scatter"),
        backend="nccl",
    ),
    "cpu": Sizes(
        dtype="fp32",
        matmuls=((256, 256, 256), (512, 512, 512), (1024, 512, 256)),
        attentions=((1, 4, 4, 256, 64), (1, 4, 4, 512, 64)),
        copies=(2**22, 2**24),
        messages=tuple(2**exponent for exponent in range(10, 23, 2)),
        collectives=("all_reduce", "all_gather"),
        backend="gloo",
    ),
}


def measure(device: Device, say: Say) -> tuple[Measurement, ...] | None:
    """Everything that this machine can tell; None on the ranks that only take part.

    Raises ``InputError`` without PyTorch, or without a GPU for ``cuda``.
    """
    bench = _Bench(device)
    found: list[Measurement] = []
    kinds: dict[str, Callable[[], Iterator[Measurement]]] = {
        "launches": bench.launches,
        "copies": bench.copies,
        "matrix products": bench.matmuls,
        "attention": bench.attentions,
        "collectives": bench.collectives,
    }
    with bench:
        for name, kind in kinds.items():
            say(f"measuring {name}")
            found += kind()
    return tuple(found) if bench.rank == 0 else None


class _Bench:
    """One process of the benchmark: its device, and its group while it is open."""

    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError as error:
            raise InputError("--measure needs PyTorch: pip install 'meshwright[torch]'") from error
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device cuda: PyTorch finds no GPU on this machine; use --device cpu")
        self.torch = torch
        self.sizes = SIZES[device]
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.nodes = self.ranks // int(os.environ.get("LOCAL_WORLD_SIZE", str(self.ranks)))
        self.device = torch.device(device, local if device == "cuda" else None)
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[self.sizes.dtype]

    def __enter__(self) -> "_Bench":
        self.torch.manual_seed(0)
        if self.device.type == "cuda":
            self.torch.cuda.set_device(self.device)
        if self.ranks > 1:
            self.torch.distributed.init_process_group(self.sizes.backend)
        return self

    def __exit__(self, *reason: object) -> None:
        if self.ranks > 1:
            self.torch.distributed.destroy_process_group()

    def launches(self) -> Iterator[Measurement]:
        """A kernel of one element, again and again."""
        one = self.torch.zeros(1, device=self.device)
        for _ in range(ROUNDS):
            yield LaunchMeasurement(seconds=self._seconds(lambda: one.add_(1.0)))

    def copies(self) -> Iterator[Measurement]:
        """From one buffer to another."""
        for size in self.sizes.copies:
            source = self.torch.zeros(size, dtype=self.torch.uint8, device=self.device)
            target = self.torch.empty_like(source)
            yield CopyMeasurement(bytes=2 * size, seconds=self._seconds(_call(target.copy_, source)))

    def matmuls(self) -> Iterator[Measurement]:
        """On random operands, which draw more power than zeros."""
        for m, n, k in self.sizes.matmuls:
            seconds = self._seconds(_call(self.torch.matmul, self._random(m, k), self._random(k, n)))
            yield MatmulMeasurement(m=m, n=n, k=k, dtype=self.sizes.dtype, seconds=seconds)

    def attentions(self) -> Iterator[Measurement]:
        """Causal, forward, and backward alone."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        for batch, heads, kv_heads, seq, dim in self.sizes.attentions:
            query = self._random(batch, heads, seq, dim).requires_grad_()
            keys = [self._random(batch, kv_heads, seq, dim).requires_grad_() for _ in range(2)]
            forward = _call(attend, query, *keys, is_causal=True, enable_gqa=kv_heads != heads)
            out = forward()
            backward = _call(
                self.torch.autograd.grad, out, (query, *keys), self.torch.ones_like(out), retain_graph=True
            )
            for call, back in ((forward, False), (backward, True)):
                yield AttentionMeasurement(
                    batch=batch,
                    heads=heads,
                    kv_heads=kv_heads,
                    seq=seq,
                    head_dim=dim,
                    backward=back,
                    dtype=self.sizes.dtype,
                    seconds=self._seconds(call),
                )

    def collectives(self) -> Iterator[Measurement]:
        """Of all ranks; nothing where there is one."""
        if self.ranks == 1:
            return
        for op in self.sizes.collectives:
            for size in self.sizes.messages:
                seconds = self._seconds(self._collective(op, size), calls=20)
                yield CollectiveMeasurement.model_validate(
                    {"op": op, "bytes": size, "ranks": self.ranks, "nodes": self.nodes, "seconds": seconds}
                )

    def _collective(self, op: str, size: int) -> Callable[[], Any]:
        """One call over ``size`` bytes in all: what a rank holds after a gather, before a scatter."""
        group = self.torch.distributed
        elements = max(1, size // 4 // self.ranks) * self.ranks
        whole = self.torch.ones(elements, device=self.device)
        part = self.torch.ones(elements // self.ranks, device=self.device)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": _call(group.all_reduce, whole),
            "all_gather": _call(_either(group, "all_gather_single", "all_gather_into_tensor"), whole, part),
            "reduce_scatter": _call(
                _either(group, "reduce_scatter_single", "reduce_scatter_tensor"), part, whole
            ),
        }
        return calls[op]

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype)

    def _seconds(self, call: Callable[[], Any], calls: int | None = None) -> float:
        """Of one call, the median of `ROUNDS`; ``calls`` is fixed where all ranks must agree."""
        for _ in range(WARM_UPS):
            call()
        if calls is None:
            once = self._round(call, WARM_UPS)
            calls = max(1, min(MOST_CALLS, int(LEAST_ROUND_SECONDS / once)))
        return median(self._round(call, calls) for _ in range(ROUNDS))

    def _round(self, call: Callable[[], Any], calls: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter() - start) / calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


def _either(module: Any, *names: str) -> Callable[..., Any]:
    """The first of the names that this version of PyTorch has."""
    found: Callable[..., Any] = next(getattr(module, name) for name in names if hasattr(module, name))
    return found


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **keywords)
