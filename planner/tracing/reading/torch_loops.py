"""A loop over time as operators of a program: what one step does, between where rows and states enter and leave."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from planner.tracing.factors import Rule, elementwise, rows_of
from planner.tracing.program import Operation, Program, Tie, Value
from planner.tracing.reading.torch_steps import step, step_backward

Traced = Callable[[Any, Sequence[str]], Program]
"""A graph, and names of what it is given -> its program."""


class Given(NamedTuple):
    """What a loop is given."""

    rows: Sequence[Value]
    """Of which each step reads one."""
    states: Sequence[Value]
    """That each step hands to the next."""
    whole: Sequence[Value | None]
    """That every step reads."""


class Results(NamedTuple):
    """Names of what a loop makes: what is made twice has one."""

    rows: list[str]
    states: list[str]


Body = Callable[..., tuple[Sequence[Any], Sequence[Any]]]
"""Rows, states, what every step reads -> states after the step, and rows that it makes."""


class Loop:
    """Values, operators and ties of a loop, whose results are ``title:0`` and so on."""

    def __init__(self, title: str, length: int) -> None:
        self.title, self.length = title, length
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.ties: list[Tie] = []

    def run(self, given: Given, body: Body, table: Any, traced: Traced) -> Results:
        """Read ``given``, do ``body`` as often as there are rows, and say what that makes."""
        sliced = [self._slice(i, value) for i, value in enumerate(given.rows)]
        carried = [f"{self.title}/carry.{i}" for i in range(len(given.states))]
        ends = [f"{self.title}:{i}" for i in range(len(carried))]
        for value, inside, end in zip(given.states, carried, ends, strict=True):
            self._state(value, inside, end)
        outside = [value for value in given.whole if value is not None]
        names = [f"arguments.{i}" for i in range(len(sliced) + len(carried) + len(outside))]
        parts = dict(zip(names, [*sliced, *carried, *(v.name for v in outside)], strict=True))
        program = traced(graph_of_step(given, body, table), names)
        known = {v.name: parts.get(v.name, f"{self.title}/{v.name}") for v in program.values}
        self.values += [
            v.model_copy(update={"name": known[v.name]}) for v in program.values if v.name not in parts
        ]
        self.operations += [self._inside(op, known) for op in program.operations]
        made = [known[name] for name in program.results if name is not None]
        self.ties += [Tie(source=b, target=c, times=self.length) for b, c in zip(made, carried, strict=False)]
        shapes = {v.name: v for v in self.values}
        rows = made[len(carried) :]
        stacks = {name: self._stack(i, shapes[name]) for i, name in enumerate(dict.fromkeys(rows))}
        return Results([stacks[name] for name in rows], ends)

    def _boundary(self, name: str, read: str, made: Sequence[str], rule: Rule, inside: bool = False) -> None:
        fields = {**rule._asdict(), "kind": "boundary"}
        self.operations.append(
            Operation(
                name=name, primitive="scan", inputs=(read,), outputs=tuple(made), key=name,
                times=self.length if inside else 1, region=self.title if inside else "", **fields,
            )
        )  # fmt: skip

    def _slice(self, number: int, rows: Value) -> str:
        name, row = f"{self.title}/slice.{number}", rows.shape[1:]
        self.values.append(Value(name=name, shape=row, dtype=rows.dtype))
        self._boundary(name, rows.name, [name], rows_of(self.length, row, (), True))
        return name

    def _state(self, first: Value, inside: str, end: str) -> None:
        self.values += [Value(name=n, shape=first.shape, dtype=first.dtype) for n in (inside, end)]
        self._boundary(inside, first.name, [inside, end], elementwise([first.shape], [first.shape] * 2))

    def _stack(self, number: int, row: Value) -> str:
        stack, name = f"{self.title}/stack.{number}", f"{self.title}:stack.{number}"
        self.values.append(Value(name=name, shape=(self.length, *row.shape), dtype=row.dtype))
        self._boundary(stack, row.name, [name], rows_of(self.length, row.shape, (), False), inside=True)
        return name

    def _inside(self, op: Operation, known: Mapping[str, str]) -> Operation:
        return op.model_copy(
            update={
                "name": f"{self.title}/{op.name}", "inputs": tuple(known[n] for n in op.inputs),
                "outputs": tuple(known[n] for n in op.outputs), "region": self.title, "times": self.length,
            }
        )  # fmt: skip


def graph_of_step(given: Given, body: Body, table: Any) -> Any:
    """The graph of one step; its arguments are rows, states, and what every step reads."""

    def run(*tensors: Any) -> Any:
        left = list(tensors)
        rows = [left.pop(0) for _ in given.rows]
        states = [left.pop(0) for _ in given.states]
        whole = [None if value is None else left.pop(0) for value in given.whole]
        after, made = body(rows, states, whole)
        return [*after, *made]

    make = functools.partial(torch.empty, device="meta")
    wanted = [(v.shape[1:], v.dtype) for v in given.rows]
    wanted += [(v.shape, v.dtype) for v in (*given.states, *given.whole) if v is not None]
    tensors = [make(shape, dtype=getattr(torch, dtype)) for shape, dtype in wanted]
    return make_fx(run, decomposition_table=table)(*tensors).graph


def _steps(node: Any, known: Callable[[Sequence[Any]], list[Any]]) -> tuple[Given, Body]:
    """All steps of a layer, and what the derivative reads of them where anything does."""
    rows, states, weight, bias, kind, _ = node.args
    results = [made for made in node.users if made.args[1] == 0]
    read = {place.args[1] for made in results for place in made.users if place.users}

    def body(rows: Sequence[Any], states: Sequence[Any], whole: Sequence[Any]) -> Any:
        after, kept = step(kind, rows[0], states, *whole)
        return after, (after[0], *(kept if read - {0} else ()))

    return Given(known([rows]), known(states), known([weight, bias])), body


def _steps_backward(node: Any, known: Callable[[Sequence[Any]], list[Any]]) -> tuple[Given, Body]:
    """Their derivative, in the other direction."""
    rows, states, kept, weight, kind, _ = node.args

    def body(rows: Sequence[Any], states: Sequence[Any], whole: Sequence[Any]) -> Any:
        return step_backward(kind, rows[0], states, rows[1:], *whole)

    return Given(known([rows, *kept]), known(states), known([weight])), body


LOOPS: Mapping[str, Callable[..., tuple[Given, Body]]] = MappingProxyType(
    {"steps": _steps, "steps_backward": _steps_backward}
)
"""Operator -> what its loop is given and does; how values are called is said by the second argument."""
