"""Arguments and results of a JAX function: what its arrays are called, and which of them are built alike."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from planner.tracing.program import Role


class Leaf(NamedTuple):
    """An array among the arguments."""

    path: str
    role: Role


def leaves_of(
    function: Callable[..., Any], arguments: Sequence[Any], trained: Sequence[int]
) -> Iterator[Leaf]:
    """Path and role of every array among the arguments."""
    import jax

    for i, (top, argument) in enumerate(zip(_names(function, len(arguments)), arguments, strict=True)):
        for path, _ in jax.tree_util.tree_leaves_with_path(argument):
            inner = jax.tree_util.keystr(path, simple=True, separator=".")
            yield Leaf(f"{top}.{inner}" if inner else top, "parameter" if i in trained else "input")


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
