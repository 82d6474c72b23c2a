"""A loop over time as operators of a program: what one step does, between where rows and states enter and leave."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from planner.tracing.factors import Rule, elementwise, rows_of
from planner.tracing.program import Operation, Program, Tie, Value
from planner.tracing.reading.torch_steps import step

Traced = Callable[[Any, Sequence[str]], Program]
"""A graph, and names of what it is given -> its program."""


def loop_of(
    title: str, given: Mapping[str, Value], length: int, kind: str, table: Any, traced: Traced
) -> tuple[list[Value], list[Operation], list[Tie]]:
    """Values, operators and ties of so many steps, whose results are ``title:0`` (all rows), ``title:1`` and so on.

    ``given`` says what is read, by part: ``rows``, ``weight``, ``bias``, and states by number.
    """
    parts = {part: value.name for part, value in given.items() if part in ("weight", "bias")}
    states = [part for part in given if part.isdigit()]
    values, operations, ties = list[Value](), list[Operation](), list[Tie]()

    def boundary(name: str, read: str, made: Sequence[str], rule: Rule, inside: bool) -> None:
        fields = {**rule._asdict(), "kind": "boundary"}
        operations.append(
            Operation(
                name=name, primitive="scan", inputs=(read,), outputs=tuple(made), key=name,
                times=length if inside else 1, region=title if inside else "", **fields,
            )
        )  # fmt: skip

    for i, part in enumerate(states):
        parts[part] = f"{title}/carry.{i}"
        both = [parts[part], f"{title}:{i + 1}"]
        values += [
            given[part].model_copy(update={"name": n, "role": "intermediate", "path": ""}) for n in both
        ]
        shape = given[part].shape
        boundary(parts[part], given[part].name, both, elementwise([shape], [shape] * 2), inside=False)
    rows = given["rows"]
    parts["rows"] = f"{title}/slice.0"
    values.append(_like(rows, parts["rows"], rows.shape[1:]))
    boundary(
        parts["rows"], rows.name, [parts["rows"]], rows_of(length, rows.shape[1:], (), True), inside=False
    )
    body = traced(_body(kind, given, table), list(given))
    known = {v.name: parts.get(v.name, f"{title}/{v.name}") for v in body.values}
    values += [v.model_copy(update={"name": known[v.name]}) for v in body.values if v.name not in given]
    operations += [_inside(op, known, title, length) for op in body.operations]
    back = [known[name] for name in body.results if name is not None]
    ties += [Tie(source=b, target=parts[p], times=length) for b, p in zip(back, states, strict=True)]
    first = given[states[0]]
    values.append(_like(first, f"{title}:0", (length, *first.shape)))
    boundary(
        f"{title}/stack.0", back[0], [f"{title}:0"], rows_of(length, first.shape, (), False), inside=True
    )
    return values, operations, ties


def _like(value: Value, name: str, shape: Sequence[int]) -> Value:
    return Value(name=name, shape=tuple(shape), dtype=value.dtype)


def _inside(op: Operation, known: Mapping[str, str], title: str, length: int) -> Operation:
    return op.model_copy(
        update={
            "name": f"{title}/{op.name}", "inputs": tuple(known[n] for n in op.inputs),
            "outputs": tuple(known[n] for n in op.outputs), "region": title, "times": length,
        }
    )  # fmt: skip


def _body(kind: str, given: Mapping[str, Value], table: Any) -> Any:
    """The graph of one step, whose arguments are in the order of ``given``."""

    def run(*tensors: Any) -> Any:
        named = dict(zip(given, tensors, strict=True))
        states = [named[part] for part in given if part.isdigit()]
        return list(step(kind, named["rows"], states, named["weight"], named.get("bias")))

    shapes = {part: v.shape[1:] if part == "rows" else v.shape for part, v in given.items()}
    make = functools.partial(torch.empty, device="meta")
    tensors = [make(shapes[part], dtype=getattr(torch, v.dtype)) for part, v in given.items()]
    return make_fx(run, decomposition_table=table)(*tensors).graph
