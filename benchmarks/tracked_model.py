"""A Llama whose backward keeps what fused kernels keep, and its FSDP2 units: what tracking.py measures."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental._context_parallel._attention import (
    _templated_ring_attention,
    _templated_ring_attention_backward,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

PRODUCT = torch.ops.aten.mm.default
LISTED = (
    PRODUCT,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_to_all_single.default,
)
"""What selective recomputation keeps.

Source: pytorch/torchtitan ``torchtitan/distributed/activation_checkpoint.py``.
"""


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


class RingAttention(torch.autograd.Function):
    """PyTorch's attention over a split sequence, by its own steps, around kernels of which only shapes are made.

    Rank 0 has a first and a last piece; keys and values of all ranks are gathered once, in either pass.
    """

    @staticmethod
    def forward(ctx: Any, group: Any, q: Any, k: Any, v: Any) -> Any:
        """As large as ``q``."""
        result, normaliser = _templated_ring_attention(group, 2, _kernel, q, k, v, is_causal=True)
        ctx.group = group
        ctx.save_for_backward(q, k, v, result, normaliser)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Of queries, keys and values."""
        found = _templated_ring_attention_backward(
            ctx.group, 2, _kernel_backward, gradient, "gradient", *ctx.saved_tensors, is_causal=True
        )
        return None, *found


def _kernel(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _kernel_backward(query: Any, key: Any, value: Any, **given: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Any) -> Any:
        """Normed ``x``, of which tensor ranks may have a part of the sequence each."""
        if not isinstance(x, DTensor):
            return FusedNorm.apply(x, self.weight)
        weight = self.weight.to_local(grad_placements=[Partial()])
        normed = FusedNorm.apply(x.to_local(), weight)
        return DTensor.from_local(normed, x.device_mesh, x.placements, run_check=False)


class Attention(nn.Module):
    """Projections around scaled dot products of whole heads, as many as this rank has."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        width, self.dim = sizes["hidden"], sizes["head_dim"]
        heads, kv = sizes["heads"] * self.dim, sizes["kv_heads"] * self.dim
        self.grouped, self.context = heads != kv, None
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (heads, kv, kv))
        self.o = nn.Linear(heads, width, bias=False)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        """As large as ``x``."""
        q, k, v = (p(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (_rotated(t, cosine, sine) for t in (q, k))
        if self.context is not None:
            context = RingAttention.apply(self.context, q, k, v)
        elif q.device.type == "cpu":
            context = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.grouped
            )
        else:
            context = FusedAttention.apply(q, k, v)
        return self.o(context.transpose(1, 2).flatten(2))


class Adapted(nn.Module):
    """A linear module beside an adapter: ``y + B A x``."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        """As large as what ``base`` makes."""
        return self.base(x) + self.up(self.down(x))


class FeedForward(nn.Module):
    """Gated by SiLU, over one part of the sequence after the other."""

    def __init__(self, width: int, ffn: int, tiles: int = 1) -> None:
        super().__init__()
        self.tiles = tiles
        self.gate, self.up = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Any) -> Any:
        """As large as ``x``."""
        if self.tiles == 1:
            return self._of_tile(x)
        return torch.cat([self._of_tile(tile) for tile in x.chunk(self.tiles, dim=1)], dim=1)

    def _of_tile(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))

    @staticmethod
    def styles(between: Any) -> dict[str, Any]:
        """How tensor ranks share it; what they hand on lies ``between`` layers' products."""
        return {
            "": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
            ".gate": ColwiseParallel(),
            ".up": ColwiseParallel(),
            ".down": RowwiseParallel(output_layouts=between),
        }


class Layer(nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(sizes["hidden"]), Norm(sizes["hidden"])])
        self.attention = Attention(sizes)
        self.feed_forward = FeedForward(sizes["hidden"], sizes["ffn_hidden"], sizes.get("mlp_tiles", 1))

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        """As large as ``x``."""
        x = x + self.attention(self.norms[0](x), cosine, sine)
        return x + self.feed_forward(self.norms[1](x))


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Model(nn.Module):
    """Embedding, layers under a recomputation policy, norm and head."""

    WRAPPED: Mapping[str, Any] = MappingProxyType({"use_reentrant": False, "preserve_rng_state": False})
    """How PyTorch wraps a layer that is computed again."""

    def __init__(self, sizes: Mapping[str, Any], recompute: str, saved_away: bool) -> None:
        super().__init__()
        self.recompute, self.saving = recompute, save_on_cpu if saved_away else nullcontext
        self.every = int("".join(filter(str.isdigit, recompute)) or 1)
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
        return self.head(self.norm(self.through_layers(self.embedding(tokens))))

    def through_layers(self, x: Any) -> Any:
        """What they make of ``x``, each computed again in the backward where the policy says so."""
        keep = dict(self.WRAPPED)
        if self.recompute.startswith("selective"):
            keep["context_fn"] = partial(_selective, self.recompute)
        for i, layer in enumerate(self.layers):
            given, kept = (x, self.cosine, self.sine), self.recompute == "none" or i % self.every
            with self.saving():
                x = layer(*given) if kept else checkpoint(layer, *given, **keep)
        return x


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


