"""Kernels dealt to blocks: what comes before the repeated layers, each layer, and what comes after.

Layers are loops of the program (``scan``), or what reads parameters whose paths differ in one number
(``layers.3.attention.q``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from planner.tracing.lifting.kernels import NUMBER, PRODUCTS, Kernel, Lifted
from planner.tracing.lifting.plain import no_graph


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
    loop: str = ""
    """Whose body it is."""


def stages_of(lifted: Lifted) -> tuple[Stage, list[Stage], Stage]:
    """What comes first, the layers with what lies between stacks of them, and what comes last.

    A value that is read in a later stage than the next one passes through those between.
    """
    slots = _Slots(lifted)
    for kernel in lifted.kernels:
        slots.place(kernel)
    slots.sink()
    stages = slots.stages
    for stage in stages:
        _sort(lifted, stage)
    _hand_on(lifted, stages, slots.needed())
    kept = [stages[0], *(s for s in stages[1:-1] if s.kernels), stages[-1]]
    made = {n for k in kept[-1].kernels for n in k.outputs}
    kept[-1].outputs = tuple(n for n in map(lifted.root, lifted.plain.program.outputs) if n in made)
    _check_handed_on(lifted, kept)
    return kept[0], kept[1:-1], kept[-1]


class _Slots:
    """Places for kernels: before the layers, each layer, between one stack of layers and the next, and after them."""

    def __init__(self, lifted: Lifted) -> None:
        self.lifted = lifted
        self.of_weight: dict[str, int] = {}
        self.of_loop: dict[str, int] = {}
        self.stages = [Stage()]
        self.between = [0]
        """Slots that are no layers."""
        self.views: dict[str, Kernel] = {}
        """What is read under other names -> its view, which stands beside what reads it."""
        self.alone = False
        """Whether nothing repeats: all is one layer."""
        loops = list(dict.fromkeys(k.region for k in lifted.kernels if k.region))
        if loops:
            self._add_loops(loops)
        else:
            self._add_numbered(_stacks(lifted))
        self.made: dict[str, int] = {}
        """Value -> the slot from which on it is there."""
        for carry in (c for loop in loops for c in _carries(lifted, loop)):
            self.made[carry.end] = self.of_loop[carry.loop]

    def _add_loops(self, loops: Sequence[str]) -> None:
        outer = [around for around in (_around(self.lifted, loop) for loop in loops) if around]
        if len({*outer, *loops}) < len(outer) + len(loops):
            raise no_graph(
                f"loop {loops[-1]} is inside another that does more: layers are one loop after another"
            )
        for loop in loops:
            self.of_loop[loop] = len(self.stages)
            times = next(d.times for d in self.lifted.plain.drafts if d.region == loop)
            self.stages.append(Stage(count=times, loop=loop))
            self._add_between()

    def _add_numbered(self, stacks: Sequence[Mapping[str, int]]) -> None:
        if not stacks:
            self.alone = True
            self.stages.append(Stage())
            self._add_between()
        for numbers in stacks:
            first = len(self.stages)
            self.stages += [Stage(number=i) for i in range(max(numbers.values()) + 1)]
            self.of_weight |= {name: first + number for name, number in numbers.items()}
            self._add_between()

    def _add_between(self) -> None:
        self.between.append(len(self.stages))
        self.stages.append(Stage())

    def place(self, kernel: Kernel) -> None:
        """In its loop, in the layer that its parameters are of, else where what it reads is made."""
        if self.alone:
            self.made.update(dict.fromkeys(kernel.outputs, 1))
            self.stages[1].kernels.append(kernel)
            return
        if kernel.role == "view":
            self.made[kernel.outputs[0]] = self.made.get(kernel.inputs[0], 0)
            self.views[kernel.outputs[0]] = kernel
            return
        at = max((self.made.get(n, 0) for n in kernel.inputs), default=0)
        own = [self.of_weight.get(self.lifted.root(w), 0) for w in kernel.weights]
        last = at + 1 in self.between and at not in self.between
        if kernel.region:
            at = self.of_loop[kernel.region]
        elif last and (self.of_loop or (own and max(own) == 0)):
            at += 1
        at = max(at, *own, 0)
        kernel.weights = [w for w, slot in zip(kernel.weights, own, strict=True) if slot in (0, at)]
        if own and not kernel.weights and kernel.role in PRODUCTS:
            raise no_graph(f"operator {kernel.drafts[0].name} is of a layer that began before another did")
        self.made.update(dict.fromkeys(kernel.outputs, at))
        self.stages[at].kernels += [self.views[n] for n in kernel.inputs if n in self.views]
        self.stages[at].kernels.append(kernel)

    def sink(self) -> None:
        """What begins a later stack stands before that one."""
        for kernel in reversed(self.stages[0].kernels):
            read = [i for i, s in enumerate(self.stages) if set(kernel.outputs) & _read(self.lifted, s)]
            to = max(slot for slot in self.between if slot <= min(read, default=0))
            if to:
                self.stages[0].kernels.remove(kernel)
                self.stages[to].kernels.insert(0, kernel)

    def needed(self) -> list[set[str]]:
        """Per slot, what it reads or has to hand on."""
        found = [_read(self.lifted, stage) for stage in self.stages]
        found[-1] |= set(map(self.lifted.root, self.lifted.plain.program.outputs))
        for low, high in pairwise(self.between):
            found[high] |= self._through(low, high)
        return found

    def _through(self, low: int, high: int) -> set[str]:
        """What several layers of a stack read goes through all of them, so that the last is like the others."""
        stack = self.stages[low + 1 : high]
        read = [_read(self.lifted, s) - _starts(self.lifted, s) for s in stack]
        times = {
            n: sum(s.count for s, names in zip(stack, read, strict=True) if n in names) for n in read[-1]
        }
        return {n for n, count in times.items() if count > 1 and self.made.get(n, high) <= low}


def _sort(lifted: Lifted, stage: Stage) -> None:
    """Kernels in an order that is the same in layers that are alike: by how far they are from what comes in."""
    order = {id(draft): i for i, draft in enumerate(lifted.plain.drafts)}
    level: dict[str, int] = {}
    at: dict[int, int] = {}
    for kernel in stage.kernels:
        at[id(kernel)] = 1 + max((level.get(n, 0) for n in kernel.inputs), default=0)
        level.update(dict.fromkeys(kernel.outputs, at[id(kernel)]))
    stage.kernels.sort(key=lambda k: (at[id(k)], min(order[id(d)] for d in k.drafts)))


def _read(lifted: Lifted, stage: Stage) -> set[str]:
    """What a stage reads, by the names that values have outside of loops."""
    return {lifted.root(n) for k in stage.kernels for n in k.inputs} | _starts(lifted, stage)


def _starts(lifted: Lifted, stage: Stage) -> set[str]:
    return {c.start for c in _used(lifted, stage)}


def _used(lifted: Lifted, stage: Stage) -> list["_Carry"]:
    read = {lifted.root(n) for k in stage.kernels for n in k.inputs}
    return [c for c in _carries(lifted, stage.loop) if c.inside in read] if stage.loop else []


def _hand_on(lifted: Lifted, stages: Sequence[Stage], needed: Sequence[Set[str]]) -> None:
    """What each stage receives and hands on: all that is made before and read after."""
    made: dict[str, int] = {}
    before: Stage | None = None
    for i, stage in enumerate(stages):
        if before is not None and (stage.kernels or stage is stages[-1]):
            wanted = set[str]().union(*needed[i:])
            live = sorted((n for n in made if n in wanted), key=lambda n: -made[n])  # passed on ones last
            inside = {c.start: c.inside for c in _used(lifted, stage)}
            back = {c.end: c.back for c in _used(lifted, before)}
            before.outputs = tuple(back.get(n, n) for n in live)
            stage.inputs = tuple(inside.get(n, n) for n in live)
        if stage.kernels or before is None:
            before = stage
        made.update(dict.fromkeys((n for k in stage.kernels for n in k.outputs), i))
        made.update(dict.fromkeys((c.end for c in _used(lifted, stage)), i))


class _Carry(NamedTuple):
    """One state of a loop: before it, inside, as it comes round, and after it."""

    loop: str
    start: str
    inside: str
    back: str
    end: str


def _carries(lifted: Lifted, loop: str) -> list[_Carry]:
    """States of a loop; one that is all that another does has what that begins and ends with."""
    back = {t.target: lifted.root(t.source) for t in lifted.plain.program.ties}
    own = [
        _Carry(loop, lifted.root(d.inputs[0]), d.name, back[d.name], d.outputs[-1])
        for d in lifted.plain.drafts
        if d.name.startswith(f"{loop}/carry.") and d.inputs and d.name in back
    ]
    outer = _around(lifted, loop)
    around = {(c.inside, c.back): c for c in _carries(lifted, outer)} if outer else {}
    pairs = ((c, around.get((c.start, c.end), c)) for c in own)
    return [c._replace(start=other.start, end=other.end) for c, other in pairs]


def _around(lifted: Lifted, loop: str) -> str:
    """The nearest loop that ``loop`` is in; empty where there is none."""
    loops = {
        d.name.rpartition("/")[0] for d in lifted.plain.drafts if "/carry." in d.name or "/slice." in d.name
    }
    return max((other for other in loops if loop.startswith(f"{other}/")), key=len, default="")


def _stacks(lifted: Lifted) -> list[Mapping[str, int]]:
    """Of each stack of layers: parameter -> number of its layer, each stack after those that it reads.

    Layers are what lies under numbers behind the prefix under which most elements lie, and behind others under which
    there is attention too (encoder and decoder).
    """
    found: dict[str, dict[str, int]] = {}
    weight: Counter[str] = Counter()
    for name in lifted.plain.weights:
        match = NUMBER.match(lifted.plain.value[name].path)
        if match:
            found.setdefault(match.group(1), {})[name] = int(match.group(2))
            weight[match.group(1)] += lifted.plain.size(name)
    if not found:
        return []
    heaviest = max(sorted(weight), key=lambda prefix: weight[prefix])
    before = _stacks_before(lifted, {name: prefix for prefix, names in found.items() for name in names})
    stacks = [prefix for prefix in found if prefix == heaviest or prefix in before]
    return [found[p] for p in sorted(stacks, key=lambda p: (len(before.get(p, ())), p))]


def _stacks_before(lifted: Lifted, prefixes: Mapping[str, str]) -> Mapping[str, Set[str]]:
    """Prefix under which something attends -> those of them that are before it."""
    nearest: dict[str, frozenset[str]] = {}
    reached: dict[str, frozenset[str]] = {}
    attend: set[str] = set()
    before: dict[str, set[str]] = {}
    for kernel in lifted.kernels:
        own = frozenset(prefixes[w] for w in map(lifted.root, kernel.weights) if w in prefixes)
        near = own or own.union(*(nearest.get(n, own) for n in kernel.inputs))
        upstream = own.union(*(reached.get(n, own) for n in kernel.inputs))
        nearest.update(dict.fromkeys(kernel.outputs, near))
        reached.update(dict.fromkeys(kernel.outputs, upstream))
        if kernel.role == "attention":
            attend |= near
        for prefix in own:
            before.setdefault(prefix, set()).update(upstream - {prefix})
    return {prefix: before[prefix] & attend for prefix in attend}


def _check_handed_on(lifted: Lifted, stages: Sequence[Stage]) -> None:
    """No activation is read but from the stage itself, or from what it receives."""
    inputs = (n for n in lifted.plain.program.inputs if n not in lifted.plain.weights)
    data = {*inputs, *lifted.plain.factors}
    for stage in stages:
        known = {*stage.inputs, *data, *(n for k in stage.kernels for n in k.outputs)}
        for kernel in stage.kernels:
            lost = [n for n in map(lifted.root, kernel.inputs) if n not in known]
            if lost:
                raise no_graph(
                    f"operator {kernel.drafts[-1].name} reads {lost[0]}, which is not of the layer before it"
                )
