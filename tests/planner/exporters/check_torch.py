"""Training steps of a tiny Llama with an exported FSDP2 script, on gloo processes, against one process.

    python check_torch.py fsdp2_plan.py '{"tied": false, ...}'

Prints, as JSON, from rank 0: losses, differences, and the local shape of every parameter.
"""

import importlib.util
import json
import math
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

LEARNING_RATE, STEPS = 0.5, 2
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, SEQ, LAYERS = 64, 8, 4, 8, 16, 2


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(size))

    def forward(self, hidden_states):
        return hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Names and calling convention of Hugging Face's decoders: arguments by keyword, heads from the shape."""

    def __init__(self, settings):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=settings["bias"])
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=settings["bias"])
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=settings["bias"])
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        if settings["qk_norm"]:
            self.q_norm, self.k_norm = RMSNorm(HEAD_DIM), RMSNorm(HEAD_DIM)

    def forward(self, hidden_states, position_ids):
        shape = (*hidden_states.shape[:-1], -1, HEAD_DIM)
        q, k, v = (proj(hidden_states).view(shape) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        angle = position_ids[None, :, None, None] * torch.arange(1, HEAD_DIM + 1) / 50
        cosine, sine = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        q, k = (x * cosine + x.roll(HEAD_DIM // 2, -1) * sine for x in (q, k))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(context.transpose(1, 2).reshape(*shape[:-2], -1))


class MLP(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, ffn, bias=False)
        self.up_proj = nn.Linear(HIDDEN, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(HIDDEN), Attention(settings)
        self.post_attention_layernorm, self.mlp = RMSNorm(HIDDEN), MLP(settings["ffn"])

    def forward(self, hidden_states, position_ids):
        normed = self.input_layernorm(hidden_states)
        hidden_states = hidden_states + self.self_attn(hidden_states=normed, position_ids=position_ids)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Decoder(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.embed_tokens = nn.Embedding(settings["vocab"], HIDDEN)
        self.layers = nn.ModuleList(Layer(settings) for _ in range(LAYERS))
        self.norm = RMSNorm(HIDDEN)

    def forward(self, tokens):
        hidden_states = self.embed_tokens(tokens)
        positions = torch.arange(hidden_states.shape[1])
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_ids=positions)
        return self.norm(hidden_states)


class CausalLM(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.model = Decoder(settings)
        self.lm_head = nn.Linear(HIDDEN, settings["vocab"], bias=False)
        if settings["tied"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


def load(path):
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(settings, dtype):
    torch.manual_seed(0)
    return CausalLM(settings).to(dtype)


def token_loss(model, tokens):
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(-1, 1).flatten())


def train(model, micro_batches, context, grouped=True):
    """Losses of some steps of SGD, which shows a wrong scale of gradients where AdamW would not.

    Updates are ``grouped`` into one call for all parameters, as on GPUs.
    """
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, foreach=grouped)
    losses = []
    for _ in range(STEPS):
        total = 0.0
        for tokens in micro_batches:
            with context():
                loss = token_loss(model, tokens) / len(micro_batches)
                loss.backward()
            total += float(whole(loss.detach()))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e6, foreach=grouped)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((total, float(whole(norm))))
    return losses


def whole(parameter):
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def my_part(exported, mesh, tokens):
    """Micro-batches of this data-parallel rank."""
    _, replicas, shards, _ = exported.MESH_SHAPE
    _, replica, shard, _ = mesh.get_coordinate()
    return tokens.chunk(replicas * shards)[replica * shards + shard].split(exported.MICRO_BATCH)


def mean_over_data(exported, losses):
    """Mean over all ranks; those that differ on tp agree."""
    values = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(values[:, 0].contiguous())
    column = values[:, 0].clone()
    dist.all_reduce(column)
    return (column / dist.get_world_size()).tolist(), values[:, 1].tolist()


def train_fsdp1(exported, model, tokens):
    """Losses and norms of some steps under the first FSDP, and the whole parameters."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    sharded = exported.apply(model, device_type="cpu")
    own = tokens.chunk(dist.get_world_size())[dist.get_rank()].split(exported.MICRO_BATCH)
    optimizer = torch.optim.SGD(sharded.parameters(), LEARNING_RATE)
    losses = []
    for _ in range(STEPS):
        total = 0.0
        for micro in own:
            loss = token_loss(sharded, micro) / len(own)
            loss.backward()
            total += float(loss.detach())
        norm = sharded.clip_grad_norm_(1e6)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((total, float(norm)))
    with FullyShardedDataParallel.summon_full_params(sharded, writeback=False):
        names = {
            n.replace("_fsdp_wrapped_module.", ""): p.detach().clone() for n, p in sharded.named_parameters()
        }
    return losses, {n.replace("_checkpoint_wrapped_module.", ""): p for n, p in names.items()}


def worker(rank, path, settings, world, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    exported = load(path)
    tokens = torch.randint(
        settings["vocab"], (exported.GLOBAL_BATCH, SEQ), generator=torch.Generator().manual_seed(1)
    )
    dtype = getattr(exported, "MODEL_DTYPE", torch.float32)
    reference = build(settings, dtype)
    start = {name: p.detach().clone() for name, p in reference.named_parameters()}
    expected = train(reference, [tokens], torch.enable_grad)
    model = build(settings, dtype)
    if hasattr(exported, "STRATEGY"):
        trained, names = train_fsdp1(exported, model, tokens)
        losses, norms = mean_over_data(exported, trained)
    else:
        mesh = exported.apply(model, device_type="cpu")
        micro_batches = my_part(exported, mesh, tokens)
        assert len(micro_batches) == exported.NUM_MICROBATCHES
        trained = train(model, micro_batches, exported.loss_context, settings["grouped"])
        losses, norms = mean_over_data(exported, trained)
        names = {name.replace("_checkpoint_wrapped_module.", ""): p for name, p in model.named_parameters()}
    target = dict(reference.named_parameters())
    assert names.keys() == target.keys()
    report = {
        "losses": losses,
        "loss_error": max(abs(a - b) for a, (b, _) in zip(losses, expected, strict=True)),
        "norm_error": max(abs(a - b) / b for a, (_, b) in zip(norms, expected, strict=True)),
        "param_error": max(float((whole(p) - target[name]).abs().max()) for name, p in names.items()),
        "moved": max(float((target[name] - start[name]).abs().max()) for name in target),
        "local": {n: list((p.to_local() if isinstance(p, DTensor) else p).shape) for n, p in names.items()},
    }
    if rank == 0:
        print(json.dumps(report))
    dist.destroy_process_group()


def main(path, settings):
    settings = {
        "tied": False,
        "bias": False,
        "qk_norm": False,
        "grouped": True,
        "ffn": 96,
        "vocab": 128,
    } | settings
    world = math.prod(load(path).MESH_SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (path, settings, world, f"{folder}/store")
        mp.start_processes(worker, arguments, nprocs=world, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
