"""A model sharded on eight simulated devices, against one: numbers, and collectives as compiled.

    python check_sharding.py gpt 1.0

The number is the memory allowed, as a share of what the fastest plan takes. Prints JSON. The devices are made
slow, so that a model small enough for a test is worth sharding.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_disable_hlo_passes=cpu-all-reduce-combiner,all-gather-combiner,reduce-scatter-combiner"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax  # noqa: E402
import jax_layers  # noqa: E402
import jax_models  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from planner.tracing.from_jax import from_jax  # noqa: E402
from planner.tracing.hlo import compiled_collectives, differences  # noqa: E402
from planner.tracing.jax_apply import apply_shardings, input_shardings  # noqa: E402
from planner.tracing.solving import shard  # noqa: E402

AXES = {"data": 2, "model": 4}


def slow_cluster():
    cluster = load_cluster("dgx-h100:1")
    rates = dict.fromkeys(cluster.device.peak_flops_per_second, 2e12)
    slow = {"peak_flops_per_second": rates, "memory_bandwidth": 1e11, "kernel_launch": 1e-7}
    return cluster.model_copy(update={"device": cluster.device.model_copy(update=slow)})


def largest_error(found, expected):
    def error(a, b):
        return float(abs(a - b).max() / (abs(b).max() + 1e-9))

    return max(jax.tree.leaves(jax.tree.map(error, found, expected)))


def blocks():
    """Two transformer blocks out of line, whose backward pass can recompute what the forward pass made."""
    size = jax_layers.Sizes(layers=2, batch=16, length=32)

    def loss(layers, x, y):
        for layer in layers:
            x = jax_layers.mlp_block(layer["mlp"], jax_layers.attention(layer["attention"], x, size))
        return ((x - y) ** 2).mean()

    layer = {
        "attention": jax_layers.attention_weights(size),
        "mlp": jax_layers.mlp_weights(size, gated=True),
    }
    data = jax_layers.f(size, size.batch, size.length, size.width)
    return jax_layers.Case(loss, [layer] * size.layers, (data, data), {})


def temporary_bytes(case, sharded, mesh, placed):
    run = jax.jit(apply_shardings(case.step, sharded, mesh, case.arguments))
    return run.lower(*placed).compile().memory_analysis().temp_size_in_bytes


def sums(uses):
    return sum(u.full_bytes * u.times for u in uses if u.collective in ("all_reduce", "reduce_scatter"))


def main(name, room):
    kind = name.removesuffix(" with adam")
    sizes = jax_layers.Sizes(layers=1, kv_heads=2 if name in ("llama", "mixtral") else 4)
    case = blocks() if kind == "blocks" else jax_models.MODELS[kind](sizes)
    case = case._replace(trains=kind != name)
    program = from_jax(case.step, *case.arguments)
    sharded = shard(program, slow_cluster(), AXES, seconds=20)
    if room < 1:
        limit = room * sharded.memory_bytes
        sharded = shard(program, slow_cluster(), AXES, seconds=60, memory_limit=limit)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    arrays = case.arrays()
    placed = jax.device_put(arrays, input_shardings(sharded, mesh, arrays))
    compiled = jax.jit(apply_shardings(case.step, sharded, mesh, case.arguments)).lower(*placed).compile()
    found, expected = compiled(*placed), jax.jit(case.step)(*arrays)
    text = compiled.as_text()
    operators = {u.operator for u in (*sharded.collectives, *compiled_collectives(text))}
    print(
        json.dumps(
            {
                "loss": float(found[0]),
                "expected": float(expected[0]),
                "gradient_error": largest_error(found[1:], expected[1:]),
                "split": sum(any(axes for axes in p) for p in sharded.inputs.values()),
                "communicating": len(operators),
                "different": len(differences(sharded, text)),
                "priced_sums": sums(sharded.collectives),
                "compiled_sums": sums(compiled_collectives(text)),
                "proven": sharded.proven,
                "in_parts": sum(bool(o.parts) for o in sharded.operators),
                "recomputed": [o.name for o in sharded.recomputed],
                "temporary": compiled.memory_analysis().temp_size_in_bytes,
                "temporary_if_kept": temporary_bytes(
                    case, sharded.model_copy(update={"recomputed": ()}), mesh, placed
                )
                if sharded.recomputed
                else None,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
