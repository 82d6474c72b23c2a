"""How long the arrays of a program live, in positions of its operators.

Inputs are held throughout. A value lives from the operator that makes it to the last that reads it; rows that a
scan collects live from its first operator on. What one operator moves and reads once is not counted. Where an
operator may run again, what its first run makes lives to the last early reader, then it is up to the second run.
"""

from planner.tracing.program import Program
from planner.tracing.solving.nodes import Nodes
from planner.tracing.solving.recomputing import Again

Interval = tuple[int, int]
"""First position, and the one after the last."""


def value_intervals(program: Program) -> dict[str, Interval]:
    """Per value that an operator makes."""
    end = len(program.operations)
    starts = _region_starts(program)
    kept = {*program.outputs, *(t.source for t in program.ties)}
    found = {}
    for i, op in enumerate(program.operations):
        begin = starts.get(op.region, i) if op.kind == "boundary" and op.region else i
        for name in op.outputs:
            last = max((i, *program.readers.get(name, ())))
            found[name] = (begin, end if name in program.outputs else last + 1)
            if name in kept and name not in program.outputs:
                found[name] = (begin, max(found[name][1], _region_end(program, op.region, i)))
    return found


def node_intervals(program: Program, nodes: Nodes) -> list[list[Interval]]:
    """Per node, the intervals of what it makes, output by output."""
    values = value_intervals(program)
    for late in (v for again in nodes.agains for v in again.values if v.rows == 1):
        begin = values[late.name][0]
        values[late.name] = (begin, late.last_early + 1)
        if late.held != late.name:
            values[late.held] = (late.since, late.since)  # up to the second run, if it is kept
    found: list[list[Interval]] = [[(0, len(program.operations))] for _ in nodes.inputs]
    found += [[values[name] for name in op.outputs] for op in nodes.operations]
    found += [[(copy.first, copy.last + 1)] for copy in nodes.copies]
    found += [_late_intervals(again) for again in nodes.agains]
    return found + [[] for _ in nodes.joints]


def _late_intervals(again: Again) -> list[Interval]:
    """Per value of a second run: when it is kept for it, held for late readers, and for other second runs."""
    found = []
    for v in again.values:
        start = max(v.last_early + 1, again.first)
        own = max(start, v.last_own + 1)
        found += [(v.since, start), (start, own), (own, max(own, v.last_late + 1))]
    return found


def _region_starts(program: Program) -> dict[str, int]:
    starts: dict[str, int] = {}
    for i, op in enumerate(program.operations):
        starts.setdefault(op.region, i)
    return starts


def _region_end(program: Program, region: str, position: int) -> int:
    """After the last operator of a scan's body; the program's end outside."""
    if not region:
        return len(program.operations)
    return 1 + max(i for i, op in enumerate(program.operations) if op.region == region)
