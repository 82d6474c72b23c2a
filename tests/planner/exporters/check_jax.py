"""One training step of a tiny Llama (or Mixtral) with an exported JAX module, against one device.

    python check_jax.py jax_shardings.py '{"layout": "in_out", ...}'

Prints, as JSON, the shard shape of every parameter and optimizer state and the differences.
"""

import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE, MOMENTUM = 0.1, 0.9
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, SEQ, LAYERS = 64, 8, 4, 8, 128, 16, 2


def load(path):
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_params(rng, layout, ffn, experts):
    def matrix(inputs, outputs, *lead):
        shape = (inputs, outputs) if layout == "in_out" else (outputs, inputs)
        return {"weight": jnp.asarray(rng.normal(size=(*lead, *shape)) * 0.2, jnp.float32)}

    def norm():
        return {"weight": jnp.asarray(1 + 0.1 * rng.normal(size=HIDDEN), jnp.float32)}

    def mlp():
        if experts:
            stacked = {"gate_up_proj": matrix(HIDDEN, 2 * ffn, experts)["weight"]}
            stacked["down_proj"] = matrix(ffn, HIDDEN, experts)["weight"]
            return {"gate": matrix(HIDDEN, experts), "experts": stacked}
        return {
            "gate_proj": matrix(HIDDEN, ffn),
            "up_proj": matrix(HIDDEN, ffn),
            "down_proj": matrix(ffn, HIDDEN),
        }

    def layer():
        return {
            "input_layernorm": norm(),
            "self_attn": {
                "q_proj": matrix(HIDDEN, HEADS * HEAD_DIM),
                "k_proj": matrix(HIDDEN, KV_HEADS * HEAD_DIM),
                "v_proj": matrix(HIDDEN, KV_HEADS * HEAD_DIM),
                "o_proj": matrix(HEADS * HEAD_DIM, HIDDEN),
            },
            "post_attention_layernorm": norm(),
            "mlp": mlp(),
        }

    table = jnp.asarray(rng.normal(size=(VOCAB, HIDDEN)), jnp.float32)
    model = {"embed_tokens": {"weight": table}, "layers": [layer() for _ in range(LAYERS)], "norm": norm()}
    return {"model": model, "lm_head": matrix(HIDDEN, VOCAB)}


def make_loss(pin, remat, scope, layout):
    def times(x, w):
        return x @ (w if layout == "in_out" else jnp.swapaxes(w, -1, -2))

    def rms(x, w):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w["weight"]

    def core(q, k, v):
        k, v = (jnp.repeat(t, HEADS // KV_HEADS, axis=2) for t in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_DIM**0.5
        mask = jnp.tril(jnp.ones((SEQ, SEQ), bool))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e30), -1), v)

    def attention(w, x):
        q, k, v = (times(x, w[f"{n}_proj"]["weight"]) for n in "qkv")
        q = pin(q.reshape(*q.shape[:2], HEADS, HEAD_DIM), "layer.q")
        k = pin(k.reshape(*k.shape[:2], KV_HEADS, HEAD_DIM), "layer.k")
        v = pin(v, "layer.v").reshape(*v.shape[:2], KV_HEADS, HEAD_DIM)
        context = pin((remat(core) if scope == "attention" else core)(q, k, v), "layer.context")
        return pin(times(context.reshape(*x.shape[:2], -1), w["o_proj"]["weight"]), "layer.attn_projected")

    def dense(w, x):
        gate, up = pin(times(x, w["gate_proj"]["weight"]), "layer.gate"), times(x, w["up_proj"]["weight"])
        return times(pin(jax.nn.silu(gate) * up, "layer.activated"), w["down_proj"]["weight"])

    def mixture(w, x):
        shares = jax.nn.softmax(times(x, w["gate"]["weight"]), -1)
        both = times(x[:, :, None, None, :], w["experts"]["gate_up_proj"])[:, :, :, 0]
        gate, up = jnp.split(both, 2, axis=-1)
        out = times((jax.nn.silu(gate) * up)[..., None, :], w["experts"]["down_proj"])[..., 0, :]
        return jnp.einsum("bseh,bse->bsh", out, shares)

    def block(w, x):
        x = pin(x, "layer.x")
        x = x + attention(w["self_attn"], pin(rms(x, w["input_layernorm"]), "layer.attn_normed"))
        mlp = mixture if "experts" in w["mlp"] else dense
        return pin(x + mlp(w["mlp"], rms(x, w["post_attention_layernorm"])), "layer.y")

    def loss(params, tokens):
        x = params["model"]["embed_tokens"]["weight"][tokens]
        for w in params["model"]["layers"]:
            x = (remat(block) if scope == "block" else block)(w, x)
        logits = pin(times(rms(x, params["model"]["norm"]), params["lm_head"]["weight"]), "head.logits")
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(tokens, -1, 1)[..., None], -1)
        return -picked.mean()

    return loss


