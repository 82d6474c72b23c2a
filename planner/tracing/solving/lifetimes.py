"""How long the arrays of a program live, in positions of its operators.

Inputs are held throughout. A value lives from the operator that makes it to the last that reads it; rows that a
scan collects live from its first operator on, and what a scan has from outside, or goes over, lives until it ends.
Sums are held whole while they are scattered. Where an operator may run again, what its first run makes lives to the
last early reader, then it is up to the second run. After the last operator comes a moment at which what is returned
lies as it is to, beside all inputs.
"""

from functools import cache

from planner.tracing.program import Operation, Program
from planner.tracing.solving.nodes import Nodes
from planner.tracing.solving.options import SUMMING
from planner.tracing.solving.recomputing import Again

Interval = tuple[int, int]
"""First position, and the one after the last."""


def value_intervals(program: Program) -> dict[str, Interval]:
    """Per value that an operator makes."""
    end = len(program.operations)
    starts = _region_starts(program)
    kept = {*program.outputs, *(t.source for t in program.ties)}
    loops = Loops(program)
    found = {}
    for i, op in enumerate(program.operations):
        collected = op.kind == "boundary" and "/stack." in op.name
        begin = starts[op.region] if collected else i
        for name in op.outputs:
            home = loops.around_output(op, name)
            last = max((i + 1, *(loops.after(r, home) for r in program.readers.get(name, ()))))
            found[name] = (begin, end + 1 if name in program.outputs else last)
            if name in kept and name not in program.outputs:
                found[name] = (begin, max(found[name][1], _region_end(program, op.region, i)))
    return found


class Loops:
    """The loops of a program, and when they end, in positions of its operators."""

    def __init__(self, program: Program) -> None:
        self.operations = program.operations
        self.ends = {op.region: i + 1 for i, op in enumerate(program.operations) if op.region}
        self.around = cache(self._around)

    def _around(self, region: str) -> tuple[str, ...]:
        """A loop and those that it is in, outer ones first."""
        return tuple(sorted(r for r in self.ends if region == r or region.startswith(f"{r}/")))

    def around_output(self, op: Operation, name: str) -> tuple[str, ...]:
        """The loops in whose bodies a value is: what a loop hands out is outside of it, what it takes in is inside."""
        around = self.around(op.region)
        if op.kind != "boundary":
            return around
        if "/stack." in op.name:
            return around[:-1]
        return self.around(op.name.rpartition("/")[0]) if name == op.name else around

    def after(self, position: int, home: tuple[str, ...] = ()) -> int:
        """When an operator, and all loops around it, are done with a value that is made in those of ``home``."""
        op = self.operations[position]
        around = self.around(op.takes_rows_for or op.region)
        return max((position + 1, *(self.ends[loop] for loop in around if loop not in home)))


def node_intervals(program: Program, nodes: Nodes) -> list[list[Interval]]:
    """Per node, the intervals of what it makes, output by output; of an input, then of what is returned as it lies."""
    values, loops = value_intervals(program), Loops(program)
    for late in (v for again in nodes.agains for v in again.values if v.rows == 1):
        begin = values[late.name][0]
        early = late.last_early if late.held != late.name else loops.after(late.last_early) - 1
        values[late.name] = (begin, early + 1)
        if late.held != late.name:
            values[late.held] = (late.since, late.since)  # up to the second run, if it is kept
    end = len(program.operations)
    found = [[(0, end + 1), *((end, end + 1) for _ in program.returned.get(n, ()))] for n in nodes.inputs]
    for i, op in enumerate(nodes.operations):
        beside = [(i, loops.after(i))] if op.takes_rows_for else [(i, i + 1)] if op.kind in SUMMING else []
        found.append([*(values[name] for name in op.outputs), *beside])
    found += [[(copy.first, copy.last + 1)] for copy in nodes.copies]
    found += [_late_intervals(again, loops) for again in nodes.agains]
    return found + [[] for _ in nodes.joints]


def _late_intervals(again: Again, loops: Loops) -> list[Interval]:
    """Per value of a second run: when it is kept for it, held for late readers, and for other second runs.

    Rows are kept until the loop ends that makes others anew of them; they are held in each pass of it.
    """
    found = []
    for v in again.values:
        start = max(v.last_early + 1, again.first)
        in_rows = v.held != v.name or v.rows != 1
        home = loops.around(loops.operations[again.first].region) if in_rows else ()
        own = max(start, loops.after(v.last_own, home) if v.last_own >= 0 else start)
        kept = max(start, loops.after(again.first)) if in_rows else start
        found += [(v.since, kept), (start, own), (own, max(own, loops.after(v.last_late, home)))]
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
