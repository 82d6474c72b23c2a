"""Operators that may run again: what they make is either kept for late readers, or made anew shortly before these.

The last readers of a value of the forward pass stand in the backward pass, long after the others. Where memory is
short, an operator has a second node there, which keeps the value, recomputes it, or leaves it dropped if nobody
wants it; what it is recomputed from is kept or recomputed in its turn. Results of the program and bodies of scans
are not looked at.

Source: Jain et al., "Checkmate", arXiv:1910.02653, of which this is the case of one more run per operator, in a
place that is settled beforehand.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from planner.tracing.program import Operation, Program

NEAR = 12
"""Readers with more operators between them are a long time apart."""

SPAN = 32
"""Operators of the backward pass between the first and the last that have what one second run made: some more than a
transformer's layer has. Longer ones would bring back at once all that was to be dropped."""


class Late(NamedTuple):
    """A value that is wanted long after it was made."""

    name: str
    last_early: int
    """Position of the last reader that has what the first run made."""
    last_own: int
    """Position of the last reader that has what is kept or made anew; -1 where there is none."""
    last_late: int
    """The same with the second runs that may read it."""


class Again(NamedTuple):
    """An operator that may run a second time."""

    operation: int
    """Its position."""
    first: int
    """Position of the operator before which it runs again."""
    values: tuple[Late, ...]

    @property
    def for_others(self) -> bool:
        """Whether it makes a difference that other second runs may read its values."""
        return any(v.last_own < v.last_late for v in self.values)


def agains(program: Program) -> tuple[Again, ...]:
    """Operators that may run again, in the program's order."""
    may = _repeatable(program)
    wanted: dict[str, set[int]] = {name: set() for i in may for name in program.operations[i].outputs}
    found: list[Again] = []
    for i in reversed(may):
        op = program.operations[i]
        values = []
        for name in op.outputs:
            early, late = _parted(i, program.readers.get(name, ()))
            wanted[name].update(late)
            if wanted[name]:
                values.append(Late(name, max((i, *early)), max(late, default=-1), max(wanted[name])))
        if values:
            first = _first(at for name in op.outputs for at in wanted[name])
            found.append(Again(i, first, tuple(values)))
            for name in op.inputs:
                if name in wanted:
                    wanted[name].add(first)
    return tuple(reversed(found))


def _first(wanted: Iterable[int]) -> int:
    """The second run stands before the readers that come last; who wants it long before these gets what is kept."""
    places = sorted(wanted, reverse=True)
    return min(place for place in places if places[0] - place <= SPAN)


def late_readers(program: Program, found: Sequence[Again]) -> Mapping[str, tuple[int, ...]]:
    """Per value of an operator that may run again, its readers that come late."""
    return {
        late.name: tuple(r for r in program.readers.get(late.name, ()) if r > late.last_early)
        for again in found
        for late in again.values
    }


def _repeatable(program: Program) -> list[int]:
    """Positions of operators outside scans that can run again from inputs and from one another."""
    ends = {*program.outputs, *(n for t in program.ties for n in (t.source, t.target))}
    can: list[int] = []
    made: set[str] = {v.name for v in program.values if v.role != "intermediate"}
    for i, op in enumerate(program.operations):
        if _plain(op) and made.issuperset(op.inputs) and not ends.intersection(op.outputs):
            can.append(i)
            made.update(op.outputs)
    return can


def _plain(op: Operation) -> bool:
    return op.kind != "boundary" and not op.region


def _parted(position: int, readers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Readers before and after the longest time without one, if that is long."""
    places = [position, *readers]
    gaps = [b - a for a, b in zip(places, readers, strict=False)]
    widest = max(range(len(gaps)), key=gaps.__getitem__, default=0)
    if not gaps or gaps[widest] <= NEAR:
        return readers, ()
    return readers[:widest], readers[widest:]


def clusters(operations: Sequence[Operation], readers: Sequence[int]) -> list[list[int]]:
    """Readers that stand near one another in one body."""
    found: list[list[int]] = []
    for i in readers:
        last = found[-1][-1] if found else i
        if found and i - last <= NEAR and operations[i].region == operations[last].region:
            found[-1].append(i)
        else:
            found.append([i])
    return found
