"""Operators of a plain program with their roles: products with weights, attention, kernels of loops."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.biases import ADDS, taken_by
from planner.tracing.lifting.fused import CUTS, separated
from planner.tracing.lifting.mixtures import ROUTING
from planner.tracing.lifting.plain import Plain, no_graph
from planner.tracing.lifting.recurrences import RECURRENCE
from planner.tracing.lifting.spread import SPREAD
from planner.tracing.lifting.views import VIEW, with_views

NUMBER = re.compile(r"^(.*?[._\[])(\d+)([.\]].*)?$")
"""A path with a number in it: what is before the first one, the number, what is after."""

Role = Literal[
    "matmul",
    "conv",
    "attention",
    "product",
    "embedding",
    "add",
    "kernel",
    "view",
    "recurrence",
    "dispatch",
    "combine",
]

LAST = {"kernel": 1, "view": 2}
"""Roles of kernels of loops, and of views of what these make, that wait for other kernels of their level."""

ALONE = frozenset({VIEW, RECURRENCE, SPREAD})
"""Primitives of operators that run as one with no loop."""

PRODUCTS = ("matmul", "conv")
"""Roles of products with a weight."""

SCALES = frozenset({"mul", "div"})
"""With one operand that varies they scale: no kernel of their own."""
INTEGERS = ("int", "uint", "bool")
EXPONENTIALS = frozenset({"exp", "_softmax", "_log_softmax", "_safe_softmax", "logsumexp"})


@dataclass
class Kernel:
    """What becomes one operator of the graph."""

    role: Role
    drafts: list[Draft]
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Parameters, by the name under which the operator reads them."""
    masked: bool = False
    """Whether positions mask something in it."""
    level: int = 0
    region: str = ""

    @property
    def primitives(self) -> frozenset[str]:
        """Of all that it is made of."""
        return frozenset(p for d in self.drafts for p in d.primitives)


@dataclass
class Lifted:
    """Kernels in an order in which they can run, and what stands for what."""

    plain: Plain
    kernels: list[Kernel] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)
    """Name -> what it is another name of: rows of a stack, what indices say, a weight in another type."""
    tables: dict[str, str] = field(default_factory=dict)
    """Rows that are read at fixed positions -> the whole table."""
    parts: dict[str, str] = field(default_factory=dict)
    """Part of a parameter -> the parameter."""

    def root(self, name: str) -> str:
        """What ``name`` stands for."""
        while name in self.alias:
            name = self.alias[name]
        return name

    def stem(self, name: str) -> str:
        """The part of a parameter that ``name`` stands for, or the whole."""
        while name in self.alias and name not in self.parts:
            name = self.alias[name]
        return name

    def is_weight(self, name: str) -> bool:
        """Whether ``name`` stands for a parameter."""
        return self.root(name) in self.plain.weights


def kernels_of(found: Plain) -> Lifted:
    """The kernels of a program."""
    lifted = Lifted(found)
    rest = [d for d in found.drafts if not _is_alias(d, lifted)]
    _untie(lifted, rest)
    producer = {name: d for d in rest for name in d.outputs}
    biases = set[int]()
    for draft in rest:
        product = taken_by(draft, lifted.is_weight, lifted.root, producer)
        if product is not None:
            lifted.alias[draft.outputs[0]] = product.outputs[0]
            biases.add(id(draft))
    lifted.parts |= separated(found, biases, lifted.is_weight, lifted.root)
    lifted.alias.update(lifted.parts)
    aliased = {id(d) for d in found.drafts if set(d.outputs) & lifted.alias.keys()}
    rest = [d for d in found.drafts if id(d) not in aliased]
    alone = {id(d) for d in _Sorter(lifted, rest).alone()}
    found.drafts[:] = with_views(found.drafts, alone, found)
    for view in (d for d in found.drafts if VIEW in d.primitives):
        found.value[view.outputs[0]] = found.value[view.inputs[0]].model_copy(
            update={"name": view.outputs[0]}
        )
    rest = [d for d in found.drafts if id(d) not in aliased]
    lifted.kernels = _Sorter(lifted, rest).kernels()
    _keep_used_outputs(lifted, rest)
    return lifted