def ranks_of(plan: Mapping[str, Any], device: str) -> Any:
    """Mesh of all ranks: copies of shards, shards (over context ranks, too), and within these parts of each tensor."""
    sizes = {"replicate": plan["dp_replicate"], "shard": plan["dp_shard"] * plan["cp"], "tensor": plan["tp"]}
    shape = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return init_device_mesh(device, tuple(shape.values()), mesh_dim_names=tuple(shape))


def split(model: Any, plan: Mapping[str, Any], mesh: Any) -> None:
    """Deal ``model`` out to tensor ranks, as torchtitan does; between products the sequence may be split.

    Source: pytorch/torchtitan ``torchtitan/models/llama3/infra/parallelize.py``.
    """
    between = Shard(1) if plan["sequence_parallel"] else Replicate()
    norm = SequenceParallel() if plan["sequence_parallel"] else None
    logits = {"output_layouts": Shard(-1) if plan["loss_parallel"] else Replicate()}
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "norm": norm,
        "head": ColwiseParallel(input_layouts=between, use_local_output=not plan["loss_parallel"], **logits),
    }
    parts = [(model, ends)]
    whole = {"desired_input_layouts": (Replicate(), None, None), "input_layouts": (between, None, None)}
    layer = {
        "norms.0": norm,
        "attention": PrepareModuleInput(**whole),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=between),
        "norms.1": norm,
    }
    for block in model.layers:
        own = {f"feed_forward{name}": style for name, style in block.feed_forward.styles(between).items()}
        parts.append((block, layer | own))
    tied = model.head.weight is model.embedding.weight
    for module, styles in parts:
        parallelize_module(module, mesh, {name: style for name, style in styles.items() if style})
    if tied:  # each module has made a weight of its own
        model.head.weight = model.embedding.weight


def model_of(row: Mapping[str, Any]) -> Model:
    """The whole model of a run, its weights in the type that they are stored in, with nothing in tiles or away."""
    torch.set_default_dtype(getattr(torch, row["parallel"]["master_dtype"]))
    model = Model({**row["model"], "mlp_tiles": 1}, row["parallel"]["recompute"], False)
    torch.set_default_dtype(torch.float32)
    return model


def parallelised(model: Any, plan: Mapping[str, Any], mesh: Any, layers: Iterable[Any] | None = None) -> None:
    """Shard ``model`` by layers; embedding and head too where ``wrap`` is ``titan``, else they are the root's."""
    if plan["cp"] > 1:
        ranks = init_device_mesh(
            mesh.device_type, (plan["dp"], plan["cp"]), mesh_dim_names=("data", "context")
        )
        for layer in model.layers:
            layer.attention.context = ranks["context"].get_group()
    if plan["tp"] > 1:
        split(model, plan, mesh["tensor"])
    share(model, plan, mesh, layers)


def share(model: Any, plan: Mapping[str, Any], mesh: Any, layers: Iterable[Any] | None = None) -> None:
    """Share states over data ranks, unit by unit."""
    data = tuple(name for name in mesh.mesh_dim_names if name != "tensor")
    dtypes = {name: getattr(torch, plan[name]) for name in ("param_dtype", "reduce_dtype")}
    reshard = plan["reshard_after_forward"]
    shard = partial(
        fully_shard,
        mesh=mesh[data],
        mp_policy=MixedPrecisionPolicy(**dtypes),
        offload_policy=CPUOffloadPolicy(pin_memory=False) if plan["cpu_offload_weights"] else OffloadPolicy(),
    )
    if plan["wrap"] == "titan":
        for name, freed in (("embedding", reshard), ("head", False)):
            if hasattr(model, name):  # a stage may have neither
                shard(getattr(model, name), reshard_after_forward=freed)
    for layer in model.layers if layers is None else layers:
        shard(layer, reshard_after_forward=reshard)
    shard(model, reshard_after_forward=None if reshard else False)
