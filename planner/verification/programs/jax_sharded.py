"""A function under the layouts of a sharded program, on simulated CPU devices, against one device.

    python -m planner.verification.programs.jax_sharded task.json

Compiles on the plan's mesh and counts collectives by operator; runs on that mesh, or on a smaller one with the
same axes where it has more than ``task["devices"]``. Prints JSON.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from cluster_specs.errors import InputError
from planner.tracing.applying.jax_apply import apply_shardings, input_shardings
from planner.tracing.applying.scopes import SCOPE, operator_of
from planner.tracing.cleaning.passes import clean
from planner.tracing.program import Program
from planner.tracing.reading.from_jax import from_jax
from planner.tracing.reading.jax_functions import traced, without_static
from planner.tracing.sharded import ShardedProgram
from planner.verification.programs.functions import load_function, print_answer, smaller_mesh
from planner.verification.programs.hlo import listed_collectives
from planner.verification.programs.numbers import NOISE, output_of

TYPES = ("float16", "bfloat16", "float32", "float64")
"""Of which a rounding is what inputs are moved by."""

_SCOPES = re.compile(re.escape(SCOPE) + r"([^\]]*)\]")


def check(task: Mapping[str, Any]) -> dict[str, Any]:
    """What was compiled, and how far what was computed is from what one device computes."""
    sharded = ShardedProgram.model_validate_json(Path(task["exported"]).read_text())
    loaded = load_function(task["function"])
    if isinstance(loaded, Program):
        raise InputError(f"{task['function']} is a program; what runs is a function: (function, *arguments)")
    function, given = loaded[0], loaded[1:]
    if hasattr(function, "named_parameters"):
        raise InputError(f"{task['function']} is a module of PyTorch: it is verified --with torch")
    function, arguments = without_static(function, given)
    check_arguments(sharded.program, arguments, task["function"])
    check_function(sharded.program, function, arguments, task["function"])
    compiled = compile_sharded(function, arguments, sharded)
    found = {"version": jax.__version__, "compiled": compiled_by_operator(compiled, sharded)}
    small = sharded.model_copy(update={"mesh": smaller_mesh(sharded.mesh, task["devices"])})
    if small.mesh != sharded.mesh:
        if _fixes_devices(sharded.program):
            count = math.prod(sharded.mesh.values())
            raise InputError(f"{task['function']} fixes the devices of its shard_map: it runs on all {count}")
        compiled = compile_sharded(function, arguments, small)
    places = None if not _fixes_devices(sharded.program) else NamedSharding(_mesh(sharded), PartitionSpec())
    alone = jax.jit(traced(function, arguments).function).lower(*_shapes(arguments, places)).compile()
    taken = _bytes(compiled) * math.prod(small.mesh.values()) + _bytes(alone)
    if taken > task["most_bytes"]:
        return {**found, "mesh": dict(small.mesh), "bytes": taken}
    given = filled(arguments, sharded.program)
    share = rounding(sharded.program)
    near = given, nudged(given, share), nudged(given, NOISE * share)
    expected, *moved = (alone(*(x if places is None else jax.device_put(x, places))) for x in near)
    check_finite(expected, task["function"])
    placed = jax.device_put(given, input_shardings(small, _mesh(small), given))
    outputs = compared(compiled(*placed), expected, *moved)
    return {**found, "mesh": dict(small.mesh), "bytes": taken, "outputs": outputs}


def check_arguments(program: Program, arguments: Sequence[Any], target: str) -> None:
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


def check_function(program: Program, function: Any, arguments: Sequence[Any], target: str) -> None:
    """Refuse a function whose operators are not those of the program, however often loops run."""
    unknown = bool(program.replicated)
    traced = clean(from_jax(function, *arguments, replicate_unknown=unknown, trips=1, rules=program.rules))
    theirs, ours = ({m.name for op in p.operations for m in op.members} for p in (traced, program))
    if theirs != ours:
        raise InputError(f"{target} is not the function that was planned: only one has {min(theirs ^ ours)}")


def _mesh(sharded: ShardedProgram) -> Any:
    sizes = tuple(sharded.mesh.values())
    return jax.sharding.Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), tuple(sharded.mesh))


def compile_sharded(function: Any, arguments: Sequence[Any], sharded: ShardedProgram) -> Any:
    """``function`` compiled under the layouts of ``sharded``; no array is made."""
    mesh = _mesh(sharded)
    places = input_shardings(sharded, mesh, arguments)
    placed = jax.tree.map(_placed, jax.eval_shape(lambda *given: given, *arguments), places)
    return jax.jit(apply_shardings(function, sharded, mesh, arguments)).lower(*placed).compile()


def _placed(array: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def _fixes_devices(program: Program) -> bool:
    """Whether a part of it runs on a mesh only: then it is compared with itself, on that mesh without layouts."""
    return any(op.manual is not None for op in program.operations)


def _shapes(arguments: Sequence[Any], sharding: Any) -> Any:
    """Arguments as they are, or all so on a mesh."""
    if sharding is None:
        return arguments
    shapes = jax.eval_shape(lambda *given: given, *arguments)
    return jax.tree.map(lambda x: _placed(x, sharding), shapes)


def compiled_by_operator(compiled: Any, sharded: ShardedProgram) -> list[dict[str, Any]]:
    """Every collective: its operator in the program, kind, bytes of the whole array, how often, types, rounding."""
    devices = math.prod(sharded.mesh.values())
    return [
        {
            "operator": operator_of(scopes[-1]) if (scopes := _SCOPES.findall(c.scope)) else "",
            "collective": c.kind,
            "full_bytes": c.full_bytes,
            "times": c.times,
            "types": c.types,
            "rounded": c.rounded,
        }
        for c in listed_collectives(compiled.as_text(), devices, _trips(sharded.program))
    ]


def _trips(program: Program) -> float:
    """How often loops that end on a condition were taken to run; all alike."""
    times = {op.name: op.times for op in program.operations if op.kind == "boundary"}
    ends = (
        t for t in program.ties if t.target.rpartition("/carry.")[0].rpartition("/")[2].startswith("while.")
    )
    return max((t.times / times[t.target] for t in ends if t.target in times), default=1.0)


def _bytes(compiled: Any) -> int:
    stats = compiled.memory_analysis()
    return int(stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes)


def filled(arguments: Sequence[Any], program: Program) -> tuple[Any, ...]:
    """Arrays as they are, random numbers for shapes; indices are 0 or 1, which every table has.

    What a step hands on beside its weights (moments, counters) is not negative: roots are taken of it.
    """
    tied = {t.target for t in program.ties}
    states = {n for n in program.inputs if n in tied and program.value[n].role != "parameter"}
    flat, structure = jax.tree.flatten(tuple(arguments))
    made = []
    for seed, (leaf, name) in enumerate(zip(flat, program.inputs, strict=True)):
        array = _numbers(leaf, seed)
        made.append(jnp.abs(array) if name in states and isinstance(leaf, jax.ShapeDtypeStruct) else array)
    return tuple(jax.tree.unflatten(structure, made))


def _numbers(leaf: Any, seed: int) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    rng = np.random.default_rng(seed)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(seed), leaf.shape) if leaf.shape else jax.random.key(seed)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(rng.integers(0, 2, leaf.shape), leaf.dtype)
    # Weights that make what passes through them no larger: numbers that explode show rounding, not layouts.
    scale = min(0.3, max(1, *leaf.shape) ** -0.5) if leaf.ndim > 1 else 0.3
    return jnp.asarray(rng.normal(scale=scale, size=leaf.shape), leaf.dtype)


def check_finite(outputs: Any, target: str) -> None:
    """Refuse numbers that cannot be compared, by path."""
    for path, array in jax.tree_util.tree_leaves_with_path(outputs):
        if jnp.issubdtype(array.dtype, jnp.floating) and not np.isfinite(np.asarray(array)).all():
            raise InputError(
                f"{target}: on one device, output{jax.tree_util.keystr(path)} has numbers that are not finite; "
                "shapes are filled with random numbers: give arrays that the function can take"
            )


def rounding(program: Program) -> float:
    """Of the coarsest type that a program computes in: weights may be finer than what is made of them."""
    types = {jnp.dtype(v.dtype) for v in program.values if v.dtype in TYPES}
    return max((float(jnp.finfo(t).eps) for t in types), default=0.0)


def nudged(arguments: Any, share: float) -> Any:
    """The same, every number by a share of itself off, or what it can be, up or down by chance."""
    rng = np.random.default_rng(0)

    def moved(array: Any) -> Any:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        step = max(share, float(jnp.finfo(array.dtype).eps)) * rng.choice([-1.0, 1.0], array.shape)
        return (array * (1 + step)).astype(array.dtype)

    return jax.tree.map(moved, jax.tree.map(jnp.asarray, arguments))


def compared(found: Any, expected: Any, moved: Any, further: Any) -> list[dict[str, Any]]:
    """Each output under layouts beside that of one device, and those of inputs off by one rounding and by `NOISE`."""
    leaves = zip(*map(jax.tree.leaves, (found, moved, further)), strict=True)
    paths = jax.tree_util.tree_leaves_with_path(expected)
    return [
        output_of(f"output{jax.tree_util.keystr(path)}", *map(_floats, (one, *others)))
        for (path, one), others in zip(paths, leaves, strict=True)
    ]


def _floats(array: Any) -> Any:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).astype(np.float64)


if __name__ == "__main__":
    print_answer(sys.argv[1], check)
