"""A Llama whose backward keeps what fused kernels keep, and its FSDP2 units: what tracking.py measures."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

PRODUCT = torch.ops.aten.mm.default
LISTED = (PRODUCT, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
"""What selective recomputation keeps."""


class FusedNorm(torch.autograd.Function):
    """Shapes of a norm in one kernel: it keeps its input and a number a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        """As large as ``x``."""
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class FusedAttention(torch.autograd.Function):
    """Shapes of attention in one kernel: it keeps queries, keys, values, its result and a number a row."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        """As large as ``q``."""
        result = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, result, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Of all three."""
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Any) -> Any:
        """Normed ``x``."""
        return FusedNorm.apply(x, self.weight)


class Layer(nn.Module):
    """Attention and gated feed-forward, each with its norm and residual."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        width, self.dim, ffn = sizes["hidden"], sizes["head_dim"], sizes["ffn_hidden"]
        heads, kv = sizes["heads"] * self.dim, sizes["kv_heads"] * self.dim
        self.grouped = heads != kv
        self.norms = nn.ModuleList([Norm(width), Norm(width)])
        linear = partial(nn.Linear, bias=False)
        self.q, self.k, self.v, self.o = (
            linear(width, n) if n else linear(heads, width) for n in (heads, kv, kv, 0)
        )
        self.gate, self.up, self.down = linear(width, ffn), linear(width, ffn), linear(ffn, width)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        """As large as ``x``."""
        normed = self.norms[0](x)
        q, k, v = (p(normed).unflatten(-1, (-1, self.dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (_rotated(t, cosine, sine) for t in (q, k))
        if q.device.type == "cpu":
            context = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.grouped
            )
        else:
            context = FusedAttention.apply(q, k, v)
        x = x + self.o(context.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Model(nn.Module):
    """Embedding, layers under a recomputation policy, norm and head."""

    def __init__(self, sizes: Mapping[str, Any], recompute: str, saved_away: bool) -> None:
        super().__init__()
        self.recompute, self.saving = recompute, save_on_cpu if saved_away else nullcontext
        self.embedding = nn.Embedding(sizes["vocab"], sizes["hidden"])
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["layers"]))
        self.norm = Norm(sizes["hidden"])
        self.head = nn.Linear(sizes["hidden"], sizes["vocab"], bias=False)
        if sizes["tied"]:
            self.head.weight = self.embedding.weight
        for name in ("cosine", "sine"):
            table = torch.zeros(sizes["seq"], sizes["head_dim"], dtype=torch.bfloat16)
            self.register_buffer(name, table)

    def forward(self, tokens: Any) -> Any:
        """Logits."""
        x = self.embedding(tokens)
        keep = {"use_reentrant": False, "preserve_rng_state": False}
        if self.recompute.startswith("selective"):
            keep["context_fn"] = partial(_selective, self.recompute)
        for layer in self.layers:
            given = (x, self.cosine, self.sine)
            with self.saving():
                x = layer(*given) if self.recompute == "none" else checkpoint(layer, *given, **keep)
        return self.head(self.norm(x))


def _selective(kind: str) -> Any:
    """Keep attention and products, of these only every second for ``selective_op`` (torchtitan)."""
    seen = {True: 0, False: 0}

    def policy(ctx: Any, op: Any, *args: Any, **options: Any) -> Any:
        if op is PRODUCT:
            seen[ctx.is_recompute] += 1
            if kind == "selective_op" and seen[ctx.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in LISTED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def data_ranks(plan: Mapping[str, Any], device: str) -> Any:
    """Mesh of the ranks that share the weights."""
    shape = (plan["dp_replicate"], plan["dp_shard"])
    shape, names = (shape, ("replicate", "shard")) if shape[0] > 1 else (shape[1:], ("shard",))
    return init_device_mesh(device, shape, mesh_dim_names=names)


def parallelised(model: Any, plan: Mapping[str, Any], mesh: Any, layers: Iterable[Any] | None = None) -> None:
    """Shard ``model`` by layers; embedding and head too where ``wrap`` is ``titan``, else they are the root's."""
    dtypes = {name: getattr(torch, plan[name]) for name in ("param_dtype", "reduce_dtype")}
    reshard = plan["reshard_after_forward"]
    shard = partial(
        fully_shard,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(**dtypes),
        offload_policy=CPUOffloadPolicy(pin_memory=False) if plan["cpu_offload_weights"] else OffloadPolicy(),
    )
    if plan["wrap"] == "titan":
        shard(model.embedding, reshard_after_forward=reshard)
        shard(model.head, reshard_after_forward=False)
    for layer in model.layers if layers is None else layers:
        shard(layer, reshard_after_forward=reshard)
    shard(model, reshard_after_forward=None if reshard else False)
