"""Kernels dealt to blocks: what comes before the repeated layers, each layer, and what comes after.

Layers are loops of the program (``scan``), or what reads parameters whose paths differ in one number
(``layers.3.attention.q``).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.tracing.lifting.kernels import Kernel, Lifted
from planner.tracing.lifting.plain import no_graph

_NUMBER = re.compile(r"^(.*?[._\[])(\d+)([.\]].*)?$")

FIRST = -1
"""The stage before the layers."""


@dataclass
class Stage:
    """Kernels of one block, and how often it runs in a row."""

    kernels: list[Kernel] = field(default_factory=list)
    count: int = 1
    inputs: tuple[str, ...] = ()
    """Values of the stage before."""
    outputs: tuple[str, ...] = ()
    """Values for the stage after; as many as its inputs."""
    number: int | None = None
    """Of the layer in the paths of its parameters."""


def stages_of(lifted: Lifted) -> tuple[Stage, list[Stage], Stage]:
    """What comes first, the layers, and what comes last.

    Raises ``Unsupported`` where a layer reads what others than the one before it have made.
    """
    loops = list(dict.fromkeys(k.region for k in lifted.kernels if k.region))
    first, layers, last = _of_loops(lifted, loops) if loops else _of_paths(lifted)
    made = {n for k in last.kernels for n in k.outputs}
    last.outputs = tuple(n for n in map(lifted.root, lifted.plain.program.outputs) if n in made)
    return first, layers, last


def _of_loops(lifted: Lifted, loops: Sequence[str]) -> tuple[Stage, list[Stage], Stage]:
    if any("/scan." in loop for loop in loops):
        raise no_graph(f"loop {loops[-1]} is inside another: layers of a model are one loop after another")
    first, last, layers = Stage(), Stage(), list[Stage]()
    handed: tuple[str, ...] | None = None
    for loop in loops:
        times = next(d.times for d in lifted.plain.drafts if d.region == loop)
        stage = Stage([k for k in lifted.kernels if k.region == loop], times)
        read = {lifted.root(n) for k in stage.kernels for n in k.inputs}
        used = [c for c in _carries(lifted, loop) if c.inside in read]
        stage.inputs, stage.outputs = tuple(c.inside for c in used), tuple(c.back for c in used)
        starts = tuple(c.start for c in used)
        if handed is None:
            first.outputs = starts
        elif starts != handed:
            raise no_graph(f"loop {loop} does not continue what the loop before it returns")
        handed = tuple(c.end for c in used)
        layers.append(stage)
    last.inputs = handed or ()
    after = set(last.inputs)
    for kernel in lifted.kernels:
        if not kernel.region:
            late = after.intersection(kernel.inputs)
            after.update(kernel.outputs if late else ())
            (last if late else first).kernels.append(kernel)
    _check_handed_on(lifted, [first, *layers, last])
    return first, layers, last


class _Carry(NamedTuple):
    """One state of a loop: before it, inside, as it comes round, and after it."""

    start: str
    inside: str
    back: str
    end: str


def _carries(lifted: Lifted, loop: str) -> list[_Carry]:
    back = {t.target: lifted.root(t.source) for t in lifted.plain.program.ties}
    return [
        _Carry(lifted.root(d.inputs[0]), d.name, back[d.name], d.outputs[-1])
        for d in lifted.plain.drafts
        if d.name.startswith(f"{loop}/carry.") and d.inputs and d.name in back
    ]


def _of_paths(lifted: Lifted) -> tuple[Stage, list[Stage], Stage]:
    numbers = _layer_numbers(lifted)
    count = max(numbers.values(), default=-1) + 1
    if count < 1:
        raise no_graph(
            f"program {lifted.plain.program.name} has no loop, and no parameters whose paths differ in a number, "
            "by which to know its layers"
        )
    stages = [Stage(number=i - 1) for i in range(count + 2)]
    made: dict[str, int] = {}
    for kernel in lifted.kernels:
        at = max((made.get(n, FIRST) for n in kernel.inputs), default=FIRST)
        own = [numbers.get(lifted.root(w), FIRST) for w in kernel.weights]
        if at == count - 1 and own and max(own) == FIRST:
            at = count
        at = max(at, *own, FIRST)
        made.update(dict.fromkeys(kernel.outputs, at))
        stages[at + 1].kernels.append(kernel)
    for here, after in zip(stages, stages[1:], strict=False):
        have = {n for k in here.kernels for n in k.outputs}
        wanted = dict.fromkeys(n for k in after.kernels for n in k.inputs if n in have)
        here.outputs = after.inputs = tuple(wanted)
    _check_handed_on(lifted, stages)
    return stages[0], stages[1:-1], stages[-1]


def _layer_numbers(lifted: Lifted) -> Mapping[str, int]:
    """Parameter -> number of its layer, by the prefix under which most elements lie."""
    found: dict[str, dict[str, int]] = {}
    weight: Counter[str] = Counter()
    for name in lifted.plain.weights:
        match = _NUMBER.match(lifted.plain.value[name].path)
        if match:
            found.setdefault(match.group(1), {})[name] = int(match.group(2))
            weight[match.group(1)] += lifted.plain.size(name)
    if not found:
        return {}
    return found[max(sorted(weight), key=lambda prefix: weight[prefix])]


def _check_handed_on(lifted: Lifted, stages: Sequence[Stage]) -> None:
    """Every activation is read in the stage that makes it or the next one."""
    data = {n for n in lifted.plain.program.inputs if n not in lifted.plain.weights}
    for stage in stages:
        known = {*stage.inputs, *data, *(n for k in stage.kernels for n in k.outputs)}
        for kernel in stage.kernels:
            lost = [n for n in map(lifted.root, kernel.inputs) if n not in known]
            if lost:
                raise no_graph(
                    f"operator {kernel.drafts[-1].name} reads {lost[0]}, which is not of the layer before it"
                )