def _is_alias(draft: Draft, lifted: Lifted) -> bool:
    """Whether the outputs are the first input by other names."""
    names = [lifted.root(n) for n in draft.inputs]
    weights = lifted.plain.weights
    if not names or SPREAD in draft.primitives:
        return False
    loops, sliced = draft.kind in ("loop", "view"), draft.kind == "boundary" and "/slice." in draft.name
    prepared = (loops or sliced or draft.kind == "lookup") and weights >= set(names) and len(set(names)) == 1
    counted = loops and all(lifted.plain.value[n].dtype.startswith(INTEGERS) for n in names)
    scaled = loops and len(names) == 1 and set(draft.primitives) <= SCALES
    scaled = scaled and draft.name not in lifted.plain.masked
    runs = [[f for dim in dims for f in dim] for dims in (*draft.reads, *draft.writes)]
    reshaped = draft.kind == "view" and len(runs) == 2 and runs[0] == runs[1] and VIEW not in draft.primitives
    if prepared or counted or scaled or reshaped:
        if prepared and draft.primitives[0] in CUTS:  # several products share the rows of one weight
            lifted.parts.update(dict.fromkeys(draft.outputs, draft.inputs[0]))
        if draft.kind == "lookup" or draft.inputs[0] in lifted.tables:
            table = lifted.tables.get(draft.inputs[0], draft.inputs[0])
            lifted.tables.update(dict.fromkeys(draft.outputs, table))
        lifted.alias.update(dict.fromkeys(draft.outputs, draft.inputs[0]))
        return True
    return False


def _untie(lifted: Lifted, drafts: Sequence[Draft]) -> None:
    """A table that a product reads too is another array there: it need not sum over what the layers hand on."""
    tables = {
        lifted.root(d.inputs[0]) for d in drafts if d.kind == "lookup" and lifted.is_weight(d.inputs[0])
    }
    for draft in (d for d in drafts if d.kind == "product"):
        for i, name in enumerate(draft.inputs):
            if lifted.root(name) in tables:
                draft.inputs[i] = f"{name} in {draft.name}"
                lifted.alias[draft.inputs[i]] = name


