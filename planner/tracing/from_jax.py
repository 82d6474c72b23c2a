"""A JAX function as a `Program`, by abstract evaluation: no array is allocated, nothing runs.

Calls (jit, remat, custom derivatives) are followed in line; of a ``cond`` the branch with the most work. A scan's
body stands in line once, with its trip count, between `boundary` operators: ``slice`` hands out one row of what is
scanned over, ``carry`` hands on the state, ``stack`` collects rows.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from planner.errors import InputError, Unsupported
from planner.tracing.factors import Loops, Rule, Shape, elementwise, opaque, retyped
from planner.tracing.jax_rules import JAX_RULES
from planner.tracing.program import Operation, Program, Role, Tie, Value, elements

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Primitive that calls a function -> its parameter that holds it."""

ATTENTION = "meshwright_attention"
"""Begins the names of calls that are one attention (`planner.tracing.jax_attention`)."""

APART = ("remat2.", "checkpoint.", ATTENTION)
"""Calls that compute for themselves: what is in them is not merged with what is computed elsewhere."""


def from_jax(
    function: Callable[..., Any],
    *arguments: Any,
    parameters: int | Sequence[int] = 0,
    name: str | None = None,
    replicate_unknown: bool = False,
) -> Program:
    """``function`` on ``arguments`` (arrays, or ``jax.ShapeDtypeStruct``; nested as you like), as a `Program`.

    What is traced is what is planned: a loss, ``jax.value_and_grad`` of it, or a whole training step.
    ``parameters`` are the positions of the arguments that hold trainable weights. An output that is built like
    an argument (gradients, new weights, optimizer states) is to lie like it.

    Raises ``Unsupported`` for an operator without a rule, unless ``replicate_unknown``: then it is computed
    alike everywhere, and listed.
    """
    import jax

    trained = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if bad := [i for i in trained if not 0 <= i < len(arguments)]:
        raise InputError(f"parameters={bad[0]}: the function gets {len(arguments)} arguments, counted from 0")
    closed, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    title = name or str(getattr(function, "__name__", "program"))
    leaves = list(_leaves(function, arguments, trained))
    return _Importer(title, replicate_unknown).run(closed, leaves, list(_ties(jax, arguments, result)))


def calls(equation: Any) -> Any | None:
    """The function that an equation calls, or None."""
    inner = equation.params.get(CALLS.get(equation.primitive.name, ""))
    return None if inner is None else getattr(inner, "jaxpr", inner)


def call_constants(equation: Any) -> Sequence[Any]:
    """Arrays that the called function brings along."""
    return getattr(equation.params[CALLS[equation.primitive.name]], "consts", ())


def branch_name(title: str, number: int) -> str:
    """Begins the names of what is inside one branch of a ``cond``."""
    return f"{title}/branch.{number}/"


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


def label(equation: Any, index: int) -> str:
    """Name of an equation among those around it."""
    return f"{equation.params.get('name') or equation.primitive.name}.{index}"


class _Place(NamedTuple):
    """Where in the program equations stand."""

    prefix: str
    times: int
    region: str
    kernel: str = ""


class _Leaf(NamedTuple):
    path: str
    role: Role


