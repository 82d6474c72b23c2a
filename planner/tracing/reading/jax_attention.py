"""Attention as one operator of a JAX function: scores, softmax and context found between other products.

``join_attention(loss)`` computes what ``loss`` does, with every attention as one call that has its own derivative:
scores and probabilities are not kept for the backward pass but made again there from queries and keys. Programs have
such a call as one operator (`planner.tracing.cleaning.joining`).

Source: what is kept is that of Dao et al., "FlashAttention", arXiv:2205.14135, section 3.1, without its tiles.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from planner.tracing.reading.jax_calls import ATTENTION, bound, call_constants, calls
from planner.tracing.reading.jax_rules import ELEMENTWISE, REDUCTIONS, SAME

INLINE = frozenset({"jit", "pjit", "closed_call", "core_call"})
"""Calls that mean nothing but their function."""

BETWEEN = frozenset(
    {
        *ELEMENTWISE.split(), *SAME.split(), *REDUCTIONS.split(),
        "broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose",
    }
)  # fmt: skip
"""Primitives that may lie between scores and context."""


def join_attention(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` (a loss, before it is differentiated) with each attention as one operator.

    Found are products of two arrays, a softmax of their result, and its product with a third, as einsums,
    ``jax.nn.dot_product_attention`` and flax write them, in bodies of scans and under ``jax.checkpoint`` too. What is
    computed stays the same, to the rounding of gradients.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        import jax

        closed, shape = jax.make_jaxpr(lambda a, n: function(*a, **n), return_shape=True)(arguments, named)
        made = _run(_inlined(closed.jaxpr, closed.consts), jax.tree_util.tree_leaves((arguments, named)))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), made)

    return run


class _Group(NamedTuple):
    """An attention in a list of equations."""

    equations: tuple[int, ...]
    """In order; the first makes the scores, the last the context."""
    inputs: tuple[Any, ...]
    """Variables that it reads."""


def _inlined(jaxpr: Any, constants: Sequence[Any]) -> Any:
    """A jaxpr, closed, whose calls that mean nothing but their function are in line."""
    import jax

    def run(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))
        for equation in jaxpr.eqns:
            operands = [_read(values, a) for a in equation.invars]
            if equation.primitive.name in INLINE:
                made = run(
                    calls(equation), call_constants(equation) or equation.params["jaxpr"].consts, operands
                )
            else:
                made = bound(equation, operands)
            values.update(zip(equation.outvars, made, strict=True))
        return [_read(values, a) for a in jaxpr.outvars]

    shapes = [v.aval for v in jaxpr.invars]
    return jax.make_jaxpr(lambda *given: run(jaxpr, constants, given))(*shapes)


def _read(values: dict[Any, Any], atom: Any) -> Any:
    return atom.val if hasattr(atom, "val") else values[atom]


def _run(closed: Any, given: Sequence[Any]) -> list[Any]:
    """Values of the outputs, each attention computed by one call."""
    jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *given), strict=True))
    groups = list(_groups(jaxpr))
    inside = {i for group in groups for i in group.equations}
    last = {group.equations[-1]: group for group in groups}
    for index, equation in enumerate(jaxpr.eqns):
        if index in last:
            group = last[index]
            body = functools.partial(_evaluated, [jaxpr.eqns[i] for i in group.equations], group.inputs)
            values[equation.outvars[0]] = _as_one(body)(*(values[v] for v in group.inputs))
        elif index not in inside:
            made = _equation(equation, [_read(values, a) for a in equation.invars])
            values.update(zip(equation.outvars, made, strict=True))
    return [_read(values, a) for a in jaxpr.outvars]


def _equation(equation: Any, operands: list[Any]) -> list[Any]:
    """One equation, with what is in the bodies of loops and recomputations joined too."""
    import jax

    params = equation.params
    if equation.primitive.name == "scan":
        consts, carried = params["num_consts"], params["num_carry"]
        body = _inlined(params["jaxpr"].jaxpr, params["jaxpr"].consts)

        def step(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, Any]:
            made = _run(body, [*operands[:consts], *carry, *rows])
            return made[:carried], made[carried:]

        start, rows = operands[consts : consts + carried], operands[consts + carried :]
        options = {k: params[k] for k in ("length", "reverse", "unroll")}
        state, stacked = jax.lax.scan(step, start, rows, **options)
        return [*state, *stacked]
    if equation.primitive.name in ("remat2", "checkpoint") and not params["differentiated"]:
        body = _inlined(params["jaxpr"], ())
        options = {k: params[k] for k in ("policy", "prevent_cse")}
        return list(jax.checkpoint(lambda *given: _run(body, given), **options)(*operands))
    return bound(equation, operands)


def _evaluated(equations: Sequence[Any], inputs: Sequence[Any], *given: Any) -> Any:
    values = dict(zip(inputs, given, strict=True))
    for equation in equations:
        made = bound(equation, [_read(values, a) for a in equation.invars])
        values.update(zip(equation.outvars, made, strict=True))
    return values[equations[-1].outvars[0]]


def _as_one(body: Callable[..., Any]) -> Any:
    """A call under a name by which programs know it, whose derivative makes anew what it needs."""
    import jax

    def forward(*given: Any) -> Any:
        return body(*given)

    def backward(given: Sequence[Any], cotangent: Any) -> list[Any]:
        apart = [jax.lax.optimization_barrier(x) for x in given]
        varying = [i for i, x in enumerate(given) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]

        def of_varying(*numbers: Any) -> Any:
            arrays = dict(enumerate(apart)) | dict(zip(varying, numbers, strict=True))
            return body(*arrays.values())

        _, pull = jax.vjp(of_varying, *(apart[i] for i in varying))
        found = dict(zip(varying, pull(cotangent), strict=True))
        return [found.get(i) for i in range(len(given))]

    forward.__name__, backward.__name__ = ATTENTION, f"{ATTENTION}_backward"
    call: Any = jax.custom_vjp(jax.jit(forward))
    call.defvjp(lambda *given: (call(*given), given), lambda *given: tuple(jax.jit(backward)(*given)))
    return call


def _groups(jaxpr: Any) -> Iterator[_Group]:
    """Attentions whose scores and probabilities nothing else reads."""
    equations = jaxpr.eqns
    maker = {v: i for i, e in enumerate(equations) for v in e.outvars}
    readers: dict[Any, set[int]] = {v: {-1} for v in jaxpr.outvars if not hasattr(v, "val")}
    for i, equation in enumerate(equations):
        for v in _variables(equation):
            readers.setdefault(v, set()).add(i)
    taken: set[int] = set()
    for i, equation in enumerate(equations):
        if equation.primitive.name != "dot_general":
            continue
        for probabilities in _variables(equation):
            found = _between(equations, maker, maker.get(probabilities))
            made = {v for k in found for v in equations[k].outvars}
            if (
                not found
                or taken & {*found, i}
                or any(not readers.get(v, set()) <= {*found, i} for v in made)
            ):
                continue
            members = (*sorted(found), i)
            taken |= set(members)
            read = dict.fromkeys(v for k in members for v in _variables(equations[k]))
            yield _Group(members, tuple(v for v in read if v not in made))
            break


def _variables(equation: Any) -> list[Any]:
    return [v for v in equation.invars if not hasattr(v, "val")]


def _between(equations: Sequence[Any], maker: dict[Any, int], last: int | None) -> set[int]:
    """A product, and the equations from it to ``last``, a softmax among them; nothing where that is not what it is."""
    if last is None:
        return set()
    reaches: dict[int, frozenset[int]] = {}

    def products(index: int) -> frozenset[int]:
        """Those that an equation hangs on, through nothing but what may lie between."""
        if index not in reaches:
            equation = equations[index]
            if equation.primitive.name == "dot_general":
                reaches[index] = frozenset({index})
            elif equation.primitive.name not in BETWEEN:
                reaches[index] = frozenset()
            else:
                of = (products(maker[v]) for v in _variables(equation) if v in maker)
                reaches[index] = frozenset().union(*of)
        return reaches[index]

    if len(products(last)) != 1:
        return set()
    found = {i for i, of in reaches.items() if of}
    names = {equations[i].primitive.name for i in found}
    return found if {"exp", "reduce_sum", "dot_general"} <= names and last not in products(last) else set()
