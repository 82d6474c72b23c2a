"""A ``shard_map`` of the function on the plan's devices."""

from collections.abc import Callable
from typing import Any

from planner.errors import InputError
from planner.tracing.reading.jax_manual import manual_of


def mapped(equation: Any, title: str, mesh: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` in the place of the body of a ``shard_map``, between its specs.

    Raises ``InputError`` where it was written for another mesh: numbers in the body know where they were traced.
    """
    import jax

    params = equation.params
    own = params["mesh"]
    if list(own.shape.items()) != list(mesh.shape.items()):
        raise InputError(
            f"{title} is a shard_map on the mesh {dict(own.shape)}, and runs on no other; "
            f"the plan's is {dict(mesh.shape)}"
        )
    specs = {"in_specs": params["in_specs"], "out_specs": list(params["out_specs"])}
    axes = set(manual_of(equation).sizes)
    found: Callable[..., Any] = jax.shard_map(
        run, mesh=own, axis_names=axes, check_vma=params["check_vma"], **specs
    )
    return found
