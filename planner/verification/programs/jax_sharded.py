"""A function under the layouts of a sharded program, on simulated CPU devices, against one device.

    python -m planner.verification.programs.jax_sharded task.json

Compiles on the plan's mesh and counts collectives by operator; runs on that mesh, or on a smaller one with the
same axes where it has more than ``task["devices"]``. Prints JSON.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cluster_specs.errors import InputError
from planner.errors import PlannerError
from planner.tracing.applying.jax_apply import apply_shardings, input_shardings
from planner.tracing.applying.scopes import SCOPE, operator_of
from planner.tracing.cleaning.passes import clean
from planner.tracing.program import Program
from planner.tracing.reading.from_jax import from_jax
from planner.tracing.sharded import ShardedProgram
from planner.verification.programs.functions import load_function
from planner.verification.programs.hlo import listed_collectives

_SCOPES = re.compile(re.escape(SCOPE) + r"([^\]]*)\]")


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    try:
        found = check(task)
    except (InputError, PlannerError) as error:
        found = {"refused": str(error)}
    print(json.dumps(found))


def check(task: Mapping[str, Any]) -> dict[str, Any]:
    """What was compiled, and how far what was computed is from what one device computes."""
    sharded = ShardedProgram.model_validate_json(Path(task["exported"]).read_text())
    loaded = load_function(task["function"])
    if isinstance(loaded, Program):
        raise InputError(f"{task['function']} is a program; what runs is a function: (function, *arguments)")
    function, *arguments = loaded
    check_arguments(sharded.program, arguments, task["function"])
    check_function(sharded.program, function, arguments, task["function"])
    compiled = compile_sharded(function, arguments, sharded)
    found = {"version": jax.__version__, "compiled": compiled_by_operator(compiled, sharded)}
    small = sharded.model_copy(update={"mesh": smaller_mesh(sharded.mesh, task["devices"])})
    if small.mesh != sharded.mesh:
        compiled = compile_sharded(function, arguments, small)
    alone = jax.jit(function).lower(*arguments).compile()
    taken = _bytes(compiled) * math.prod(small.mesh.values()) + _bytes(alone)
    if taken > task["most_bytes"]:
        return {**found, "mesh": dict(small.mesh), "bytes": taken}
    given = tuple(_filled(x, i) for i, x in enumerate(arguments))
    expected = alone(*given)
    placed = jax.device_put(given, input_shardings(small, _mesh(small), given))
    outputs = list(_compared(compiled(*placed), expected))
    return {**found, "mesh": dict(small.mesh), "bytes": taken, "outputs": outputs}


def check_arguments(program: Program, arguments: list[Any], target: str) -> None:
    """Refuse arrays of other shapes or types than the program's inputs, by path."""
    leaves = jax.tree.leaves(arguments)
    values = [program.value[name] for name in program.inputs]
    if len(leaves) != len(values):
        raise InputError(
            f"{target} is called with {len(leaves)} arrays, the plan's program with {len(values)}"
        )
    for leaf, value in zip(leaves, values, strict=True):
        array = leaf if hasattr(leaf, "shape") else jnp.asarray(leaf)
        if (tuple(array.shape), str(array.dtype)) != (value.shape, value.dtype):
            raise InputError(
                f"{target}: {value.path} is {array.dtype}{list(array.shape)}, the plan's program has "
                f"{value.dtype}{list(value.shape)}"
            )


def check_function(program: Program, function: Any, arguments: list[Any], target: str) -> None:
    """Refuse a function whose operators are not those of the program, however often loops run."""
    unknown = bool(program.replicated)
    traced = clean(from_jax(function, *arguments, replicate_unknown=unknown, trips=1, rules=program.rules))
    theirs, ours = ({m.name for op in p.operations for m in op.members} for p in (traced, program))
    if theirs != ours:
        raise InputError(f"{target} is not the function that was planned: only one has {min(theirs ^ ours)}")


def smaller_mesh(mesh: Mapping[str, int], most: int) -> dict[str, int]:
    """The same axes on at most ``most`` devices: the largest axis is divided by its smallest factor, again and again.

    What divides by an axis also divides by a factor of it, so every layout stays possible.
    """
    sizes = dict(mesh)
    while math.prod(sizes.values()) > most:
        axis = max(sizes, key=lambda name: sizes[name])
        sizes[axis] //= next(n for n in range(2, sizes[axis] + 1) if sizes[axis] % n == 0)
    return sizes


def _mesh(sharded: ShardedProgram) -> Any:
    sizes = tuple(sharded.mesh.values())
    return jax.sharding.Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), tuple(sharded.mesh))


def compile_sharded(function: Any, arguments: list[Any], sharded: ShardedProgram) -> Any:
    """``function`` compiled under the layouts of ``sharded``; no array is made."""
    mesh = _mesh(sharded)
    places = input_shardings(sharded, mesh, arguments)
    shapes = jax.eval_shape(lambda *given: given, *arguments)
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places)
    return jax.jit(apply_shardings(function, sharded, mesh, arguments)).lower(*placed).compile()


def compiled_by_operator(compiled: Any, sharded: ShardedProgram) -> list[dict[str, Any]]:
    """Every collective: its operator in the program, kind, bytes of the whole array, and how often it runs."""
    devices = math.prod(sharded.mesh.values())
    return [
        {
            "operator": operator_of(scopes[-1]) if (scopes := _SCOPES.findall(c.scope)) else "",
            "collective": c.kind,
            "full_bytes": c.full_bytes,
            "times": c.times,
        }
        for c in listed_collectives(compiled.as_text(), devices)
    ]


def _bytes(compiled: Any) -> int:
    stats = compiled.memory_analysis()
    return int(stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes)


def _filled(argument: Any, seed: int) -> Any:
    """Arrays as they are, random numbers for shapes; indices are 0 or 1, which every table has."""
    rng = np.random.default_rng(seed)

    def numbers(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(seed), leaf.shape) if leaf.shape else jax.random.key(seed)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(rng.integers(0, 2, leaf.shape), leaf.dtype)
        # Weights that make what passes through them no larger: numbers that explode show rounding, not layouts.
        scale = min(0.3, max(1, *leaf.shape) ** -0.5) if leaf.ndim > 1 else 0.3
        return jnp.asarray(rng.normal(scale=scale, size=leaf.shape), leaf.dtype)

    return jax.tree.map(numbers, argument)


def _compared(found: Any, expected: Any) -> Iterator[dict[str, Any]]:
    """Each output: its largest number on one device and sharded, and how far the two are apart."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True)
    for (path, one), many in pairs:
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, many = jax.random.key_data(one), jax.random.key_data(many)
        a, b = (np.asarray(x).astype(np.float64) for x in (one, many))
        largest = float(np.abs(a).max(initial=0.0))
        yield {
            "name": f"output{jax.tree_util.keystr(path)}",
            "scalar": a.ndim == 0,
            "expected": float(a) if a.ndim == 0 else largest,
            "found": float(b) if a.ndim == 0 else float(np.abs(b).max(initial=0.0)),
            "error": float(np.abs(a - b).max(initial=0.0)) / (largest + 1e-30),
        }


if __name__ == "__main__":
    main(sys.argv[1])
