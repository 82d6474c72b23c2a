"""Rows that a plan makes anew in the body of a second scan, instead of having the first one collect them.

The first scan hands out nothing in their place. In the body of the second, the equations that made a row are run again
on what that body has: rows that are collected, some of them only for this; rows of what the first goes over; and what
lies outside of both.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from planner.tracing.applying.scopes import scope_of
from planner.tracing.solving.recomputing import agains

NOTHING: Mapping[str, str] = MappingProxyType({})


class _Row(NamedTuple):
    """A row in the body of the scan that made it."""

    array: Any
    collected: Any
    """All rows; held, so that nothing else has its identity."""
    dropped: bool
    scan: str


class _Known(NamedTuple):
    """A row in the body of a first scan, and the array of all rows."""

    array: Any
    rows: Any


class RowsAnew:
    """Which rows are dropped, and how to have them in another body."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        program = runner.sharded.program
        again = {s.name: s for s in runner.sharded.recomputed}
        run = [a for a in agains(program) if program.operations[a.operation].name in again]
        self.dropped = {
            program.operations[program.producer[late.held]].name
            for a in run
            for late in a.values
            if late.held != late.name
        }
        """Boundaries that would have collected them."""
        operations = (program.operations[a.operation] for a in run)
        self.reads = {
            op.name: dict(zip(op.inputs, a.reads, strict=False))
            for a, op in zip(run, operations, strict=True)
        }
        """Operator that runs again -> what it reads, and how that is called in the body where it does."""
        self.sharding = again
        self.rows: dict[int, _Row] = {}
        """By the identity of what a scan has collected."""
        self.also: dict[str, list[_Known]] = {}
        """By scan, what else a second one may go over: rows collected for it alone, and what the first goes over."""

    def collected(self, title: str, rows: Sequence[Any]) -> list[Any]:
        """What the body of a scan hands out: a number for what is dropped, and at the end what is wanted besides."""
        import jax

        own = [jax.numpy.zeros(()) if self._drops(title, i) else row for i, row in enumerate(rows)]
        more = [
            self.runner.put(self.runner.copies.arrays[name], partition)
            for name, partition in self._more(title)
        ]
        return [*own, *more]

    def note_collected(self, title: str, rows: Sequence[Any], stacks: Sequence[Any]) -> Sequence[Any]:
        """Which rows of its body an ended scan has collected; the stacks that the function knows of."""
        own = stacks[: len(rows)]
        for i, (row, stack) in enumerate(zip(rows, own, strict=True)) if self.dropped else ():
            self.rows[id(stack)] = _Row(row, stack, self._drops(title, i), title)
        more = zip(self._more(title), stacks[len(rows) :], strict=True)
        self.also.setdefault(title, []).extend(
            _Known(self.runner.copies.arrays[name], self.runner.put(stack, ((), *partition)))
            for (name, partition), stack in more
        )
        return own

    def note_sliced(self, title: str, arrays: Sequence[Any], rows: Sequence[Any]) -> None:
        """What the body of a scan has of what it goes over."""
        if self.dropped:
            self.also.setdefault(title, []).extend(map(_Known, rows, arrays))

    def besides(self, arrays: Sequence[Any]) -> list[Any]:
        """What else a scan over ``arrays`` goes over, to make rows of some of them anew."""
        own = set(map(id, arrays))
        return [known.rows for known in self._known(arrays) if id(known.rows) not in own]

    def restored(self, title: str, arrays: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """Rows of ``arrays`` in a scan's body, those that were dropped made anew; ``rows`` are of `besides` too.

        What the first body made may have been collected twice, and lie otherwise here and there: each second run reads
        the row that the plan says.
        """
        here = dict(zip(map(id, (*arrays, *self.besides(arrays))), rows, strict=True))
        found = {id(known.array): self._lying(here[id(known.rows)], known) for known in self._known(arrays)}
        first = [self.rows.get(id(array)) for array in arrays]
        named: dict[str, Any] = {}
        for i, (was, row) in enumerate(zip(first, rows, strict=False)):
            if was is not None and not was.dropped:
                found[id(was.array)] = named[f"{title}/slice.{i}"] = row
        return [
            self._anew(was.array, was.scan, found, named) if was is not None and was.dropped else row
            for was, row in zip(first, rows, strict=False)
        ]

    def _lying(self, row: Any, known: _Known) -> Any:
        """A row as it lies among all rows."""
        lies = self.runner.lies.get(id(known.rows))
        return row if lies is None or lies[1][0] else self.runner.put(row, lies[1][1:])

    def _known(self, arrays: Iterable[Any]) -> list[_Known]:
        """Of the scans that made ``arrays``, where something of them is dropped."""
        made = (self.rows.get(id(array)) for array in arrays)
        scans = dict.fromkeys(was.scan for was in made if was is not None and was.dropped)
        return [known for scan in scans for known in self.also.get(scan, ())]

    def _more(self, title: str) -> list[tuple[str, Any]]:
        """Rows of a scan's body that are collected for second runs alone, and how they lie."""
        program, found = self.runner.sharded.program, self.runner.sharded.collected
        makers = {name: program.operations[program.producer[name]] for name in found}
        return [
            (name, found[name])
            for name, maker in makers.items()
            if title in (maker.region, maker.name.rpartition("/carry.")[0])
        ]

    def _drops(self, title: str, place: int) -> bool:
        return f"{title}/stack.{place}" in self.dropped

    def _anew(
        self,
        array: Any,
        scan: str,
        known: dict[int, Any],
        named: Mapping[str, Any],
        reads: Mapping[str, str] = NOTHING,
    ) -> Any:
        """An array of the first body in the second, for an operator that ``reads`` some of the rows that are ``named``.

        Views are made for each operator, of the row that this reads. What was made outside of ``scan`` is there.
        """
        import jax

        _, array = self.runner.outside.get(id(array), (array, array))
        if (row := named.get(reads.get(self.runner.copies.name_of(array), ""))) is not None:
            return row
        made = self.runner.second.made.get(id(array))
        if id(array) in known or made is None:
            return known.get(id(array), array)
        within = made.title.startswith(f"{scan}/")
        if not within and self.runner.second.maker(array) not in self.sharding:
            return array
        site = self.runner.sites.get(made.title)
        own = reads if site is None else self.reads.get(site.operation.name, NOTHING)
        operands = [self._anew(x, scan, known, named, own) for x in made.operands]
        if site is not None and site.operation.name in self.sharding:
            site = site._replace(sharding=self.sharding[site.operation.name])
        with jax.named_scope(scope_of(site.operation.name if site else made.title)):
            found: list[Any] = self.runner.placed(made.equation, made.title, site, operands)
        if site is not None:
            known[id(array)] = found[made.place]
        return found[made.place]
