"""What ranks with experts send each other in a layer compiled for TPU slices, kept as data beside others' rows.

    pip install jax==0.10.2 libtpu==0.0.52
    python benchmarks/compiling_experts.py  # write tests/published/xla_experts.jsonl

A layer of experts with its backward, in which tokens are dealt out by products with one-hot masks, and what is split
how is said as MaxText says it: masks and tokens along the batch, what experts read and write along them. Each expert
takes as many tokens of a sequence as it gets on average. No TPU is needed.

Source: AI-Hypercomputer/maxtext ``MaxText/layers/moe.py`` (``dense_matmul``).
"""

import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from own_cases import measure_cases

from planner.verification.programs.hlo import collectives
from planner.verification.with_xla import NO_TPU

USUAL: Mapping[str, Any] = {"experts": 16, "topk": 2, "micro_batch": 1, "tp": 1}
CASES: Mapping[str, Mapping[str, Any]] = {
    "v5e:4x4/ep16": {"ep": 16},
    "v5e:4x4/ep8-fsdp2": {"ep": 8},
    "v5e:4x4/ep4-fsdp4": {"ep": 4},
    "v5e:4x4/ep4-fsdp4-mb4": {"ep": 4, "micro_batch": 4},
    "v5e:4x4/ep16-top4": {"ep": 16, "experts": 32, "topk": 4},
    "v5e:4x4/ep8-tp2": {"ep": 8, "tp": 2},
    "v5e:4x4/ep4-tp4-top4": {"ep": 4, "tp": 4, "experts": 32, "topk": 4},
    "v5e:4x4/ep4-fsdp2-tp2": {"ep": 4, "tp": 2},
    "v5e:8x8/ep16-fsdp4": {"ep": 16},
    "v5e:4x4/ep2-fsdp8": {"ep": 2},
}
"""Slice and degrees -> what differs from `USUAL`; the last two were priced before they were compiled."""
SIZES: Mapping[str, Any] = {
    "hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128, "ffn_hidden": 1024, "vocab": 32000, "seq": 2048,
}  # fmt: skip


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    case = {**USUAL, **CASES[name]}
    generation, _, topology = name.split("/")[0].partition(":")
    devices = math.prod(map(int, topology.split("x")))
    data = devices // case["tp"]
    experts = {"experts": case["experts"], "topk": case["topk"], "moe_ffn_hidden": SIZES["ffn_hidden"]}
    return {
        "id": f"xla-experts/{name}",
        "source": "benchmarks/compiling_experts.py (one layer, compiled ahead of time by XLA)",
        "quality": "A",
        "series": "xla-compiler",
        "model": {"name": "mixture", "layers": 1, **SIZES, **experts, "gated_mlp": True, "tied": False},
        "hardware": {"gpu": f"tpu-{generation}", "n_gpus": devices, "slices": 1, "topology": topology},
        "parallel": {
            "dp_shard": data, "dp_replicate": 1, "sharding": "FULL_SHARD", "dp": data, "tp": case["tp"], "cp": 1,
            "pp": 1, "ep": case["ep"], "micro_batch": case["micro_batch"], "grad_accum": 1, "recompute": "none",
            "attention": "splash", "precision": "bf16", "master_dtype": "float32", "optim": "adamw",
            "global_batch": data * case["micro_batch"],
        },
    }  # fmt: skip


def layer(row: Mapping[str, Any], split: Any, x: Any, router: Any, gate: Any, up: Any, down: Any) -> Any:
    """Dealt out, multiplied, brought back; ``split(array, *axes of dims)`` says how an array lies."""
    import jax
    import jax.numpy as jnp

    model, ranks, dtype = row["model"], ("fsdp", "expert"), jnp.bfloat16
    experts, topk, tokens = model["experts"], model["topk"], model["seq"]
    capacity = tokens * topk // experts
    scores = jax.nn.softmax(jnp.einsum("bsm,me->bse", x, router.astype(dtype)).astype(jnp.float32))
    weights, chosen = jax.lax.top_k(scores, topk)
    asked = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
    before = jnp.cumsum(asked.reshape(len(x), -1, experts), 1).reshape(asked.shape) - asked
    taken = asked * (before < capacity)
    places = jax.nn.one_hot(jnp.where(taken > 0, before, capacity), capacity, dtype=dtype)
    masks = places * taken[..., None].astype(dtype)
    dispatch = split(masks.sum(2), ranks)
    combine = split(jnp.einsum("bsk,bskec->bsec", weights.astype(dtype), masks), ranks)
    own = partial(split, first="expert")
    routed = own(jnp.einsum("bsm,bsec->ebcm", split(x, ranks), dispatch), "fsdp")
    width = "fsdp", None, "tensor"
    parts = (own(jnp.einsum("ebcm,emf->ebcf", routed, w.astype(dtype)), *width) for w in (gate, up))
    gated = jax.nn.silu(next(parts)) * next(parts)
    made = own(jnp.einsum("ebcf,efm->ebcm", gated, down.astype(dtype)), "fsdp")
    return split(jnp.einsum("ebcm,bsec->bsm", made, combine), ranks)


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes that a device sends, by kind, in the layer and its backward."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    model, devices, expert = row["model"], row["hardware"]["n_gpus"], row["parallel"]["ep"]
    tensor = row["parallel"]["tp"]
    name = f"{row['hardware']['gpu'].removeprefix('tpu-')}:{row['hardware']['topology']}"
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    mesh = jax.make_mesh(
        (devices // expert // tensor, expert, tensor),
        ("fsdp", "expert", "tensor"),
        devices=topology.devices,
        axis_types=(AxisType.Auto,) * 3,
    )

    def split(array: Any, *axes: Any, first: str | None = None) -> Any:
        return jax.lax.with_sharding_constraint(
            array, NamedSharding(mesh, P(*([first] if first else []), *axes))
        )

    def step(x: Any, *rest: Any) -> Any:
        *weights, gradient = rest
        made, back = jax.vjp(partial(layer, row, split), x, *weights)
        return made, back(gradient)

    experts, hidden, width = model["experts"], model["hidden"], model["moe_ffn_hidden"]
    tokens = jax.ShapeDtypeStruct((row["parallel"]["global_batch"], model["seq"], hidden), jnp.bfloat16)
    shapes = (hidden, experts), (experts, hidden, width), (experts, hidden, width), (experts, width, hidden)
    arrays = tokens, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes), tokens
    own = P(("fsdp", "expert"))
    into, back = P("expert", "fsdp", "tensor"), P("expert", "tensor", "fsdp")
    specs = own, P(), into, into, back, own
    given = tuple(NamedSharding(mesh, spec) for spec in specs)
    jitted = jax.jit(step, in_shardings=given, out_shardings=(given[0], given[:-1]))
    found = collectives(jitted.lower(*arrays).compile().as_text(), devices)
    return {
        "ok": True,
        "sent_bytes": {kind: round(total.sent_bytes) for kind, total in sorted(found.items())},
    }


if __name__ == "__main__":
    os.environ.update(NO_TPU)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("xla_experts.jsonl", CASES, row_of, measured, wanted)
