"""Operators that a plan recomputes, as JAX runs them: what is kept is held back until it is wanted again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.scopes import scope_of
from planner.tracing.program import Operation
from planner.tracing.solving.recomputing import late_pairs


class _Made(NamedTuple):
    """What an array was computed by."""

    array: Any
    equation: Any
    title: str
    operands: list[Any]
    place: int


class SecondRuns:
    """Operators that a plan recomputes: their late readers get arrays made anew of what is kept.

    What is kept is held back until the reader's other operands are there, so that nothing is made anew too early.
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.sharding = {s.name: s for s in runner.sharded.recomputed}
        self.late_readers = late_pairs(runner.sharded.program, self.sharding)
        self.made: dict[int, _Made] = {}
        self.again: dict[int, Any] = {}
        self.held: dict[int, tuple[Any, Any]] = {}

    def remember(self, equation: Any, title: str, operands: list[Any], made: Sequence[Any]) -> None:
        """Note where arrays come from."""
        for place, array in enumerate(made) if self.sharding else ():
            if all(array is not x for x in operands):
                self.made[id(array)] = _Made(array, equation, title, operands, place)

    def late(self, reader: Operation, operands: list[Any]) -> list[Any]:
        """Operands of an equation, made anew where its operator comes late."""
        if not any(reader.name == late for _, late in self.late_readers):
            return operands
        waits = [self.maker(x) for x in operands]
        again = [w is not None and (w, reader.name) in self.late_readers for w in waits]
        trigger = next(
            (x for x, a in zip(operands, again, strict=True) if not a and hasattr(x, "shape")), None
        )
        return [self._anew(x, trigger) if a else x for x, a in zip(operands, again, strict=True)]

    def maker(self, array: Any) -> str | None:
        """The operator whose output an array is, or is a view of."""
        _, array = self.runner.outside.get(id(array), (array, array))
        made = self.made.get(id(array))
        if made is None:
            return None
        if made.title in self.runner.sites:
            return str(self.runner.sites[made.title].operation.name)
        makers = (self.maker(x) for x in made.operands)
        return next((m for m in makers if m is not None), None)

    def _anew(self, array: Any, trigger: Any) -> Any:
        """An array computed a second time, from what is kept or computed a second time too."""
        import jax

        _, array = self.runner.outside.get(id(array), (array, array))
        if id(array) in self.again:
            return self.again[id(array)]
        made, maker = self.made.get(id(array)), self.maker(array)
        if made is None or maker is None or maker not in self.sharding:
            return self._held_back(array, trigger)
        operands = [self._anew(x, trigger) for x in made.operands]
        site = self.runner.sites.get(made.title)
        if site is not None:
            site = site._replace(sharding=self.sharding[site.operation.name])
        with jax.named_scope(scope_of(maker)):
            found = self.runner.placed(made.equation, made.title, site, operands)[made.place]
        self.again[id(array)] = found
        return found

    def _held_back(self, array: Any, trigger: Any) -> Any:
        import jax

        if trigger is None or not hasattr(array, "shape"):
            return array
        if id(array) not in self.held:
            held, _ = jax.lax.optimization_barrier((array, trigger))
            known = self.runner.lies.get(id(array))
            self.held[id(array)] = (array, held if known is None else self.runner.put(held, known[1]))
        return self.held[id(array)][1]
