"""Shardings of one plan for parameters of several libraries; prints the specs as JSON.

python check_jax_trees.py plan.json
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from planner import jax_shardings, logical_axis_rules

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS = 64, 8, 4, 8, 96, 128, 2


def array(*shape):
    return jnp.zeros(shape, jnp.float32)


def layer():
    attention = {
        "query": {"kernel": array(HIDDEN, HEADS, HEAD_DIM)},
        "key": {"kernel": array(HIDDEN, KV_HEADS, HEAD_DIM)},
        "value": {"kernel": array(HIDDEN, KV_HEADS, HEAD_DIM)},
        "out": {"kernel": array(HEADS, HEAD_DIM, HIDDEN)},
    }
    mlp = {"wi_0": array(HIDDEN, FFN), "wi_1": array(HIDDEN, FFN), "wo": array(FFN, HIDDEN)}
    return {
        "norm1": {"scale": array(HIDDEN)},
        "attention": attention,
        "norm2": {"scale": array(HIDDEN)},
        "mlp": mlp,
    }


def linen_like():
    layers = {f"layers_{i}": layer() for i in range(LAYERS)}
    ends = {"embed": {"embedding": array(VOCAB, HIDDEN)}, "final_norm": {"scale": array(HIDDEN)}}
    return {"params": layers | ends | {"head": {"kernel": array(HIDDEN, VOCAB)}}}


def stacked():
    tree = linen_like()["params"]
    layers = [tree.pop(f"layers_{i}") for i in range(LAYERS)]
    return tree | {"layers": jax.tree.map(lambda *x: jnp.stack(x), *layers)}


def specs(tree):
    found = {}
    for path, sharding in jax.tree_util.tree_leaves_with_path(tree):
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = str(tuple(sharding.spec))
    return found


def real(plan):
    """Modules of flax, where it is installed: linen's own initialisation, and nnx's state."""
    try:
        from flax import linen, nnx
    except ImportError:
        return {}

    class Mlp(linen.Module):
        @linen.compact
        def __call__(self, x):
            up = linen.Dense(FFN, use_bias=False, name="up")(x)
            return linen.Dense(HIDDEN, use_bias=False, name="down")(up)

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(HIDDEN, FFN, use_bias=False, rngs=rngs)
            self.down = nnx.Linear(FFN, HIDDEN, use_bias=False, rngs=rngs)

    boxed = jax.eval_shape(Mlp().init, jax.random.key(0), array(1, HIDDEN))
    state = nnx.state(Block(nnx.Rngs(0)), nnx.Param)
    return {
        "linen": specs(jax_shardings(plan, boxed).params),
        "nnx": specs(jax_shardings(plan, state).params),
    }


def main(plan):
    params = linen_like()
    found = jax_shardings(plan, params)
    placed = jax.device_put(params, found.params)
    state = {"mu": params, "nu": params, "count": jnp.zeros((), jnp.int32)}
    kernel = placed["params"]["layers_1"]["attention"]["out"]["kernel"]
    answer = {
        "linen_like": specs(found.params),
        "stacked": specs(jax_shardings(plan, stacked()).params),
        "states": specs(found.states(state)),
        "shard": list(kernel.addressable_shards[0].data.shape),
        "devices": int(np.prod(found.mesh.devices.shape)),
        "batch": str(tuple(found.batch.spec)),
        "rules": [[name, axes] for name, axes in logical_axis_rules(plan)],
        "real": real(plan),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
