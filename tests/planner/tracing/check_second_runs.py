"""Two transformer blocks in little memory on eight simulated devices: the same plan with and without its second runs.

Prints JSON. The devices are made slow, so that a model small enough for a test is worth sharding.
"""

import json
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

import jax  # noqa: E402
import jax_layers  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from planner.tracing.from_jax import from_jax  # noqa: E402
from planner.tracing.jax_apply import apply_shardings, input_shardings  # noqa: E402
from planner.tracing.solving import shard  # noqa: E402

AXES = {"data": 2, "model": 4}
ROOM = 0.9
SIZE = jax_layers.Sizes(layers=2, batch=16, length=32)


def slow_cluster():
    cluster = load_cluster("dgx-h100:1")
    rates = dict.fromkeys(cluster.device.peak_flops_per_second, 2e12)
    slow = {"peak_flops_per_second": rates, "memory_bandwidth": 1e11, "kernel_launch": 1e-7}
    return cluster.model_copy(update={"device": cluster.device.model_copy(update=slow)})


def loss(layers, x, y):
    for layer in layers:
        x = jax_layers.mlp_block(layer["mlp"], jax_layers.attention(layer["attention"], x, SIZE))
    return ((x - y) ** 2).mean()


def largest_error(found, expected):
    def error(a, b):
        return float(abs(a - b).max() / (abs(b).max() + 1e-9))

    return max(jax.tree.leaves(jax.tree.map(error, found, expected)))


def main():
    layer = {
        "attention": jax_layers.attention_weights(SIZE),
        "mlp": jax_layers.mlp_weights(SIZE, gated=True),
    }
    data = jax_layers.f(SIZE, SIZE.batch, SIZE.length, SIZE.width)
    case = jax_layers.Case(loss, [layer] * SIZE.layers, (data, data), {})
    program = from_jax(case.step, *case.arguments)
    roomy = shard(program, slow_cluster(), AXES)
    sharded = shard(program, slow_cluster(), AXES, memory_limit=ROOM * roomy.memory_bytes)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    arrays = case.arrays()
    placed = jax.device_put(arrays, input_shardings(sharded, mesh, arrays))

    def compiled(plan):
        return jax.jit(apply_shardings(case.step, plan, mesh, case.arguments)).lower(*placed).compile()

    run, kept = compiled(sharded), compiled(sharded.model_copy(update={"recomputed": ()}))
    print(
        json.dumps(
            {
                "error": largest_error(run(*placed), jax.jit(case.step)(*arrays)),
                "recomputed": [o.name for o in sharded.recomputed],
                "in_parts": [o.name for o in sharded.operators if o.parts],
                "temporary": run.memory_analysis().temp_size_in_bytes,
                "temporary_if_kept": kept.memory_analysis().temp_size_in_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
