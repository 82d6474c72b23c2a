"""A JAX function as a `Program`, by abstract evaluation: no array is allocated, nothing runs.

Calls (jit, remat, custom derivatives) are followed in line; of a ``cond`` the branch with the most work. A scan's
body stands in line once, with its trip count, between `boundary` operators: ``slice`` hands out one row of what is
scanned over, ``carry`` hands on the state, ``stack`` collects rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.errors import InputError, Unsupported
from planner.tracing.factors import Rule, Shape, elementwise, no_rule, opaque, retyped, rows_of
from planner.tracing.program import Program, Tie, Value
from planner.tracing.reading.jax_arguments import Leaf, leaves_of, ties_of, watched
from planner.tracing.reading.jax_calls import (
    ATTENTION,
    branch_name,
    call_operands,
    calls,
    kernel_names,
    label,
    one_by_one,
    runs_again,
    test_name,
    work,
)
from planner.tracing.reading.jax_functions import traced, without_static
from planner.tracing.reading.jax_manual import (
    COLLECTIVES,
    LAID_AFTER,
    LAID_BEFORE,
    Call,
    Manual,
    boundary,
    manual_of,
    on_all,
    spread,
)
from planner.tracing.reading.jax_record import Place, Recorder, output_names
from planner.tracing.reading.jax_rules import JAX_RULES
from planner.tracing.reading.kernels import NONE, rule_for

WHY = {
    **dict.fromkeys(
        ("pallas_call", "ffi_call", "custom_call", "custom_partitioning"),
        "is a kernel of its own, whose loops rules={name: loops} (--rule) can give",
    ),
    **dict.fromkeys(("pure_callback", "io_callback"), "runs on the host"),
}
"""Primitives that no table can have -> why."""

IN_ANY_MESH = "where a PartitionSpec without a mesh has arrays lie is left to the plan"


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
    ``parameters`` are the positions of the arguments that hold trainable weights, among those that are not static
    (``static_argnums`` of ``jax.jit``). An output that is built like an argument (gradients, new weights, optimizer
    states) is to lie like it.

    ``trips`` is how often a loop runs that ends when a condition says so (``while``). ``rules`` say of kernels, by
    name, how their loops index their arrays (`planner.tracing.reading.kernels`).

    Raises ``Unsupported`` for an operator without a rule, unless ``replicate_unknown``: then it is computed
    alike everywhere, and listed; and for such a loop without ``trips``.
    """
    if trips is not None and trips < 1:
        raise InputError(f"trips={trips}: a loop runs at least once")

    function, arguments = without_static(function, arguments)
    trained = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if bad := [i for i in trained if not 0 <= i < len(arguments)]:
        raise InputError(f"parameters={bad[0]}: the function gets {len(arguments)} arguments, counted from 0")
    title = name or str(getattr(function, "__name__", "program"))
    leaves = list(leaves_of(function, arguments, trained))
    found = traced(watched(function, leaves, title), arguments)
    importer = _Importer(title, replicate_unknown, trips, rules)
    importer.notes += [IN_ANY_MESH] if found.axes else []
    return importer.run(found.closed, leaves, list(ties_of(arguments, found.result)))


