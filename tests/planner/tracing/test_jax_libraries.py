"""Models and training steps as people write them with libraries: flax, and optimizers of optax."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")
optax = pytest.importorskip("optax")

from planner import Program, from_jax, shard  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.filterwarnings("ignore")]
TOKENS = jax.ShapeDtypeStruct((8, 16), "int32")


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(jax.numpy.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(64, 32)(tokens)
        for _ in range(2):
            x = nn.remat(Block)()(x)
        return nn.Dense(64)(x)


def step_of(optimizer: Any) -> tuple[Any, Any, Any]:
    """A training step, and the shapes of its parameters and states."""
    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        logits = model.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(params: Any, state: Any, tokens: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, params, jax.eval_shape(optimizer.init, params)


OPTIMIZERS = {
    "adamw": lambda: optax.adamw(1e-3),
    "clipped adam with a schedule": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.warmup_cosine_decay_schedule(0, 1e-3, 10, 100))
    ),
    "adafactor": lambda: optax.adafactor(1e-3),
    "every second step": lambda: optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whole_training_steps_are_traced(name: str) -> None:
    step, params, state = step_of(OPTIMIZERS[name]())
    program = from_jax(step, params, state, TOKENS, TOKENS)
    assert Program.model_validate_json(program.to_json()) == program
    trained = {v.name for v in program.values if v.role == "parameter"}
    assert len(trained) == len(jax.tree.leaves(params))
    assert trained <= {t.target for t in program.ties}
    assert not program.replicated


def test_a_step_is_sharded() -> None:
    step, params, state = step_of(optax.adamw(1e-3))
    program = from_jax(step, params, state, TOKENS, TOKENS)
    assert shard(program, "dgx-h100:1", {"data": 2, "model": 4}).proven