def _leaves(
    function: Callable[..., Any], arguments: Sequence[Any], trained: Sequence[int]
) -> Iterator[_Leaf]:
    """Path and role of every array among the arguments."""
    import jax

    for i, (top, argument) in enumerate(zip(_names(function, len(arguments)), arguments, strict=True)):
        for path, _ in jax.tree_util.tree_leaves_with_path(argument):
            inner = jax.tree_util.keystr(path, simple=True, separator=".")
            yield _Leaf(f"{top}.{inner}" if inner else top, "parameter" if i in trained else "input")


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """As the function calls its positional arguments; numbered where it does not name them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "arg")
    return names + [f"{rest}{i}" for i in range(count - len(names))]


def _ties(jax: Any, arguments: Sequence[Any], result: Any) -> Iterator[tuple[int, int]]:
    """(output, input) positions of what is built alike: parts of the result and whole arguments.

    Of several arguments that are alike (weights and their momentum) each is taken once, in order, then the first.
    """
    tree = jax.tree_util

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


class _Importer:
    """Values and operators as they are met."""

    def __init__(self, name: str, replicate_unknown: bool) -> None:
        self.name, self.replicate_unknown = name, replicate_unknown
        self.values: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self.ties: list[Tie] = []
        self.replicated: list[str] = []
        self.notes: list[str] = []

    def run(self, closed: Any, leaves: Sequence[_Leaf], ties: Sequence[tuple[int, int]]) -> Program:
        jaxpr = closed.jaxpr
        inputs = [
            self._value(leaf.path, var.aval, leaf.role, leaf.path)
            for leaf, var in zip(leaves, jaxpr.invars, strict=True)
        ]
        constants = [
            self._value(f"constant.{i}", var.aval, "constant") for i, var in enumerate(jaxpr.constvars)
        ]
        outputs = self._body(jaxpr, constants, inputs, _Place("", 1, ""))
        return Program(
            name=self.name,
            values=tuple(self.values.values()),
            operations=tuple(self.operations),
            inputs=tuple(inputs),
            outputs=tuple(dict.fromkeys(n for n in outputs if n is not None)),
            results=tuple(outputs),
            ties=(
                *self.ties,
                *(Tie(source=outputs[o], target=inputs[i]) for o, i in ties if outputs[o] is not None),
            ),
            applied=tuple(self.notes),
            replicated=tuple(self.replicated),
        )

    def _value(self, name: str, aval: Any, role: Role = "intermediate", path: str = "") -> str:
        if name in self.values:
            raise InputError(f"two arrays are called {name!r}; give the argument or its key another name")
        shape = tuple(int(n) for n in getattr(aval, "shape", ()))
        self.values[name] = Value(name=name, shape=shape, dtype=str(aval.dtype), role=role, path=path)
        return name

    def _body(
        self, jaxpr: Any, constants: Sequence[str | None], inputs: Sequence[str | None], place: "_Place"
    ) -> list[str | None]:
        """Names of the outputs of ``jaxpr``; None for literals."""
        names: dict[Any, str | None] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True)
        )

        def named(atom: Any) -> str | None:
            return None if hasattr(atom, "val") else names[atom]

        for index, equation in enumerate(jaxpr.eqns):
            title = place.prefix + label(equation, index)
            given = [named(atom) for atom in equation.invars]
            made = self._equation(equation, title, given, place)
            names.update(zip(equation.outvars, made, strict=True))
        return [named(atom) for atom in jaxpr.outvars]

    def _equation(
        self, equation: Any, title: str, given: list[str | None], place: "_Place"
    ) -> Sequence[str | None]:
        inner = calls(equation)
        if inner is not None:
            joined = str(equation.params.get("name", "")).startswith(ATTENTION)
            within = place._replace(kernel=title) if joined else place
            return self._call(inner, given, f"{title}/", within)
        if equation.primitive.name == "scan":
            return self._scan(equation, title, given, place)
        if equation.primitive.name == "cond":
            return self._cond(equation, title, given, place)
        known = [(n, a.aval) for n, a in zip(given, equation.invars, strict=True) if n is not None]
        shapes = [tuple(getattr(a, "shape", ())) for _, a in known]
        results = [tuple(v.aval.shape) for v in equation.outvars]
        rule = self._rule(
            equation, title, [tuple(getattr(a.aval, "shape", ())) for a in equation.invars], shapes, results
        )
        if len(rule.reads) != len(known):
            rule = rule._replace(
                reads=tuple(r for r, n in zip(rule.reads, given, strict=True) if n is not None)
            )
        if known:
            rule = retyped(rule, str(known[0][1].dtype), str(equation.outvars[0].aval.dtype))
        return self._add(title, equation, [n for n, _ in known], rule, place)

    def _rule(
        self, equation: Any, title: str, everything: list[Shape], known: list[Shape], results: list[Shape]
    ) -> Rule:
        primitive = equation.primitive.name
        dtype = str(equation.outvars[0].aval.dtype) if equation.outvars else "bool"
        rule = JAX_RULES.get(primitive)
        if rule is not None:
            return rule(equation.params, everything, results, dtype)
        if not self.replicate_unknown:
            raise Unsupported(
                f"operator {title} ({primitive}) has no rule for how it can be split; "
                "pass replicate_unknown=True to compute it alike on every device"
            )
        self.replicated.append(title)
        return opaque(known, results)

    def _add(
        self, title: str, equation: Any, inputs: Sequence[str], rule: Rule, place: "_Place"
    ) -> list[str]:
        """Record one operator and its outputs; their names."""
        outputs = _output_names(title, len(equation.outvars))
        for out, var in zip(outputs, equation.outvars, strict=True):
            self._value(out, var.aval)
        literals = [str(a.val) for a in equation.invars if hasattr(a, "val")]
        self.operations.append(
            Operation(
                name=title,
                primitive=equation.primitive.name,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                times=place.times,
                region=place.region,
                kernel=place.kernel,
                key=_digest(equation, literals, title),
                **rule._asdict(),
            )
        )
        return outputs

    def _cond(
        self, equation: Any, title: str, given: list[str | None], place: "_Place"
    ) -> Sequence[str | None]:
        """The branch with the most work, as if it were always taken."""
        branches = equation.params["branches"]
        number = max(range(len(branches)), key=lambda i: work(branches[i].jaxpr))
        self.notes.append(
            f"{title} taken as its branch {number} of {len(branches)}, the one with the most work"
        )
        return self._call(branches[number].jaxpr, given[1:], branch_name(title, number), place)

    def _call(
        self, inner: Any, given: Sequence[str | None], prefix: str, place: "_Place"
    ) -> Sequence[str | None]:
        """The operators of a function that is called, in line."""
        constants = [
            self._value(f"{prefix}constant.{i}", v.aval, "constant") for i, v in enumerate(inner.constvars)
        ]
        return self._body(inner, constants, given, place._replace(prefix=prefix))

    def _scan(self, equation: Any, title: str, given: list[str | None], place: "_Place") -> list[str | None]:
        params = equation.params
        consts, carried = params["num_consts"], params["num_carry"]
        inner, length = params["jaxpr"].jaxpr, params["length"]
        constants = [
            self._value(f"{title}/constant.{i}", v.aval, "constant") for i, v in enumerate(inner.constvars)
        ]
        body: list[str | None] = list(given[:consts])
        finals: list[str | None] = []
        for i, var in enumerate(inner.invars[consts : consts + carried]):
            names = [self._value(f"{title}/carry.{i}", var.aval), self._value(f"{title}:{i}", var.aval)]
            start = given[consts + i]
            rule = elementwise([tuple(var.aval.shape)] * (start is not None), [tuple(var.aval.shape)] * 2)
            self._boundary(f"{title}/carry.{i}", [start], names, rule, place)
            body.append(names[0])
            finals.append(names[1])
        for i, var in enumerate(inner.invars[consts + carried :]):
            row = self._value(f"{title}/slice.{i}", var.aval)
            rule = _rows(length, tuple(var.aval.shape), slices=True)
            source = given[consts + carried + i]
            self._boundary(row, [source], [row], rule, place)
            body.append(row)
        within = _Place(f"{title}/", place.times * length, title)
        made = self._body(inner, constants, body, within)
        for i, name in enumerate(made[:carried]):
            if name is not None:
                self.ties.append(Tie(source=name, target=f"{title}/carry.{i}", times=within.times))
        for i, name in enumerate(made[carried:]):
            stacked = self._value(f"{title}:{carried + i}", equation.outvars[carried + i].aval)
            rule = _rows(length, tuple(inner.outvars[carried + i].aval.shape), slices=False)
            self._boundary(f"{title}/stack.{i}", [name], [stacked], rule, within)
            finals.append(stacked)
        return finals

    def _boundary(
        self, title: str, inputs: Sequence[str | None], outputs: Sequence[str], rule: Rule, place: "_Place"
    ) -> None:
        known = tuple(n for n in inputs if n is not None)
        fields = {**rule._asdict(), "kind": "boundary", "reads": rule.reads[: len(known)]}
        self.operations.append(
            Operation(
                name=title,
                primitive="scan",
                inputs=known,
                outputs=tuple(outputs),
                times=place.times,
                region=place.region,
                key=title,
                **fields,
            )
        )


def _rows(length: int, row: Shape, slices: bool) -> Rule:
    """One row of a stack; the stack's first dim stays whole."""
    loops = Loops()
    inner = tuple(loops.new(n) for n in row)
    stack = (loops.new(length, False), *inner)
    return loops.rule("boundary", (stack,) if slices else (inner,), (inner,) if slices else (stack,))


def _output_names(title: str, count: int) -> list[str]:
    return [title] if count == 1 else [f"{title}:{k}" for k in range(count)]


def _digest(equation: Any, literals: Sequence[str], title: str) -> str:
    """What is computed, but for the inputs: parameters and literals; what is computed again is something else."""
    params = sorted((k, str(v)) for k, v in equation.params.items())
    types = [str(v.aval) for v in equation.outvars]
    again = title.rpartition("/")[0] if any(call in title for call in APART) else ""
    text = repr((equation.primitive.name, params, literals, types, again))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