class _Sorter:
    """Gives every operator its kernel."""

    def __init__(self, lifted: Lifted, drafts: list[Draft]) -> None:
        self.lifted, self.drafts = lifted, drafts
        self.order = {id(d): i for i, d in enumerate(drafts)}
        self.level: dict[int, int] = {}
        """Operators that are no loops on the longest way to each."""
        self.loops: list[Draft] = []
        made: dict[str, int] = {}
        roots: dict[str, frozenset[str]] = {}
        looped = {n for d in drafts if self._is_loop(d) for n in d.inputs}
        self.scores = self._scores()
        for draft in drafts:
            names = [lifted.root(n) for n in draft.inputs if not lifted.is_weight(n)]
            of = [roots.get(n, frozenset({n})) for n in names]
            apart = _adds_two(draft) and len(of) == 2 and of[0].isdisjoint(of[1])
            loop = self._is_loop(draft) and not apart and not self._adds_table(draft)
            waits = not loop and VIEW not in draft.primitives
            level = max((made.get(n, 0) for n in names), default=0) + waits
            self.level[id(draft)] = level
            if loop:
                self.loops.append(draft)
            for name in draft.outputs:  # loops that read a view are no part of those that make what it shows
                made[name] = level + (VIEW in draft.primitives and name in looped)
                roots[name] = frozenset().union(*of) if loop else frozenset({name})

    def _is_loop(self, draft: Draft) -> bool:
        table = draft.kind in ("lookup", "accumulate") and self.lifted.is_weight(draft.inputs[0])
        loops = draft.kind in ("loop", "view", "lookup", "accumulate") and ALONE.isdisjoint(draft.primitives)
        return loops and not table

    def _scores(self) -> set[str]:
        """Products of activations, and what loops make of them."""
        found: set[str] = set()
        for draft in self.drafts:
            looped = self._is_loop(draft) and not found.isdisjoint(map(self.lifted.root, draft.inputs))
            found.update(draft.outputs if looped or self._is_free_product(draft) else ())
        return found

    def _adds_table(self, draft: Draft) -> bool:
        """Whether it adds a parameter of several dims: positions, neither a bias nor one of scores."""
        tables = [r for n, r in zip(draft.inputs, draft.reads, strict=True) if self.lifted.is_weight(n)]
        several = any(sum(map(bool, dims)) > 1 for dims in tables)
        adds = set(draft.primitives) <= ADDS and len(draft.inputs) == 2 and several
        return adds and self.scores.isdisjoint(map(self.lifted.root, draft.inputs))

    def kernels(self) -> list[Kernel]:
        """All of them, in order."""
        groups = self._components()
        found: list[Kernel] = []
        taken: set[int] = set()
        for scores, group, context in self._attentions(groups):
            found.append(self._attention(scores, group, context))
            taken |= {id(d) for d in (scores, *group, context)}
        found += [self._kernel("kernel", g) for g in groups if id(g[0]) not in taken]
        taken |= {id(d) for d in self.loops}
        whole = [d for d in self.drafts if d.attention is not None]
        found += map(self._fused_attention, whole)
        taken |= {id(d) for d in whole}
        rest = [d for d in self.drafts if id(d) not in taken and d.kind != "boundary"]
        found += [self._kernel(self._role(d), [d]) for d in rest]
        found.sort(key=lambda k: (k.level, LAST.get(k.role, 0), self.order[id(k.drafts[0])]))
        return list(_joined(found, self._alike))

    def alone(self) -> Iterator[Draft]:
        """Products and loops that are no part of attention, nor of routing."""
        attentions = self._attentions(self._components())
        attending = {id(d) for scores, group, context in attentions for d in (scores, *group, context)}
        known = (d for d in self.drafts if d.kind in ("product", "loop") and d.primitives[0] not in ROUTING)
        return (d for d in known if id(d) not in attending)

    def _layer(self, weight: str) -> str:
        """What is before a number, and the number, in the path of a parameter."""
        numbered = NUMBER.match(self.lifted.plain.value[self.lifted.root(weight)].path)
        return f"{numbered.group(1)}{numbered.group(2)}" if numbered else ""

    def _alike(self, product: Kernel) -> tuple[object, ...]:
        """What products that run as one have in common."""
        draft, inputs = product.drafts[0], product.inputs
        place = next(i for i, n in enumerate(draft.inputs) if self.lifted.root(n) in inputs)
        read, made = ([f for dim in dims for f in dim] for dims in (draft.reads[place], draft.writes[0]))
        summed = tuple(i for i, f in enumerate(read) if f not in made)
        return (*inputs, summed, product.level, product.region, self._layer(product.weights[0]))

    def _layers(self, drafts: Iterable[Draft]) -> set[str]:
        """Layers that operators have parameters of."""
        weights = (n for d in drafts for n in d.inputs if self.lifted.is_weight(n))
        return {self._layer(n) for n in weights} - {""}

    def _components(self) -> list[list[Draft]]:
        """Loops of one level and layer that feed each other: nothing that they wait for waits for them."""
        group: dict[int, list[Draft]] = {}
        maker: dict[str, Draft] = {}
        for draft in self.loops:
            mine = group.setdefault(id(draft), [draft])
            for name in map(self.lifted.root, draft.inputs):
                other = maker.get(name)
                near = other is not None and self.level[id(other)] == self.level[id(draft)]
                if other is not None and near and other.region == draft.region:
                    theirs = group[id(other)]
                    if theirs is not mine and len(self._layers([*theirs, *mine])) < 2:
                        theirs += mine
                        group.update((id(d), theirs) for d in mine)
                        mine = theirs
            maker.update(dict.fromkeys(draft.outputs, draft))
        distinct = {id(g): g for g in group.values()}
        return [sorted(g, key=lambda d: self.order[id(d)]) for g in distinct.values()]

    def _attentions(self, groups: list[list[Draft]]) -> Iterator[tuple[Draft, list[Draft], Draft]]:
        """Two products of activations with a softmax between them."""
        maker = {n: g for g in groups for d in g for n in d.outputs}
        product = {n: d for d in self.drafts if self._is_free_product(d) for n in d.outputs}
        for context in product.values():
            for name in map(self.lifted.root, context.inputs):
                group = maker.get(name, [])
                scores = [n for d in group for n in map(self.lifted.root, d.inputs) if n in product]
                if scores and self._exponentiates(group, scores[0]):
                    yield product[scores[0]], group, context

    def _exponentiates(self, group: Iterable[Draft], scores: str) -> bool:
        """Whether these loops, in order, take exponentials of ``scores``; not only of what scales them."""
        made = {scores}
        for draft in group:
            if not made.isdisjoint(map(self.lifted.root, draft.inputs)):
                made.update(draft.outputs)
                if EXPONENTIALS & {*draft.primitives}:
                    return True
        return False

    def _is_free_product(self, draft: Draft) -> bool:
        products = draft.kind == "product" and draft.primitives[0] not in ROUTING
        return products and not any(map(self.lifted.is_weight, draft.inputs))

    def _attention(self, scores: Draft, group: list[Draft], context: Draft) -> Kernel:
        """Queries first: of the operands of the scores the larger one, as several heads may share keys."""
        made = {n for d in group for n in d.outputs}
        sizes = self.lifted.plain.size
        queries, keys = sorted(map(self.lifted.root, scores.inputs), key=lambda n: -sizes(n))
        values = [n for n in map(self.lifted.root, context.inputs) if n not in made]
        if len(values) != 1:
            raise no_graph(f"attention {context.name} has no values that are made apart from its scores")
        kernel = self._kernel("attention", [scores, *group, context])
        kernel.inputs = [queries, keys, *values]
        return kernel

    def _fused_attention(self, draft: Draft) -> Kernel:
        """One that the program has as one operator; a mask is none of what its layer hands on."""
        kernel = self._kernel("attention", [draft])
        assert draft.attention is not None
        kernel.masked |= draft.attention.causal
        kernel.inputs = list(map(self.lifted.root, draft.inputs[:3]))
        return kernel

    def _role(self, draft: Draft) -> Role:
        whole: Mapping[str, Role] = {"lookup": "embedding", "loop": "add", "view": "view"}
        if draft.kind in whole:
            return whole[draft.kind]
        if RECURRENCE in draft.primitives:
            return "recurrence"
        routing = [what for what in ROUTING if what in draft.primitives]
        if routing:
            return routing[0]
        weights = sum(map(self.lifted.is_weight, draft.inputs[:2]))
        if len(draft.reads) > 2 and [*map(self.lifted.is_weight, draft.inputs)].count(False) > 1:
            raise no_graph(
                f"operator {draft.name} ({'+'.join(draft.primitives)}) has a matrix for each group of rows"
            )
        if draft.kind == "product" and weights == 1:
            return "conv" if self._has_window(draft) else "matmul"
        if draft.kind == "product" and not weights:
            return "product"
        raise no_graph(f"operator {draft.name} ({'+'.join(draft.primitives)}) multiplies two weights")

    def _has_window(self, draft: Draft) -> bool:
        """Whether the weight has loops of its own, a filter whose windows overlap, or the image has: it skips pixels.

        Patches index both.
        """
        place = next(i for i, n in enumerate(draft.inputs) if self.lifted.is_weight(n))
        arrays = [draft.reads[place], draft.reads[1 - place], *draft.writes]
        weight, image, *made = ({f for dim in dims for f in dim} for dims in arrays)
        known = set[int]().union(*made)
        return bool((weight ^ image) - known)

    def _kernel(self, role: Role, drafts: list[Draft]) -> Kernel:
        made = {n for d in drafts for n in d.outputs}
        read = list(dict.fromkeys(self.lifted.root(n) for d in drafts for n in d.inputs))
        raw = {self.lifted.stem(n): n for d in drafts for n in d.inputs if self.lifted.is_weight(n)}
        return Kernel(
            role,
            drafts,
            inputs=[n for n in read if n not in made and n not in self.lifted.plain.weights],
            outputs=[n for d in drafts for n in d.outputs],
            weights=[self.lifted.tables.get(n, n) for n in raw.values()],
            masked=any(d.name in self.lifted.plain.masked for d in drafts),
            level=max(self.level[id(d)] for d in drafts),
            region=drafts[0].region,
        )


