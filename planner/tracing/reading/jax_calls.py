"""Equations of a traced JAX function: what they call, what they are called, how much they do."""

from collections.abc import Sequence
from typing import Any

from planner.tracing.program import elements
from planner.tracing.reading.jax_rules import JAX_RULES

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "composite": "jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Primitive that calls a function -> its parameter that holds it."""

SOLVER = "custom_linear_solve"
"""Solves a linear system by a function that it has for that, beside those that derivatives need
(jax ``_src/custom_derivatives.py``, ``lax/control_flow/solves.py``)."""

ATTENTION = "meshwright_attention"
"""Begins the names of calls that are one attention (`planner.tracing.reading.jax_attention`)."""

APART = ("remat2.", "checkpoint.", ATTENTION)
"""Calls that compute for themselves: what is in them is not merged with what is computed elsewhere."""


PLACES = frozenset({"device_put", "mesh_cast", "reshard", "sharding_constraint"})
"""Primitives that say where an array is to lie, which is the plan's to say."""

TOGETHER = frozenset({"device_put", "optimization_barrier"})
"""Primitives that hand on any number of arrays, which have nothing to do with each other, each as it is."""


def bound(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """What an equation makes of ``operands``, wherever the function says that it should lie."""
    if equation.primitive.name in PLACES:
        return list(operands)
    anywhere = {key: None for key in ("sharding", "out_sharding") if key in equation.params}
    found = equation.primitive.get_bind_params({**equation.params, **anywhere})
    functions, params = found if isinstance(found, tuple) else ((), found)  # before JAX 0.10 a pair
    made = equation.primitive.bind(*functions, *operands, **params)
    return list(made) if equation.primitive.multiple_results else [made]


def one_by_one(equation: Any, title: str) -> list[tuple[Any, str]]:
    """An equation, as one for each array that it hands on, with their names."""
    if equation.primitive.name not in TOGETHER or len(equation.outvars) == 1:
        return [(equation, title)]
    pairs = zip(equation.invars, equation.outvars, strict=True)
    return [(equation.replace(invars=[a], outvars=[v]), f"{title}:{k}") for k, (a, v) in enumerate(pairs)]


def calls(equation: Any) -> Any | None:
    """The function that an equation calls, or None."""
    inner = _called(equation)
    return None if inner is None else getattr(inner, "jaxpr", inner)


def _called(equation: Any) -> Any | None:
    if equation.primitive.name == SOLVER:
        return equation.params["jaxprs"].solve
    return equation.params.get(CALLS.get(equation.primitive.name, ""))


def call_operands(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Those of its ``operands`` that the called function gets: a solver has others, for its derivatives."""
    if equation.primitive.name != SOLVER:
        return list(operands)
    counts = equation.params["const_lengths"]
    start = counts.matvec + counts.vecmat
    end = start + counts.solve
    return [*operands[start:end], *operands[end + counts.transpose_solve :]]


def runs_again(equation: Any) -> bool:
    """Whether it calls what runs for a second time, of operands that are held back for it."""
    held = equation.params.get("prevent_cse", False)
    return bool(equation.params.get("differentiated")) and (any(held) if isinstance(held, tuple) else held)


def call_constants(equation: Any) -> Sequence[Any]:
    """Arrays that the called function brings along."""
    return getattr(_called(equation), "consts", ())


def branch_name(title: str, number: int) -> str:
    """Begins the names of what is inside one branch of a ``cond``."""
    return f"{title}/branch.{number}/"


def test_name(title: str) -> str:
    """Begins the names of what a ``while`` asks before each pass."""
    return f"{title}/test/"


def work(jaxpr: Any) -> int:
    """Steps of all loops in ``jaxpr``; an operator without a rule counts by its outputs."""
    total = 0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, calls(equation)
        shapes = [tuple(getattr(a.aval, "shape", ())) for a in (*equation.invars, *equation.outvars)]
        if inner is not None:
            total += work(inner)
        elif name == "scan":
            total += equation.params["length"] * work(equation.params["jaxpr"].jaxpr)
        elif name == "cond":
            total += max(work(branch.jaxpr) for branch in equation.params["branches"])
        elif name in JAX_RULES:
            given = len(equation.invars)
            total += elements(JAX_RULES[name](equation.params, shapes[:given], shapes[given:], "").sizes)
        else:
            total += sum(elements(shape) for shape in shapes[len(equation.invars) :])
    return total


def kernel_names(equation: Any) -> list[str]:
    """Under which a user may give a rule for an equation: its kernel's own, then its primitive's."""
    own = (equation.params.get(key) for key in ("name", "target_name"))
    return [*(str(name) for name in own if name), equation.primitive.name]


BOUNDARIES = frozenset({"carry", "constant", "in", "slice", "stack"})
"""Names, before a number, of what enters and leaves loops."""


def label(equation: Any, index: int) -> str:
    """Name of an equation among those around it."""
    name = equation.params.get("name") or equation.primitive.name
    return f"{name}_.{index}" if name in BOUNDARIES else f"{name}.{index}"
