"""Rows that a plan makes anew in the body of a second scan, instead of having the first one collect them.

The first scan hands out nothing in their place. In the body of the second, the equations that made a row are run again
on what that body has: rows that are collected, and what lies outside of both.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.scopes import scope_of
from planner.tracing.solving.recomputing import agains


class _Row(NamedTuple):
    """A row in the body of the scan that made it."""

    array: Any
    collected: Any
    """All rows; held, so that nothing else has its identity."""
    dropped: bool


class RowsAnew:
    """Which rows are dropped, and how to have them in another body."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        program = runner.sharded.program
        again = {s.name: s for s in runner.sharded.recomputed}
        self.dropped = {
            program.operations[program.producer[late.held]].name
            for a in agains(program)
            for late in a.values
            if late.held != late.name and program.operations[a.operation].name in again
        }
        """Boundaries that would have collected them."""
        self.sharding = again
        self.rows: dict[int, _Row] = {}
        """By the identity of what a scan has collected."""
        self.slices: dict[int, list[tuple[Any, Any]]] = {}
        """By that of an array that scans go over: rows of it in their bodies, and itself."""

    def collected(self, title: str, rows: Sequence[Any]) -> list[Any]:
        """What the body of a scan hands out; a number for what is dropped."""
        import jax

        return [jax.numpy.zeros(()) if self._drops(title, i) else row for i, row in enumerate(rows)]

    def note_collected(self, title: str, rows: Sequence[Any], stacks: Sequence[Any]) -> None:
        """Which rows of its body an ended scan has collected."""
        for i, (row, stack) in enumerate(zip(rows, stacks, strict=True)) if self.dropped else ():
            self.rows[id(stack)] = _Row(row, stack, self._drops(title, i))

    def note_sliced(self, arrays: Sequence[Any], rows: Sequence[Any]) -> None:
        """What the body of a scan has of what it goes over."""
        for array, row in zip(arrays, rows, strict=True) if self.dropped else ():
            self.slices.setdefault(id(array), []).append((row, array))

    def restored(self, arrays: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """Rows of ``arrays`` in a scan's body, those that were dropped made anew."""
        first = [self.rows.get(id(array)) for array in arrays]
        known: dict[int, Any] = {}
        for array, was, row in zip(arrays, first, rows, strict=True):
            if was is not None and not was.dropped:
                known[id(was.array)] = row
            known.update((id(other), row) for other, _ in self.slices.get(id(array), ()))
        return [
            self._anew(was.array, known) if was is not None and was.dropped else row
            for was, row in zip(first, rows, strict=True)
        ]

    def _drops(self, title: str, place: int) -> bool:
        return f"{title}/stack.{place}" in self.dropped

    def _anew(self, array: Any, known: dict[int, Any]) -> Any:
        """An array of the first body in the second."""
        import jax

        _, array = self.runner.outside.get(id(array), (array, array))
        made = self.runner.second.made.get(id(array))
        if id(array) in known or made is None:
            return known.get(id(array), array)
        operands = [self._anew(x, known) for x in made.operands]
        site = self.runner.sites.get(made.title)
        if site is not None and site.operation.name in self.sharding:
            site = site._replace(sharding=self.sharding[site.operation.name])
        with jax.named_scope(scope_of(site.operation.name if site else made.title)):
            found = self.runner.placed(made.equation, made.title, site, operands)
        known[id(array)] = found[made.place]
        return known[id(array)]