def _adds_two(draft: Draft) -> bool:
    if not set(draft.primitives) <= ADDS or len(draft.inputs) != 2:
        return False
    first, second = ([f for dim in dims for f in dim] for dims in draft.reads)
    return first == second


def _joined(kernels: Iterable[Kernel], alike: Callable[[Kernel], tuple[object, ...]]) -> Iterator[Kernel]:
    """Products of one value with several weights of one layer run as one, where all sum over the same of it."""
    first: dict[tuple[object, ...], Kernel] = {}
    for kernel in kernels:
        if kernel.role != "matmul":
            yield kernel
            continue
        key = alike(kernel)
        if key not in first:
            first[key] = kernel
            yield kernel
            continue
        other = first[key]
        other.drafts += kernel.drafts
        other.outputs += kernel.outputs
        other.weights += kernel.weights


def _keep_used_outputs(lifted: Lifted, drafts: Iterable[Draft]) -> None:
    """Of a kernel's values those that something else reads."""
    program = lifted.plain.program
    ends = {lifted.root(n) for n in (*program.outputs, *(t.source for t in program.ties))}
    readers: dict[str, set[int]] = {}
    for draft in drafts:
        for name in map(lifted.root, draft.inputs):
            readers.setdefault(name, set()).add(id(draft))
    for kernel in lifted.kernels:
        own = {id(d) for d in kernel.drafts}
        kernel.outputs = [n for n in kernel.outputs if n in ends or readers.get(n, set()) - own]
