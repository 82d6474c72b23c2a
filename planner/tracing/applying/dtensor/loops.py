"""Recurrent layers as a plan has them: step after step, rows and states where the boundaries of the loop say."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.errors import InputError
from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.sites import Site
from planner.tracing.layouts import Partition
from planner.tracing.program import Value
from planner.tracing.reading.torch_calls import kind_of
from planner.tracing.reading.torch_lifted import core_operators
from planner.tracing.reading.torch_loops import LOOPS, Given, graph_of_step


class Step(NamedTuple):
    """What a loop is given, as nodes of the graph that it is in, and what it does with a row."""

    given: Given
    nodes: Sequence[Any]
    graph: Any
    kept: Sequence[int]
    """Of the rows that a step makes, which of those that differ each is."""


class Loops:
    """Runs the loops of a `Runner`."""

    kinds = frozenset(LOOPS)

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.steps: dict[Any, Step] = {}

    def run(self, title: str, node: Any, env: Any) -> tuple[list[Array | None], list[Array]]:
        """Rows that all steps make, and the last states."""
        step = self._step(node)
        if any(s.name.startswith(f"{title}/") for s in self.runner.sharded.recomputed):
            raise InputError(f"{title}: second runs inside of a recurrent layer are not run")
        arrays = [env[n] for n in step.nodes]
        rows, states = len(step.given.rows), len(step.given.states)
        sliced = [self._placed(f"{title}/slice.{i}", x) for i, x in enumerate(arrays[:rows])]
        carried = [self._begun(f"{title}/carry.{i}", x) for i, x in enumerate(arrays[rows : rows + states])]
        outside = arrays[rows + states :]
        count = step.given.rows[0].shape[0]
        reverse = node.args[-1]
        made: dict[int, dict[int, Any]] = {}
        with self.runner.lasting(outside):
            for t in reversed(range(count)) if reverse else range(count):
                now = [self._row(f"{title}/slice.{i}", x, t) for i, x in enumerate(sliced)]
                results = self.runner.walk(step.graph, [*now, *carried, *outside], f"{title}/")
                carried = [self._state(f"{title}/carry.{i}", x) for i, x in enumerate(results[:states])]
                for place, number in enumerate(step.kept):
                    made.setdefault(number, {})[t] = self._kept(
                        f"{title}/stack.{number}", results[states + place]
                    )
        stacks = {number: self._stacked(title, number, each) for number, each in made.items()}
        ends = [self._end(title, i, x) for i, x in enumerate(carried)]
        return [stacks[number] for number in step.kept], ends

    def _step(self, node: Any) -> Step:
        if node not in self.steps:
            nodes: list[Any] = []

            def known(given: Sequence[Any]) -> list[Value | None]:
                nodes.extend(n for n in given if n is not None)
                return [None if n is None else _value(n) for n in given]

            given, body = LOOPS[kind_of(node.target)](node, known)
            with _disable_current_modes():  # devices that this process simulates would be traced
                graph = graph_of_step(given, body, core_operators())
            results = graph.output_node().args[0][len(given.states) :]
            different = [*dict.fromkeys(results)]
            self.steps[node] = Step(given, nodes, graph, [different.index(n) for n in results])
        return self.steps[node]

    def _site(self, title: str) -> Site | None:
        self.runner.at = title
        found: Site | None = self.runner.site(title)
        return found

    def _lying(self, title: str, array: Array, place: Partition) -> Any:
        """``array`` as a boundary reads it."""
        held = self.runner.lying(array, place, title)
        self.runner.done(title)
        return held

    def _placed(self, title: str, array: Array) -> Array:
        """Rows where each step finds its own."""
        site = self._site(title)
        place = ((),) * array.ndim if site is None else site.lies(site.reads[0])
        return Array("", array.shape, self._lying(title, array, place))

    def _row(self, title: str, rows: Array, t: int) -> Array:
        site, shape = self._site(title), rows.shape[1:]
        held = rows.held.select(0, t)
        if site is not None:
            held = self.runner.moves.moved(held, site.left()[0])
        return Array(title, shape, held)

    def _begun(self, title: str, array: Array) -> Array:
        """A state before the first step."""
        site = self._site(title)
        place = ((),) * array.ndim if site is None else site.lies(site.reads[0])
        return self._state(title, Array("", array.shape, self._lying(title, array, place)))

    def _state(self, title: str, array: Array) -> Array:
        """A state that the next step reads."""
        site = self._site(title)
        place = ((),) * array.ndim if site is None else site.left()[0]
        return Array(title, array.shape, self._lying(title, array, place))

    def _end(self, title: str, number: int, array: Array) -> Array:
        site = self._site(f"{title}/carry.{number}")
        held = array.held if site is None else self.runner.moves.moved(array.held, site.left()[1])
        return Array(f"{title}:{number}", array.shape, held)

    def _kept(self, title: str, array: Array) -> Any:
        """A row that a step makes; None where nothing reads it."""
        site = self._site(title)
        return None if site is None else self._lying(title, array, site.lies(site.reads[0]))

    def _stacked(self, title: str, number: int, rows: dict[int, Any]) -> Array | None:
        site = self._site(f"{title}/stack.{number}")
        if site is None:
            return None
        each = [rows[t] for t in sorted(rows)]
        local = torch.stack([x.to_local() for x in each])
        places = self.runner.placements(site.lies(site.writes[0]))
        whole = DTensor.from_local(local, self.runner.mesh, places, run_check=False)
        held = self.runner.moves.moved(whole, site.left()[0])
        return Array(f"{title}:stack.{number}", (len(each), *each[0].shape), held)


def _value(node: Any) -> Value:
    tensor = node.meta["val"]
    return Value(name=node.name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
