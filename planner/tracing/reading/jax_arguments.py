"""Arguments and results of a JAX function: what its arrays are called, and which of them are built alike."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.tracing.program import Role

WEIGHTS = "params"
"""What flax calls weights beside states."""


class Leaf(NamedTuple):
    """An array among the arguments."""

    path: str
    role: Role


def leaves_of(
    function: Callable[..., Any], arguments: Sequence[Any], trained: Sequence[int]
) -> Iterator[Leaf]:
    """Path and role of every array among the arguments.

    Of a trained argument that has ``params`` beside other things (flax's ``TrainState``) these alone are trained.
    """
    import jax

    for i, (top, argument) in enumerate(zip(_names(function, len(arguments)), arguments, strict=True)):
        inner = [
            jax.tree_util.keystr(path, simple=True, separator=".")
            for path, _ in jax.tree_util.tree_leaves_with_path(argument)
        ]
        some = any(path.split(".")[0] == WEIGHTS for path in inner)
        for path in inner:
            is_weight = i in trained and (not some or path.split(".")[0] == WEIGHTS)
            yield Leaf(f"{top}.{path}" if path else top, "parameter" if is_weight else "input")


def watched(function: Callable[..., Any], leaves: Sequence[Leaf], title: str) -> Callable[..., Any]:
    """The function, which raises ``InputError`` where it leaves other numbers in its arguments without returning them.

    Steps of flax's nnx change a model in place; what they leave there is no result, so that a plan would drop it.
    """
    import jax

    @functools.wraps(function)
    def run(*given: Any) -> Any:
        before = jax.tree.leaves(given)
        result = function(*given)
        after, returned = jax.tree.leaves(given), {id(x) for x in jax.tree.leaves(result)}
        left = [
            leaf.path
            for leaf, one, other in zip(leaves, before, after, strict=False)
            if one is not other
            and id(other) not in returned
            and jax.numpy.issubdtype(one.dtype, jax.numpy.floating)
        ]
        if left:
            more = f" and {len(left) - 1} more of its arguments" if len(left) > 1 else ""
            raise InputError(
                f"{title} changes {left[0]}{more} in place, and a plan keeps only what a function returns: return "
                "what it changes, as in `return loss, nnx.state(model)`"
            )
        return result

    return run


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """As the function calls its positional arguments; numbered where it does not name them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "arg")
    return names + [f"{rest}{i}" for i in range(count - len(names))]


def ties_of(arguments: Sequence[Any], result: Any) -> Iterator[tuple[int, int]]:
    """(output, input) positions of what is built alike: parts of the result and whole arguments.

    Of several arguments that are alike (weights and their momentum) each is taken once, in order, then the first.
    """
    import jax

    tree = jax.tree_util
    arguments = jax.eval_shape(lambda *given: given, *arguments)  # numbers have shapes and types then

    def described(part: Any) -> tuple[Any, ...]:
        leaves, structure = tree.tree_flatten(part)
        return structure, [(tuple(x.shape), str(x.dtype)) for x in leaves]

    starts, at = [], 0
    for argument in arguments:
        starts.append(at)
        at += len(tree.tree_leaves(argument))
    taken: set[int] = set()
    known = [(described(a), s) for a, s in zip(arguments, starts, strict=True) if not hasattr(a, "shape")]
    at = 0
    for part in tree.tree_leaves(result, is_leaf=lambda part: any(described(part) == d for d, _ in known)):
        count = len(tree.tree_leaves(part))
        starts = [s for d, s in known if d == described(part)]
        if starts:
            start = next((s for s in starts if s not in taken), starts[0])
            taken.add(start)
            yield from ((at + k, start + k) for k in range(count))
        at += count
