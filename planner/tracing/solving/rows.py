"""Rows that the body of one scan hands on to the body of another, as a forward pass does to its backward pass."""

from collections.abc import Mapping
from typing import NamedTuple

from planner.tracing.program import Operation, Program


class Stack(NamedTuple):
    """All rows of a value, between two scans."""

    name: str
    slice_at: int
    """Position of the boundary that hands out its rows."""


class Pair(NamedTuple):
    """Two scans, of which the second has rows of the first."""

    first: str
    second: str
    rows: Mapping[str, str]
    """What the first's body has -> what that is called in the second's."""
    stacks: Mapping[str, Stack]
    """Of these, what is collected for nobody else."""


def pairs(program: Program) -> list[Pair]:
    """Of scans that are not in other scans, in order; rows that are seen otherwise there are left out."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    stacks: dict[tuple[str, str], dict[str, Stack]] = {}
    slices: dict[str, list[tuple[str, str]]] = {}
    for at, op in enumerate(program.operations):
        if op.kind != "boundary" or op.region or not op.inputs:
            continue
        scan, is_slice, _ = op.name.rpartition("/slice.")
        if not is_slice:
            continue
        (source,), (row,) = op.inputs, op.outputs
        for other, known in slices.get(source, ()):
            rows.setdefault((other, scan), {}).setdefault(known, row)
        slices.setdefault(source, []).append((scan, row))
        maker = program.operations[program.producer[source]] if source in program.producer else None
        if maker is None or not _hands_on(maker, op):
            continue
        rows.setdefault((maker.region, scan), {}).setdefault(maker.inputs[0], row)
        if program.readers[source] == (at,) and not _leaves(program, source):
            stacks.setdefault((maker.region, scan), {}).setdefault(maker.inputs[0], Stack(source, at))
    return [Pair(*key, rows[key], found) for key, found in stacks.items()]


def _hands_on(stack: Operation, rows: Operation) -> bool:
    """Whether the one collects what the other hands out, dim by dim as it is, in another scan."""
    if "/stack." not in stack.name or len(stack.inputs) != 1:
        return False
    as_it_is = stack.writes[0][1:] == stack.reads[0] and rows.reads[0][1:] == rows.writes[0]
    return as_it_is and stack.region != "" and not rows.name.startswith(f"{stack.region}/")


def _leaves(program: Program, name: str) -> bool:
    return name in program.outputs or any(name in (t.source, t.target) for t in program.ties)
