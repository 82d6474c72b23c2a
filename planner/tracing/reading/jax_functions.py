"""A JAX function as it can be traced by itself: of its arrays alone, wherever it says that these are to lie."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_WITHOUT_MESH = "requires a non-empty mesh in context"
_UNKNOWN_AXIS = re.compile(r"Resource axis: (\S+) of ")
"""What JAX says of a ``PartitionSpec`` without a mesh, and of an axis that the mesh has not."""


def without_static(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """``function`` of its arrays alone, and these: what ``jax.jit`` was told is static is as it is given."""
    static = {i: arguments[i] for i in _static_places(function, len(arguments))}
    if not static:
        return function, tuple(arguments)

    def run(*arrays: Any) -> Any:
        left = iter(arrays)
        return function(*(static[i] if i in static else next(left) for i in range(len(arguments))))

    parameters = inspect.signature(function).parameters.values()
    kept = [p for i, p in enumerate(parameters) if i not in static or p.kind == p.VAR_POSITIONAL]
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    run.__name__ = str(getattr(function, "__name__", "program"))
    return run, tuple(x for i, x in enumerate(arguments) if i not in static)


def _static_places(function: Any, count: int) -> set[int]:
    """Those of ``count`` that a ``jax.jit`` has as static: of ``function``, or of what it differentiates."""
    found: set[int] = set()
    while function is not None:
        jitted = getattr(function, "jitted_fn", function)  # flax's nnx.jit
        info = getattr(jitted, "_jit_info", None)  # with the places of those that are named
        found |= set() if info is None else {i + count * (i < 0) for i in info.static_argnums}
        function = getattr(function, "__wrapped__", None)
    return found & {*range(count)}


class Traced(NamedTuple):
    """A function as JAX has traced it."""

    function: Callable[..., Any]
    """Itself, as it can be traced again."""
    closed: Any
    result: Any
    """What it returns, as shapes."""
    axes: tuple[str, ...]
    """Of meshes that it speaks of but has not."""


def traced(function: Callable[..., Any], arguments: Sequence[Any]) -> Traced:
    """``function``, which may constrain arrays by a ``PartitionSpec`` alone: there is a mesh of one device then.

    Where arrays lie is the plan's to say, so that it need not be the mesh that the function is for.
    """
    import jax

    axes: tuple[str, ...] = ()
    while True:
        run = _among(function, axes) if axes else function
        try:
            closed, result = jax.make_jaxpr(run, return_shape=True)(*arguments)
        except (RuntimeError, ValueError) as error:
            unknown = _UNKNOWN_AXIS.search(str(error))
            missing = unknown.group(1) if unknown else "one" if _WITHOUT_MESH in str(error) else ""
            if not missing or missing in axes:
                raise
            axes = (*axes, missing)
        else:
            return Traced(run, closed, result, axes)


def _among(function: Callable[..., Any], axes: tuple[str, ...]) -> Callable[..., Any]:
    """``function`` where a mesh of one device has these axes."""
    from jax.sharding import AbstractMesh, use_abstract_mesh

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        with use_abstract_mesh(AbstractMesh((1,) * len(axes), axes)):
            return function(*arguments)

    return run
