"""Collectives of training steps of a tiny Llama under FSDP2 and tensor parallelism, in a fake process group.

    python check_torch_bytes.py '[[4, 2, true, 1], ...]'

Each case is (data, tensor, whether layers are resharded after the forward, micro-batches). Prints, as JSON, the bytes
that one device sends by kind. With tensor ranks the sequence is split between the blocks'
halves, and the loss is vocabulary-parallel.
"""

import json
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, SEQ, LAYERS = 64, 96, 8, 4, 8, 128, 16, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x):
        heads = (p(x).view(*x.shape[:2], -1, HEAD_DIM).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).reshape(*x.shape[:2], -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def split_over_tensor_ranks(model, mesh):
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    plan = {
        "table": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    for i in range(LAYERS):
        names = {
            "norm_1": SequenceParallel(),
            "norm_2": SequenceParallel(),
            "attention": gather,
            "mlp": gather,
        }
        names |= {f"attention.{name}": columns for name in "qkv"} | {"attention.o": rows}
        names |= {"mlp.gate": columns, "mlp.up": columns, "mlp.down": rows}
        plan |= {f"layers.{i}.{name}": style for name, style in names.items()}
    parallelize_module(model, mesh, plan)


class Counted(TorchDispatchMode):
    """Ring bytes: the whole array times (n - 1) / n, twice for an all-reduce."""

    def __init__(self, data, tensor):
        super().__init__()
        self.data, self.tensor, self.sent = data, tensor, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # the collectives are inside
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name == "c10d::_allgather_base_":
            self.add("all_gather", args[0], self.data)
        elif name == "c10d::_reduce_scatter_base_":
            self.add("reduce_scatter", args[1], self.data)
        elif name == "c10d::allreduce_":
            self.add("all_reduce", args[0][0], self.data)
        elif name == "_c10d_functional::all_gather_into_tensor":
            self.add("all_gather", out, self.tensor)
        elif name == "_c10d_functional::reduce_scatter_tensor":
            self.add("reduce_scatter", args[0], self.tensor)
        elif name == "_c10d_functional::all_reduce":
            self.add("all_reduce", out, self.tensor)
        return out

    def add(self, kind, array, ranks):
        times = 2 if kind == "all_reduce" else 1
        self.sent[kind] += times * array.numel() * array.element_size() * (ranks - 1) / ranks


def step(data, tensor, reshard, accumulate):
    dist.init_process_group("fake", rank=0, world_size=data * tensor, store=FakeStore())
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    model = Llama()
    if tensor > 1:
        split_over_tensor_ranks(model, mesh["tensor"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh["data"], "mp_policy": policy}
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **options)
    fully_shard(model, **options)
    tokens = torch.zeros(1, SEQ, dtype=torch.long)
    with Counted(data, tensor) as counted, loss_parallel():
        for i in range(accumulate):
            model.set_requires_gradient_sync(i == accumulate - 1)
            functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
    dist.destroy_process_group()
    return counted.sent


if __name__ == "__main__":
    print(json.dumps([step(*case) for case in json.loads(sys.argv[1])]))
