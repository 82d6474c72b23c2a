"""A JAX function as a `Program`, by abstract evaluation: no array is allocated, nothing runs.

Calls (jit, remat, custom derivatives) are followed in line; of a ``cond`` the branch with the most work. A scan's
body stands in line once, with its trip count, between `boundary` operators: ``slice`` hands out one row of what is
scanned over, ``carry`` hands on the state, ``stack`` collects rows.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from planner.errors import InputError, Unsupported
from planner.tracing.factors import Loops, Rule, Shape, elementwise, no_rule, opaque, retyped
from planner.tracing.program import Operation, Program, Role, Tie, Value
from planner.tracing.reading.jax_arguments import Leaf, leaves_of, ties_of
from planner.tracing.reading.jax_calls import APART, ATTENTION, branch_name, calls, kernel_names, label, work
from planner.tracing.reading.jax_rules import JAX_RULES
from planner.tracing.reading.kernels import NONE, rule_for

WHY = {
    "shard_map": "fixes the layouts of its arrays and their exchange itself",
    **dict.fromkeys(
        ("pallas_call", "ffi_call", "custom_call", "custom_partitioning"),
        "is a kernel of its own, whose loops rules={name: loops} (--rule) can give",
    ),
    **dict.fromkeys(("pure_callback", "io_callback"), "runs on the host"),
}
"""Primitives that no table can have -> why."""


def from_jax(
    function: Callable[..., Any],
    *arguments: Any,
    parameters: int | Sequence[int] = 0,
    name: str | None = None,
    replicate_unknown: bool = False,
    trips: int | None = None,
    rules: Mapping[str, str] = NONE,
) -> Program:
    """``function`` on ``arguments`` (arrays, or ``jax.ShapeDtypeStruct``; nested as you like), as a `Program`.

    What is traced is what is planned: a loss, ``jax.value_and_grad`` of it, or a whole training step.
    ``parameters`` are the positions of the arguments that hold trainable weights. An output that is built like
    an argument (gradients, new weights, optimizer states) is to lie like it.

    ``trips`` is how often a loop runs that ends when a condition says so (``while``). ``rules`` say of kernels, by
    name, how their loops index their arrays (`planner.tracing.reading.kernels`).

    Raises ``Unsupported`` for an operator without a rule, unless ``replicate_unknown``: then it is computed
    alike everywhere, and listed; and for such a loop without ``trips``.
    """
    import jax

    if trips is not None and trips < 1:
        raise InputError(f"trips={trips}: a loop runs at least once")

    trained = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if bad := [i for i in trained if not 0 <= i < len(arguments)]:
        raise InputError(f"parameters={bad[0]}: the function gets {len(arguments)} arguments, counted from 0")
    closed, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    title = name or str(getattr(function, "__name__", "program"))
    leaves = list(leaves_of(function, arguments, trained))
    importer = _Importer(title, replicate_unknown, trips, rules)
    return importer.run(closed, leaves, list(ties_of(arguments, result)))


class _Place(NamedTuple):
    """Where in the program equations stand."""

    prefix: str
    times: int
    region: str
    kernel: str = ""


class _Importer:
    """Values and operators as they are met."""

    def __init__(
        self, name: str, replicate_unknown: bool, trips: int | None, rules: Mapping[str, str]
    ) -> None:
        self.name, self.replicate_unknown, self.trips, self.rules = name, replicate_unknown, trips, rules
        self.values: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self.ties: list[Tie] = []
        self.replicated: list[str] = []
        self.notes: list[str] = []

    def run(self, closed: Any, leaves: Sequence[Leaf], ties: Sequence[tuple[int, int]]) -> Program:
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
            rules=dict(self.rules),
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
        followed = _FOLLOWED.get(equation.primitive.name)
        if followed is not None:
            return followed(self, equation, title, given, place)
        if not equation.outvars:  # prints and checks
            return []
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
        given = rule_for(self.rules, kernel_names(equation), everything, results)
        if given is not None:
            return given
        rule = JAX_RULES.get(primitive)
        if rule is not None:
            return rule(equation.params, everything, results, dtype)
        if not self.replicate_unknown:
            raise no_rule(f"{title} ({primitive})", WHY.get(primitive, ""))
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
        return self._body(
            inner, self._constants(prefix.rstrip("/"), inner), given, place._replace(prefix=prefix)
        )

    def _scan(self, equation: Any, title: str, given: list[str | None], place: "_Place") -> list[str | None]:
        params = equation.params
        consts, carried = params["num_consts"], params["num_carry"]
        inner, length = params["jaxpr"].jaxpr, params["length"]
        constants = self._constants(title, inner)
        states, finals = self._carries(
            title, inner.invars[consts : consts + carried], given[consts : consts + carried], place
        )
        body = [*given[:consts], *states]
        for i, var in enumerate(inner.invars[consts + carried :]):
            row = self._value(f"{title}/slice.{i}", var.aval)
            rule = _rows(length, tuple(var.aval.shape), slices=True)
            source = given[consts + carried + i]
            self._boundary(row, [source], [row], rule, place)
            body.append(row)
        within = _Place(f"{title}/", place.times * length, title)
        made = self._body(inner, constants, body, within)
        self._come_round(title, made[:carried], within)
        for i, name in enumerate(made[carried:]):
            stacked = self._value(f"{title}:{carried + i}", equation.outvars[carried + i].aval)
            rule = _rows(length, tuple(inner.outvars[carried + i].aval.shape), slices=False)
            self._boundary(f"{title}/stack.{i}", [name], [stacked], rule, within)
            finals.append(stacked)
        return finals

    def _while(self, equation: Any, title: str, given: list[str | None], place: "_Place") -> list[str | None]:
        """A loop that ends when a condition says so, run as often as the user says; the condition is left out."""
        if self.trips is None:
            raise Unsupported(
                f"{title} runs until a condition ends it, and its cost depends on how often that is: "
                "say it with trips=N (--trips N), or give the loop a fixed length (lax.scan, lax.fori_loop)"
            )
        inner = equation.params["body_jaxpr"].jaxpr
        consts = equation.params["body_nconsts"]
        own = given[equation.params["cond_nconsts"] :]
        states, finals = self._carries(title, inner.invars[consts:], own[consts:], place)
        constants = self._constants(title, inner)
        within = _Place(f"{title}/", place.times * self.trips, title)
        made = self._body(inner, constants, [*own[:consts], *states], within)
        self._come_round(title, made, within)
        self.notes.append(f"{title} taken to run {self.trips} times")
        return finals

    def _carries(
        self, title: str, variables: Sequence[Any], starts: Sequence[str | None], place: "_Place"
    ) -> tuple[list[str | None], list[str | None]]:
        """States of a loop, as its body has them, and as it leaves them."""
        states: list[str | None] = []
        finals: list[str | None] = []
        for i, (var, start) in enumerate(zip(variables, starts, strict=True)):
            names = [self._value(f"{title}/carry.{i}", var.aval), self._value(f"{title}:{i}", var.aval)]
            rule = elementwise([tuple(var.aval.shape)] * (start is not None), [tuple(var.aval.shape)] * 2)
            self._boundary(f"{title}/carry.{i}", [start], names, rule, place)
            states.append(names[0])
            finals.append(names[1])
        return states, finals

    def _come_round(self, title: str, made: Sequence[str | None], within: "_Place") -> None:
        """Tie what a pass of a loop leaves to what the next one begins with."""
        for i, name in enumerate(made):
            if name is not None:
                self.ties.append(Tie(source=name, target=f"{title}/carry.{i}", times=within.times))

    def _constants(self, title: str, inner: Any) -> list[str]:
        return [
            self._value(f"{title}/constant.{i}", v.aval, "constant") for i, v in enumerate(inner.constvars)
        ]

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


_FOLLOWED: Mapping[str, Callable[..., Sequence[str | None]]] = {
    "scan": _Importer._scan,
    "while": _Importer._while,
    "cond": _Importer._cond,
}
"""Primitives whose functions are followed in line."""


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