def make_step(loss, constrain_gradients, fetch=lambda state: state):
    def step(params, state, tokens):
        state = fetch(state)
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        gradients = constrain_gradients(gradients)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["momentum"], gradients)
        params = jax.tree.map(lambda p, m: p - LEARNING_RATE * m, params, momentum)
        return params, {"momentum": momentum, "count": state["count"] + 1}, value

    return step


def run_exported(exported, layout, params, state, tokens):
    mesh = exported.make_mesh()
    shardings = exported.param_shardings(mesh, params, layout=layout)
    states = exported.state_shardings(mesh, state, layout=layout)

    def pin(x, name):
        return exported.constrain(x, name, mesh) if name in exported.ACTIVATION_SPECS else x

    def constrain_gradients(gradients):
        if not exported.SHARD_GRADIENTS:
            return gradients
        return jax.lax.with_sharding_constraint(
            gradients, exported.state_shardings(mesh, gradients, layout=layout)
        )

    loss = make_loss(pin, exported.remat, exported.REMAT_SCOPE, layout)
    step = jax.jit(
        make_step(
            loss, constrain_gradients, lambda state: exported.state_on_device(mesh, state, layout=layout)
        ),
        in_shardings=(shardings, states, exported.batch_sharding(mesh)),
        out_shardings=(shardings, states, None),
        donate_argnums=(0, 1),
    )
    placed = (
        jax.device_put(params, shardings),
        jax.device_put(state, states),
        jax.device_put(tokens, exported.batch_sharding(mesh)),
    )
    return step(*placed)


def shard_shapes(tree):
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = list(leaf.addressable_shards[0].data.shape)
        assert len(leaf.sharding.device_set) == jax.device_count(), f"{name} is not on all devices"
    return found


def worst(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def main(path, settings):
    exported = load(path)
    layout = settings.get("layout", "in_out")
    rng = np.random.default_rng(0)
    params = make_params(rng, layout, settings.get("ffn", 96), settings.get("experts", 0))
    tokens = jnp.asarray(rng.integers(VOCAB, size=(exported.GLOBAL_BATCH, SEQ)))
    state = {"momentum": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros((), jnp.int32)}
    plain_loss = make_loss(lambda x, name: x, lambda function: function, None, layout)
    expected = jax.jit(make_step(plain_loss, lambda gradients: gradients))(params, state, tokens)
    start = jax.tree.map(jnp.copy, params)
    found = run_exported(exported, layout, params, state, tokens)
    print(
        json.dumps(
            {
                "loss": float(expected[2]),
                "loss_error": abs(float(found[2]) - float(expected[2])),
                "param_error": worst(found[0], expected[0]),
                "moved": worst(expected[0], start),
                "params": shard_shapes(found[0]),
                "momentum": shard_shapes(found[1]["momentum"]),
                "state_memory": sorted({leaf.sharding.memory_kind for leaf in jax.tree.leaves(found[1])}),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
