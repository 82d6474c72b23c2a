"""A mixture of experts, kernel by kernel as torchtitan has it, and its units: what tracking_experts.py measures.

Source: pytorch/torchtitan@8bc267dea (April 2026) ``torchtitan/models/common/moe.py``,
``torchtitan/distributed/expert_parallel.py``; units and what is gathered ahead: v0.2.2 (73a0e6979)
``torchtitan/models/llama4/infra/parallelize.py``.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
    RowwiseParallel,
)
from torch.nn import functional
from tracked_model import FeedForward, Model, share, split


class Experts(nn.Module):
    """Weights of all experts, stacked; a rank has those of its own, or its part of each."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        count, width, ffn = sizes["experts"], sizes["hidden"], sizes["moe_ffn_hidden"]
        self.gate, self.up = (nn.Parameter(torch.empty(count, ffn, width)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(count, width, ffn))
        self.ranks: Any = None

    def split(self, mesh: Any) -> None:
        """Deal experts out to the ranks of ``mesh``, and each to its tensor ranks, where it has these."""
        names = mesh.mesh_dim_names
        self.ranks = mesh["expert"].get_group() if "expert" in names else None
        for name, dim in (("gate", 1), ("up", 1), ("down", 2)):
            places = [Shard(0 if axis == "expert" else dim) for axis in names]
            weight = distribute_tensor(getattr(self, name).data, mesh, places)
            setattr(self, name, nn.Parameter(weight))

    def forward(self, x: Any) -> Any:
        """What the experts of tokens make of them; ``x`` has every token once for each, in their order."""
        gate, up, down = (
            w.to_local() if isinstance(w, DTensor) else w for w in (self.gate, self.up, self.down)
        )
        if self.ranks is not None:
            x = self._exchanged(x)
            x = x[torch.zeros(len(x), dtype=torch.int64)]
        product = partial(functional.grouped_mm, offs=torch.zeros(len(gate), dtype=torch.int32))
        made = functional.silu(product(x, gate.transpose(-2, -1)))
        made = made * product(x, up.transpose(-2, -1))
        made = product(made, down.transpose(-2, -1))
        if self.ranks is None:
            return made
        back = torch.empty_like(made)
        back[torch.zeros(len(made), dtype=torch.int64)] = made
        return self._exchanged(back)

    def _exchanged(self, x: Any) -> Any:
        """Every expert gets as many tokens."""
        ranks = self.ranks.size()
        sizes = [len(x) // ranks] * ranks
        return all_to_all_single_autograd(x, sizes, sizes, self.ranks)


class Mixture(nn.Module):
    """Router, experts, and shared ones, which see every token."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        self.topk = sizes["topk"]
        self.router = nn.Linear(sizes["hidden"], sizes["experts"], bias=False)
        self.experts = Experts(sizes)
        shared = sizes.get("shared_experts", 0) * sizes["moe_ffn_hidden"]
        self.shared = FeedForward(sizes["hidden"], shared) if shared else None
        self.token_ranks = 1

    def forward(self, x: Any) -> Any:
        """As large as ``x``; of tensor ranks that hold experts of their own each routes its part of the tokens."""
        if isinstance(x, DTensor):
            x = x.to_local(grad_placements=(Partial(),))
        tokens = x.flatten(0, 1)
        scores = functional.softmax(self.router(tokens).to(torch.float32), dim=1)
        _, chosen = torch.topk(scores, self.topk, dim=-1, sorted=False)
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        own = len(chosen) // self.token_ranks
        order = torch.argsort(chosen[:own].flatten(), stable=True)
        weights, order = weights[:own].flatten()[order], order // self.topk
        made = self.experts(tokens[order])
        shared = torch.zeros_like(tokens) if self.shared is None else self.shared(tokens)
        made = (made.to(torch.float32) * weights.reshape(-1, 1)).to(x.dtype)
        return shared.scatter_add(0, order.reshape(-1, 1).expand_as(made), made).reshape(x.shape)

    def styles(self, between: Any) -> dict[str, Any]:
        """As those of a `FeedForward`; every tensor rank routes by itself."""
        whole = PrepareModuleInputOutput(
            input_layouts=(between,),
            desired_input_layouts=(Replicate(),),
            use_local_input=False,
            output_layouts=(Partial(),),
            desired_output_layouts=(between,),
        )
        shared = {
            ".shared.gate": ColwiseParallel(),
            ".shared.up": ColwiseParallel(),
            ".shared.down": RowwiseParallel(output_layouts=Partial()),
        }
        return {"": whole, **(shared if self.shared is not None else {})}


class ExpertModel(Model):
    """Its feed-forward layers are mixtures. What is wrapped is computed again to its end, as torchtitan asks."""

    WRAPPED = MappingProxyType({**Model.WRAPPED, "early_stop": False})

    def __init__(self, sizes: Mapping[str, Any], recompute: str) -> None:
        super().__init__({**sizes, "ffn_hidden": 1}, recompute, saved_away=False)
        for layer in self.layers:
            layer.feed_forward = Mixture(sizes)


def parallelised(model: Any, plan: Mapping[str, Any], mesh: Any) -> None:
    """Share experts out to their ranks, and their states over those that have the same; then all else."""
    if plan["tp"] > 1:
        split(model, plan, mesh["tensor"])
    units = [layer.feed_forward.experts for layer in model.layers]
    if plan["ep"] > 1:
        share_experts(model, units, plan)
    elif plan["tp"] > 1:
        for experts in units:
            experts.split(mesh["tensor"])
    share(model, plan, mesh)
    if plan["ep"] > 1:
        prefetch(model)


def share_experts(model: Any, units: list[Any], plan: Mapping[str, Any]) -> None:
    """Expert ranks are tensor ranks and the nearest data ranks, or these alone, where experts are split as well."""
    within = plan["etp"]
    others = plan["dp"] * plan["tp"] // (plan["ep"] * within)
    sizes = {"shard": others, "expert": plan["ep"], "tensor": within}
    names = tuple(name for name in sizes if name != "tensor" or within > 1)
    mesh = init_device_mesh("cpu", tuple(sizes[name] for name in names), mesh_dim_names=names)
    policy = MixedPrecisionPolicy(*(getattr(torch, plan[name]) for name in ("param_dtype", "reduce_dtype")))
    for layer, experts in zip(model.layers, units, strict=True):
        layer.feed_forward.token_ranks = plan["tp"] // within
        along = 1 if others * plan["ep"] > len(experts.gate) else 0
        experts.split(mesh[names[1:]])
        fully_shard(
            experts,
            mesh=mesh["shard"],
            mp_policy=policy,
            reshard_after_forward=plan["reshard_after_forward"],
            shard_placement_fn=lambda weight, along=along: Shard(along),
        )


def prefetch(model: Any) -> None:
    """The next layer, and its experts, are gathered as a layer begins, forward and backward."""
    layers = list(model.layers)
    model.embedding.set_modules_to_forward_prefetch(layers[:1])
    model.head.set_modules_to_backward_prefetch(layers[-1:])
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch(list(_units(following)))
        following.set_modules_to_backward_prefetch(list(_units(layer)))
    layers[-1].set_modules_to_forward_prefetch([model.head])
    layers[0].set_modules_to_backward_prefetch([model.embedding])


def _units(layer: Any) -> Iterator[Any]:
    yield layer
    yield layer.feed_forward.experts
