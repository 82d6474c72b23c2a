"""Control flow of an exported module (``torch.cond``, ``map``, ``scan``, ``while_loop``) as calls of what it runs."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from planner.errors import InputError


def unfolded(module: Any, trips: int | None) -> list[str]:
    """Change ``module`` so that it calls each body as often as it runs; returns notes on what was taken for granted.

    Loops that end on a condition run ``trips`` times; ``InputError`` where nobody says how often.
    """
    notes: list[str] = []
    for part in module.modules():
        for node in part.graph.nodes:
            kind = str(node.target) if node.op == "call_function" else ""
            if kind == "while_loop":
                node.target = _loop(trips)
                notes.append(f"while: taken to run {trips} times")
            elif kind in CONTROL:
                node.target = CONTROL[kind]
                notes += [MOST_WORK] if kind == "cond" else []
        part.recompile()
    return sorted(set(notes))


def _branch(condition: Any, first: Any, second: Any, operands: Sequence[Any]) -> Any:
    """The one with more operators."""
    return max(first, second, key=lambda branch: len(branch.graph.nodes))(*operands)


def _mapped(body: Any, arrays: Sequence[Any], others: Sequence[Any]) -> Any:
    """Every row by itself, then all results in one."""
    made = [body(*row, *others) for row in zip(*arrays, strict=True)]
    return tuple(map(torch.stack, zip(*made, strict=True)))


def _scanned(body: Any, carried: Sequence[Any], arrays: Sequence[Any], others: Sequence[Any]) -> Any:
    """Row after row: what each hands on to the next, and the results of all."""
    count, rows = len(carried), list[Any]()
    for row in zip(*arrays, strict=True):
        made = body(*carried, *row, *others)
        carried, result = made[:count], made[count:]
        rows.append(result)
    return (*carried, *map(torch.stack, zip(*rows, strict=True)))


def _effect(token: Any, operator: Any, *operands: Any, **named: Any) -> Any:
    """A check whose order counts; the token that says so is nothing."""
    return token, operator(*operands, **named)


def _loop(trips: int | None) -> Callable[..., Any]:
    if trips is None:
        raise InputError("a while_loop ends on a condition: trips=N (--trips N) says how often it runs")

    def looped(condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any]) -> Any:
        for _ in range(trips):
            carried = body(*carried, *others)
        return carried

    return looped


CONTROL: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"cond": _branch, "map_impl": _mapped, "scan": _scanned, "with_effects": _effect}
)
"""What runs instead, by name."""

MOST_WORK = "cond: taken to run the branch with more operators"
