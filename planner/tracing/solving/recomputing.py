"""Operators that may run again: what they make is either kept for late readers, or made anew shortly before these.

The last readers of a value of the forward pass stand in the backward pass, long after the others. Where memory is
short, an operator has a second node there, which keeps the value, recomputes it, or leaves it dropped if nobody
wants it; what it is recomputed from is kept or recomputed in its turn. Results of the program are not looked at.

What the body of a scan hands on to the body of another, row by row (a forward pass to its backward pass), is kept as a
stack of all rows; or it is made anew in the other body, from rows that are kept, or were never asked for: states of the
loop, and what operators make that hand nothing on, may have a stack for second runs alone.

Source: Jain et al., "Checkmate", arXiv:1910.02653, of which this is the case of one more run per operator, in a
place that is settled beforehand.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from planner.tracing.program import Operation, Program
from planner.tracing.solving.rows import Pair, Seen, pairs

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
    place: int
    """Which of the operator's outputs it is."""
    held: str
    """What is held where it is kept: itself, or the stack whose row it is."""
    since: int
    """Position from which it is held for that."""
    rows: int = 1
    """How many of what is held: all rows of what is in no stack of the program; 0 for what can only be made anew."""
    seen: Seen | None = None
    """How its dims are seen by its readers, where that is otherwise than the operator that makes it has them."""
    inside: str = ""
    """What other second runs call it then."""


class Again(NamedTuple):
    """An operator that may run a second time."""

    operation: int
    """Its position."""
    first: int
    """Position of the operator before which it runs again."""
    values: tuple[Late, ...]
    reads: tuple[str, ...]
    """Its inputs, as they are called where it runs again."""
    stacks: tuple[str, ...] = ()
    """Of each input the array of which it is a row that the second body takes for this alone; else empty."""

    @property
    def for_others(self) -> bool:
        """Whether it makes a difference that other second runs may read its values."""
        return any(v.last_own < v.last_late for v in self.values)


def agains(program: Program) -> tuple[Again, ...]:
    """Operators that may run again: those outside scans, in the program's order, then those of scans."""
    outside = tuple(reversed(list(_outside(program))))
    return (*outside, *(a for pair in pairs(program) for a in _in_scans(program, pair)))


def late_pairs(program: Program, names: Collection[str]) -> set[tuple[str, str]]:
    """Operators that run again, by ``names``, each with its late readers."""
    found = [a for a in agains(program) if program.operations[a.operation].name in names] if names else []
    late = late_readers(program, found)
    return {
        (program.operations[a.operation].name, program.operations[r].name)
        for a in found
        for v in a.values
        for r in late[v.name]
    }


def _outside(program: Program) -> Iterator[Again]:
    """The last first."""
    may = _repeatable(program)
    wanted: dict[str, set[int]] = {name: set() for i in may for name in program.operations[i].outputs}
    for i in reversed(may):
        op = program.operations[i]
        read = {name: program.readers.get(name, ()) for name in op.outputs}
        own = {r for readers in read.values() for r in _late(i, readers)}
        places = own.union(*(wanted[name] for name in op.outputs))
        if not places:
            continue
        first = _first(places, own)
        values = []
        for k, (name, readers) in enumerate(read.items()):
            last = max((i, *(r for r in readers if r < first)))
            late = [r for r in readers if r >= first]
            if late or wanted[name]:
                last_late = max((*late, *wanted[name]))
                values.append(Late(name, last, max(late, default=-1), last_late, k, name, last + 1))
        yield Again(i, first, tuple(values), op.inputs)
        for name in op.inputs:
            if name in wanted:
                wanted[name].add(first)


