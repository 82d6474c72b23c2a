"""One training step of a small model under exported shardings on CPU devices, against one device.

    python -m planner.verification.programs.jax_check task.json

Prints, as JSON, losses before and after the step, and how far the parameters are apart.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from planner.verification.programs.jax_graph import NoProgram, plain_attention
from planner.verification.programs.jax_step import (
    Task,
    load,
    make_loss,
    make_step,
    shapes,
    sharded_step,
    start_state,
)


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    try:
        found = check(task)
    except NoProgram as error:
        found = {"unsupported": str(error)}
    print(json.dumps(found))


def as_is(x: Any, _: str) -> Any:
    """An array that is neither pinned nor laid: on one device."""
    return x


def check(task: Task) -> dict[str, Any]:
    """Losses and differences of two steps: sharded, and on one device."""
    exported = load(task["exported"])
    rng = np.random.default_rng(0)
    params = {path: _start(rng, spec.shape) for path, spec in shapes(task).items()}
    data = {name: _data(rng, exported, spec) for name, spec in task["data"].items()}
    state = start_state(task["optimizer"], params)
    plain_loss = make_loss(task, exported, as_is, as_is, None, plain_attention)
    plain = jax.jit(make_step(task, plain_loss, lambda tree: tree, lambda tree: tree))
    expected = plain(params, state, data)
    after = plain(*expected[:2], data)[2]
    moved = _worst(expected[0], params)
    mesh = exported.make_mesh()
    step, shardings = sharded_step(task, exported, mesh, plain_attention)
    result = step(*jax.device_put(jax.tree.map(np.asarray, (params, state, data)), shardings))
    distance = _worst(result[0], expected[0])
    again = step(*result[:2], jax.device_put(jax.tree.map(np.asarray, data), shardings[2]))[2]
    return {
        "version": jax.__version__,
        "devices": int(mesh.size),
        "loss": [float(expected[2]), float(after)],
        "parallel_loss": [float(result[2]), float(again)],
        "moved": moved,
        "distance": distance,
    }


def _start(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    scale = 0.3 / max(1, shape[-2] if len(shape) > 1 else 1) ** 0.5
    return jnp.asarray(rng.normal(size=shape) * scale + (0.5 if len(shape) < 2 else 0), jnp.float32)


def _data(rng: np.random.Generator, exported: Any, spec: dict[str, Any]) -> Any:
    micro = exported.NUM_MICROBATCHES
    shape = (micro, exported.GLOBAL_BATCH // micro, *spec["sizes"][1:])
    if spec["dtype"] == "int32":
        return jnp.asarray(rng.integers(spec["below"], size=shape), jnp.int32)
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _worst(tree: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


if __name__ == "__main__":
    main(sys.argv[1])