class _Importer:
    """Values and operators as they are met."""

    def __init__(
        self, name: str, replicate_unknown: bool, trips: int | None, rules: Mapping[str, str]
    ) -> None:
        self.name, self.replicate_unknown, self.trips, self.rules = name, replicate_unknown, trips, rules
        self.to = Recorder()
        self.ties: list[Tie] = []
        self.replicated: list[str] = []
        self.notes: list[str] = []
        self.needed: list[str] = []
        """What says whether loops go on and which branch is taken, and what is printed: needed, though not read."""

    def run(self, closed: Any, leaves: Sequence[Leaf], ties: Sequence[tuple[int, int]]) -> Program:
        jaxpr = closed.jaxpr
        inputs = [
            self.to.value(leaf.path, var.aval, leaf.role, leaf.path)
            for leaf, var in zip(leaves, jaxpr.invars, strict=True)
        ]
        constants = [
            self.to.value(f"constant.{i}", var.aval, "constant") for i, var in enumerate(jaxpr.constvars)
        ]
        outputs = self._body(jaxpr, constants, inputs, Place("", 1, ""))
        return Program(
            name=self.name,
            values=tuple(self.to.values.values()),
            operations=tuple(self.to.operations),
            inputs=tuple(inputs),
            outputs=tuple(dict.fromkeys(n for n in (*outputs, *self.needed) if n is not None)),
            results=tuple(outputs),
            ties=(
                *self.ties,
                *(Tie(source=outputs[o], target=inputs[i]) for o, i in ties if outputs[o] is not None),
            ),
            applied=tuple(self.notes),
            replicated=tuple(self.replicated),
            rules=dict(self.rules),
        )

    def _body(
        self, jaxpr: Any, constants: Sequence[str | None], inputs: Sequence[str | None], place: Place
    ) -> list[str | None]:
        """Names of the outputs of ``jaxpr``; None for literals."""
        names: dict[Any, str | None] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True)
        )

        def named(atom: Any) -> str | None:
            return None if hasattr(atom, "val") else names[atom]

        for index, whole in enumerate(jaxpr.eqns):
            for equation, title in one_by_one(whole, place.prefix + label(whole, index)):
                given = [named(atom) for atom in equation.invars]
                made = self._equation(equation, title, given, place)
                names.update(zip(equation.outvars, made, strict=True))
        return [named(atom) for atom in jaxpr.outvars]

    def _equation(
        self, equation: Any, title: str, given: list[str | None], place: Place
    ) -> Sequence[str | None]:
        inner = calls(equation)
        if inner is not None:
            joined = str(equation.params.get("name", "")).startswith(ATTENTION)
            within = place._replace(kernel=title) if joined else place
            within = within._replace(again=title) if runs_again(equation) else within
            return self._call(inner, call_operands(equation, given), f"{title}/", within)
        followed = _FOLLOWED.get(equation.primitive.name)
        if followed is not None:
            return followed(self, equation, title, given, place)
        if not equation.outvars:
            self._shown(equation, title, [n for n in given if n is not None], place)
            return []
        if place.manual is not None:
            return self._in_parts(equation, title, given, place, place.manual)
        names, rule = self._ruled(equation, title, given)
        outputs = output_names(title, len(equation.outvars))
        for out, var in zip(outputs, equation.outvars, strict=True):
            self.to.value(out, var.aval)
        self.to.record(title, equation, names, outputs, rule, place)
        return outputs

    def _shown(self, equation: Any, title: str, known: list[str], place: Place) -> None:
        """What is printed or checked: the host gets it whole, unless each device shows its own part."""
        if place.manual is not None or equation.params.get("partitioned"):
            self.needed += known
        elif known:
            self.to.values[title] = Value(name=title, shape=(), dtype="bool")  # that it was done
            rule = opaque([self.to.values[n].shape for n in known], [()])
            self.to.record(title, equation, known, [title], rule, place)
            self.needed.append(title)

    def _ruled(self, equation: Any, title: str, given: list[str | None]) -> tuple[list[str], Rule]:
        """Operands that are arrays, and the loops over them."""
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
        return [n for n, _ in known], rule

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

    def _in_parts(
        self, equation: Any, title: str, given: list[str | None], place: Place, manual: Manual
    ) -> list[str]:
        """An operator on what each device holds."""
        primitive = equation.primitive.name
        collective = COLLECTIVES.get(primitive)
        if primitive in LAID_BEFORE:
            given = [n if n is None else self.to.as_it_lies(f"{title} of {n}", n, place) for n in given]
        if collective is None:
            names, rule = self._ruled(equation, title, given)
            laid = on_all(manual, rule, [self.to.axes.get(n, ()) for n in names])
        else:
            names = [n for n in given if n is not None]
            shapes = [tuple(self.to.values[n].shape[len(self.to.axes.get(n, ())) :]) for n in names]
            axes = [self.to.axes.get(n, ()) for n in names]
            laid = collective(
                Call(manual, equation.params, shapes, axes, str(equation.outvars[0].aval.dtype))
            )
        outputs = output_names(title, len(equation.outvars))
        wanted = [manual.varying(v.aval) for v in equation.outvars]
        made = [
            n if have == want and primitive not in LAID_AFTER else f"{n} made"
            for n, have, want in zip(outputs, laid.axes, wanted, strict=True)
        ]
        for name, var, axes_of in zip(made, equation.outvars, laid.axes, strict=True):
            self.to.placed(name, var.aval, axes_of, place)
        self.to.record(title, equation, names, made, laid.rule, place, laid.splits)
        for name, out, var, want in zip(made, outputs, equation.outvars, wanted, strict=True):
            if name != out and want == self.to.axes[name]:
                self.to.as_it_lies(out, name, place)
            elif name != out:
                copies = spread(manual, tuple(var.aval.shape), self.to.axes[name], want)
                self.to.placed(out, var.aval, want, place)
                self.to.record(out, equation, [name], [out], copies.rule, place, copies.splits)
        return outputs

    def _shard_map(
        self, equation: Any, title: str, given: list[str | None], place: Place
    ) -> Sequence[str | None]:
        """The operators of its body on all devices' parts, between views by its specs."""
        manual, inner = manual_of(equation, place.manual), equation.params["jaxpr"]
        inside = place._replace(prefix=f"{title}/", manual=manual)
        body: list[str | None] = []
        for i, (name, var, spec) in enumerate(
            zip(given, inner.invars, equation.params["in_specs"], strict=True)
        ):
            part = f"{title}/in.{i}"
            if name is not None:
                self._enter(part, equation, name, var.aval, spec, inside)
            body.append(None if name is None else part)
        made = self._body(inner, self._constants(title, inner), body, inside)
        outputs = output_names(title, len(made))
        for name, out, var, spec in zip(
            made, outputs, equation.outvars, equation.params["out_specs"], strict=True
        ):
            if name is not None:
                self._leave(out, equation, name, var.aval, spec, place, inside)
        return [None if n is None else out for n, out in zip(made, outputs, strict=True)]

    def _enter(self, title: str, equation: Any, name: str, aval: Any, spec: Any, inside: Place) -> None:
        """An array that comes into the body of a ``shard_map``; ``aval`` of what it becomes."""
        assert inside.manual is not None
        axes, around = inside.varying(aval), self.to.axes.get(name, ())
        laid = boundary(inside.manual, spec, tuple(aval.shape), axes, enters=True, around=around)
        self.to.placed(title, aval, axes, inside)
        self.to.record(title, equation, [name], [title], laid.rule, inside, laid.splits)

    def _leave(
        self, title: str, equation: Any, name: str, aval: Any, spec: Any, outside: Place, inside: Place
    ) -> None:
        """An array that leaves the body of a ``shard_map``; ``aval`` of what it becomes."""
        assert inside.manual is not None
        axes, around = self.to.axes.get(name, ()), outside.varying(aval)
        shape = tuple(self.to.values[name].shape[len(axes) :])
        laid = boundary(inside.manual, spec, shape, axes, enters=False, around=around)
        self.to.placed(title, aval, around, outside)
        self.to.record(title, equation, [name], [title], laid.rule, inside, laid.splits)

    def _cond(self, equation: Any, title: str, given: list[str | None], place: Place) -> Sequence[str | None]:
        """The branch with the most work, as if it were always taken; what says so is computed nevertheless."""
        branches = equation.params["branches"]
        self.needed += (n for n in given[:1] if n is not None)
        number = max(range(len(branches)), key=lambda i: work(branches[i].jaxpr))
        self.notes.append(
            f"{title} taken as its branch {number} of {len(branches)}, the one with the most work"
        )
        name = branch_name(title, number)
        return self._call(branches[number].jaxpr, given[1:], name, place._replace(branch=name))

    def _call(
        self, inner: Any, given: Sequence[str | None], prefix: str, place: Place
    ) -> Sequence[str | None]:
        """The operators of a function that is called, in line."""
        return self._body(
            inner, self._constants(prefix.rstrip("/"), inner), given, place._replace(prefix=prefix)
        )

    def _scan(self, equation: Any, title: str, given: list[str | None], place: Place) -> list[str | None]:
        params = equation.params
        consts, carried = params["num_consts"], params["num_carry"]
        inner, length = params["jaxpr"].jaxpr, params["length"]
        constants = self._constants(title, inner)
        states, finals = self._carries(
            title, inner.invars[consts : consts + carried], given[consts : consts + carried], place
        )
        body = [*given[:consts], *states]
        for i, var in enumerate(inner.invars[consts + carried :]):
            row = self.to.placed(f"{title}/slice.{i}", var.aval, place.varying(var.aval), place)
            rule = rows_of(length, tuple(var.aval.shape), place.lead(var.aval), slices=True)
            source = given[consts + carried + i]
            self.to.boundary(row, [source], [row], rule, place)
            body.append(row)
        within = place.inside(title, length)
        made = self._body(inner, constants, body, within)
        self._come_round(title, made[:carried], within)
        for i, name in enumerate(made[carried:]):
            row_aval, aval = inner.outvars[carried + i].aval, equation.outvars[carried + i].aval
            stacked = self.to.placed(f"{title}:{carried + i}", aval, place.varying(aval), place)
            rule = rows_of(length, tuple(row_aval.shape), place.lead(aval), slices=False)
            self.to.boundary(f"{title}/stack.{i}", [name], [stacked], rule, within)
            finals.append(stacked)
        return finals

    def _while(self, equation: Any, title: str, given: list[str | None], place: Place) -> list[str | None]:
        """A loop that ends when a condition says so: as often as the user says, asked before each and at the end."""
        if self.trips is None:
            raise Unsupported(
                f"{title} runs until a condition ends it, and its cost depends on how often that is: "
                "say it with trips=N (--trips N), or give the loop a fixed length (lax.scan, lax.fori_loop)"
            )
        params = equation.params
        inner, test, tests = params["body_jaxpr"].jaxpr, params["cond_jaxpr"].jaxpr, params["cond_nconsts"]
        consts, own = params["body_nconsts"], given[tests:]
        states, finals = self._carries(title, inner.invars[consts:], own[consts:], place)
        asked = place.inside(title, self.trips + 1)
        asked = asked._replace(prefix=test_name(title), branch=test_name(title))
        on = self._body(test, self._constants(test_name(title), test), [*given[:tests], *states], asked)
        self.needed += (n for n in on if n is not None)
        constants = self._constants(title, inner)
        within = place.inside(title, self.trips)
        made = self._body(inner, constants, [*own[:consts], *states], within)
        self._come_round(title, made, within)
        self.notes.append(f"{title} taken to run {self.trips} times")
        return finals

    def _carries(
        self, title: str, variables: Sequence[Any], starts: Sequence[str | None], place: Place
    ) -> tuple[list[str | None], list[str | None]]:
        """States of a loop, as its body has them, and as it leaves them."""
        states: list[str | None] = []
        finals: list[str | None] = []
        for i, (var, start) in enumerate(zip(variables, starts, strict=True)):
            axes = place.varying(var.aval)
            names = [self.to.placed(n, var.aval, axes, place) for n in (f"{title}/carry.{i}", f"{title}:{i}")]
            shape = (*place.lead(var.aval), *var.aval.shape)
            rule = elementwise([shape] * (start is not None), [shape] * 2)
            self.to.boundary(f"{title}/carry.{i}", [start], names, rule, place)
            states.append(names[0])
            finals.append(names[1])
        return states, finals

    def _come_round(self, title: str, made: Sequence[str | None], within: Place) -> None:
        """Tie what a pass of a loop leaves to what the next one begins with."""
        for i, name in enumerate(made):
            if name is not None:
                self.ties.append(Tie(source=name, target=f"{title}/carry.{i}", times=within.times))

    def _constants(self, title: str, inner: Any) -> list[str]:
        return [
            self.to.value(f"{title}/constant.{i}", v.aval, "constant") for i, v in enumerate(inner.constvars)
        ]


_FOLLOWED: Mapping[str, Callable[..., Sequence[str | None]]] = {
    "scan": _Importer._scan,
    "shard_map": _Importer._shard_map,
    "while": _Importer._while,
    "cond": _Importer._cond,
}
"""Primitives whose functions are followed in line."""
