"""Collectives of compiled training steps of the tiny Llama on eight CPU devices.

    python check_xla_bytes.py '[[2, 4, false], ...]'

Each case is (data, tensor, whether weights are sharded). Prints, as JSON, the bytes that one device sends by kind, as
XLA compiled them. Products that read the same input are one, as in the planner's graph: on CPU XLA would sum the parts
of the input's gradient one by one.
"""

import json
import math
import re
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, SEQ, LAYERS, BATCH = 64, 96, 8, 4, 8, 128, 16, 2, 16
GROUP = HEADS // KV_HEADS
COLLECTIVE = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(-start)?\(.*?replica_groups=(?P<groups>\[.*?\]|\{\{.*?\}\}|mesh\[.*?\] \{.*?\})"
)


def shapes_and_specs(shard):
    """Every weight's shape, and how it is split: heads, feed-forward and vocabulary over tensor, rows over data."""
    rows = "data" if shard else None
    layer = {
        "norm_1": ((HIDDEN,), P()),
        "norm_2": ((HIDDEN,), P()),
        "qkv": ((HIDDEN, KV_HEADS, GROUP + 2, HEAD_DIM), P(rows, "tensor")),
        "o": ((HEADS, HEAD_DIM, HIDDEN), P("tensor", None, rows)),
        "gate_up": ((HIDDEN, FFN, 2), P(rows, "tensor")),
        "down": ((FFN, HIDDEN), P("tensor", rows)),
    }
    ends = {"table": ((VOCAB, HIDDEN), P("tensor", rows)), "head": ((HIDDEN, VOCAB), P(rows, "tensor"))}
    return {"ends": ends | {"norm": ((HIDDEN,), P())}, "layers": [layer] * LAYERS}


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def loss_of(mesh, shard, weights, tokens, labels):
    def whole(weight, spec):
        gathered = P(*(None if part == "data" else part for part in spec))
        return jax.lax.with_sharding_constraint(weight, NamedSharding(mesh, gathered)) if shard else weight

    def kept(x, *spec):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", *spec)))

    specs = shapes_and_specs(shard)
    table = {k: whole(w, specs["ends"][k][1]) for k, w in weights["ends"].items()}
    x = kept(table["table"][tokens])
    for given, spec in zip(weights["layers"], specs["layers"], strict=True):
        w = {k: whole(v, spec[k][1]) for k, v in given.items()}
        n = norm(x, w["norm_1"])
        qkv = kept(jnp.einsum("bsh,hngd->bsngd", n, w["qkv"]), None, "tensor")
        q, k, v = qkv[:, :, :, :GROUP], qkv[:, :, :, GROUP], qkv[:, :, :, GROUP + 1]
        scores = jnp.einsum("bqngd,bknd->bngqk", q, k) + jnp.triu(jnp.full((SEQ, SEQ), -1e9), 1)
        context = kept(jnp.einsum("bngqk,bknd->bqngd", jax.nn.softmax(scores), v), None, "tensor")
        context = context.reshape(*context.shape[:2], HEADS, HEAD_DIM)
        x = kept(x + kept(jnp.einsum("bsnd,ndh->bsh", context, w["o"])))
        n = norm(x, w["norm_2"])
        gate_up = kept(jnp.einsum("bsh,hft->bsft", n, w["gate_up"]), None, "tensor")
        inner = jax.nn.silu(gate_up[..., 0]) * gate_up[..., 1]
        x = kept(x + kept(inner @ w["down"]))
    logits = kept(norm(x, table["norm"]) @ table["head"], None, "tensor")
    picked = jnp.sum(logits * jax.nn.one_hot(labels, VOCAB), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def compiled(data, tensor, shard):
    mesh = Mesh(np.array(jax.devices()[: data * tensor]).reshape(data, tensor), ("data", "tensor"))
    described = shapes_and_specs(shard)

    def array(shape, spec, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    is_leaf = lambda x: isinstance(x, tuple)  # noqa: E731
    weights = jax.tree.map(lambda leaf: array(*leaf), described, is_leaf=is_leaf)
    out = jax.tree.map(lambda leaf: NamedSharding(mesh, leaf[1]), described, is_leaf=is_leaf)
    tokens = array((BATCH, SEQ), P("data"), jnp.int32)
    step = jax.jit(lambda w, t, y: jax.grad(lambda v: loss_of(mesh, shard, v, t, y))(w), out_shardings=out)
    return step.lower(weights, tokens, tokens).compile().as_text()


def num_bytes(result):
    """Of all arrays in a result, 4 bytes an element."""
    found = re.findall(r"(?:f32|s32)\[([\d,]*)\]", result)
    return sum(4 * math.prod(int(n) for n in dims.split(",") if n) for dims in found)


def group_size(groups):
    """Ranks of one group: ``[groups,ranks]<=...``, ``{{0,1},{2,3}}``, or the axes of a named mesh."""
    if groups.startswith("["):
        return int(groups[1:-1].split(",")[1])
    if groups.startswith("{{"):
        return len(groups[2:-2].split("},{")[0].split(","))
    mesh, named = groups.split("] ")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named))


def sent_by_kind(text):
    """Ring bytes: the whole array times (n - 1) / n, twice for an all-reduce."""
    sent = Counter()
    for found in COLLECTIVE.finditer(text):
        ranks = group_size(found["groups"])
        whole = num_bytes(found["result"]) * (ranks if found["kind"] == "reduce-scatter" else 1)
        times = 2 if found["kind"] == "all-reduce" else 1
        sent[found["kind"].replace("-", "_")] += times * whole * (ranks - 1) / ranks
    return sent


if __name__ == "__main__":
    print(json.dumps([sent_by_kind(compiled(*case)) for case in json.loads(sys.argv[1])]))