def _in_scans(program: Program, pair: Pair) -> Iterator[Again]:
    """Operators of the first body that may run again in the second, the last first; then its states, to be kept."""
    begin = next(j for j, op in enumerate(program.operations) if op.region == pair.first)
    sliced = _sliced(program, pair)
    may, states = _within(program, pair, sliced)
    in_parts = {name for op in program.operations for name in op.addends}
    own = [n for i in (*may, *states) for n in program.operations[i].outputs if n not in pair.rows]
    rows = (*pair.rows.values(), *(row for row, _, _ in pair.turned.values()))
    wanted = {row: set(program.readers.get(row, ())) for row in rows} | {name: set() for name in own}
    for i in (*reversed(may), *reversed(states)):
        op = program.operations[i]
        handed = any(n in pair.stacks or n in pair.turned or n in in_parts for n in op.outputs)
        more = 0 if handed else program.operations[begin].times
        values = []
        for k, name in enumerate(op.outputs):
            late = _late_in_scan(program, pair, name, wanted)
            if late is not None:
                values.append(late._replace(place=k, since=begin, rows=more if late.held == late.name else 1))
        if values:
            first = min(at for v in values for at in (*wanted[v.name], *wanted.get(v.inside, ())))
            reads = () if op.kind == "boundary" else tuple(pair.rows.get(name, name) for name in op.inputs)
            yield Again(i, first, tuple(values), reads, tuple(sliced.get(name, "") for name in reads))
            for name in reads:
                if name in wanted:
                    wanted[name].add(first)


def _late_in_scan(program: Program, pair: Pair, name: str, wanted: Mapping[str, set[int]]) -> Late | None:
    """What the first body makes, as it is wanted in the second; None where it is not, or is there anyhow."""
    row, stack, seen = pair.turned.get(name, (pair.rows.get(name, name), pair.stacks.get(name), None))
    late = {*wanted.get(row, ()), *wanted.get(name, ())}
    if not late or (stack is None and row != name):
        return None
    last = max(program.readers.get(row, ()), default=-1)
    if stack is None:
        return Late(name, max(last, program.producer[name]), -1, max(late), 0, name, 0)
    return Late(row, stack.slice_at, last, max(late), 0, stack.name, 0, 1, seen, name if seen else "")


def _sliced(program: Program, pair: Pair) -> dict[str, str]:
    """Rows that the first scan takes of inputs, and the second does not -> the inputs."""
    return {
        op.outputs[0]: op.inputs[0]
        for op in program.operations
        if op.kind == "boundary" and op.manual is None and op.name.startswith(f"{pair.first}/slice.")
        if op.inputs  # rows of a constant have none
        if program.value[op.inputs[0]].role != "intermediate" and op.reads[0][1:] == op.writes[0]
        if op.outputs[0] not in pair.rows
    }


def _within(program: Program, pair: Pair, sliced: Collection[str]) -> tuple[list[int], list[int]]:
    """Positions of operators that can run again there, and of the loop's states that can be kept for them.

    They run again of rows that are handed on or ``sliced``, states, one another, and what is in no body.
    """
    body = {n for op in program.operations if op.region == pair.first for n in op.outputs}
    body |= {n for op in program.operations if op.name.startswith(f"{pair.first}/") for n in op.outputs}
    body -= {*sliced, *pair.rows}
    found: list[int] = []
    states: list[int] = []
    for i, op in enumerate(program.operations):
        if op.name.startswith(f"{pair.first}/carry.") and op.manual is None and op.name in body:
            states.append(i)
            body.remove(op.name)
        runs = op.region == pair.first and op.kind != "boundary" and op.manual is None
        if runs and body.isdisjoint(op.inputs):
            found.append(i)
            body -= set(op.outputs)
    return found, states


def _first(places: Collection[int], own: Collection[int]) -> int:
    """Where the second run stands: before its last ``own`` readers, else before what wants it last.

    With what wants it shortly before these, and its own readers near one another there. Own readers that come before
    have what the first run made; second runs that do, what is kept; those that come after have it held for them.
    """
    last = max(own or places)
    first = min(place for place in places if 0 <= last - place <= SPAN)
    for reader in sorted(own, reverse=True):
        first = min(first, reader) if first - reader <= NEAR else first
    return first


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
    return op.kind != "boundary" and not op.region and op.manual is None


def _late(position: int, readers: Sequence[int]) -> Sequence[int]:
    """Readers after the longest time without one, if that is long."""
    places = [position, *readers]
    gaps = [b - a for a, b in zip(places, readers, strict=False)]
    widest = max(range(len(gaps)), key=gaps.__getitem__, default=0)
    return readers[widest:] if gaps and gaps[widest] > NEAR else ()


def clusters(operations: Sequence[Operation], readers: Sequence[int]) -> list[list[int]]:
    """Readers that stand near one another in one body."""
    found: list[list[int]] = []
    for i in readers:
        last = found[-1][-1] if found else i
        if found and i - last <= NEAR and operations[i].body == operations[last].body:
            found[-1].append(i)
        else:
            found.append([i])
    return found
