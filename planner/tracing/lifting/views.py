"""Other names for dims of what products read, where two dims of one product run over the same thing.

Queries and keys are positions of one sequence, and a projection around which a residual goes makes what it sums over.
One of its operands is then read under other names: a *view*, free but for what brings it there from where it lies.
"""

from collections.abc import Iterable, Sequence, Set

from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.plain import Plain

VIEW = "view of dims"
"""The primitive of a view."""

Loop = tuple[int, int]
"""(operator, factor)."""


class Loops:
    """Loops of operators, joined where they run over the same thing: where both index one dim of one value."""

    def __init__(self, drafts: Sequence[Draft], plain: Plain) -> None:
        self.drafts = drafts
        self.parent: dict[Loop, Loop] = {}
        self.size: dict[Loop, int] = {}
        self.indexed: dict[str, list[list[Loop]]] = {}
        """Value -> per dim the loops that index it."""
        for i, draft in enumerate(drafts):
            self.size.update(((i, f), n) for f, n in enumerate(draft.sizes))
            for name, dims in (
                *zip(draft.inputs, draft.reads, strict=True),
                *zip(draft.outputs, draft.writes, strict=True),
            ):
                here = [[(i, f) for f in dim] for dim in dims]
                for a, b in zip(self.indexed.setdefault(name, here), here, strict=True):
                    for first, second in zip(a, b, strict=True):
                        self.join(first, second)
        for tie in plain.program.ties:
            for one, same in zip(self.flat(tie.source), self.flat(tie.target), strict=False):
                if self.size[one] == self.size[same]:
                    self.join(one, same)
        batches = [self.flat(name)[0] for name in plain.data if self.flat(name)]
        for batch in batches[1:]:  # all data begin with the batch
            if self.size[batches[0]] == self.size[batch]:
                self.join(batches[0], batch)

    def find(self, loop: Loop) -> Loop:
        """What stands for ``loop``."""
        while self.parent.get(loop, loop) != loop:
            self.parent[loop] = loop = self.parent.get(self.parent[loop], self.parent[loop])
        return loop

    def join(self, first: Loop, second: Loop) -> None:
        """Make two the same."""
        a, b = sorted((self.find(first), self.find(second)))
        self.parent[b] = a

    def flat(self, name: str) -> list[Loop]:
        """The loops over a value, dim by dim."""
        return [loop for dim in self.indexed.get(name, []) for loop in dim]


def with_views(drafts: Sequence[Draft], chosen: Iterable[int], plain: Plain) -> list[Draft]:
    """``drafts`` with views before those chosen (their ids) in which two loops are the same.

    What is made of a view has the other name too, and what meets it there is read under that. A weight has names of its
    own.
    """
    ids = set(chosen)
    loops = Loops(drafts, plain)
    found: list[Draft] = []
    seen: dict[str, set[int]] = {}
    """Value -> which of its loops, in order, go by another name."""
    for number, draft in enumerate(drafts):
        flat = [[f for dim in dims for f in dim] for dims in draft.reads]
        other = {f for n, own in zip(draft.inputs, flat, strict=True) for f in _at(own, seen.get(n, ()))}
        if id(draft) in ids:
            other |= _meeting(loops, number, flat, other)
            for place, (name, own) in enumerate(zip(draft.inputs, flat, strict=True)):
                factors = (other & {*own}) - {*_at(own, seen.get(name, ()))}
                if factors and name not in plain.prepared:
                    view = _view(draft, place, factors)
                    found.append(view)
                    draft.inputs[place] = view.outputs[0]
        for name, dims in zip(draft.outputs, draft.writes, strict=True):
            seen[name] = {i for i, f in enumerate(f for dim in dims for f in dim) if f in other}
        found.append(draft)
    return found


def _at(factors: Sequence[int], places: Iterable[int]) -> list[int]:
    return [factors[i] for i in places]


def _meeting(loops: Loops, number: int, flat: Sequence[Sequence[int]], known: Set[int]) -> set[int]:
    """Factors that run over what another one does, in an operand without that one; none where one is ``known`` to.

    What a loop does not make pairs of, as parts that are concatenated, is no two things.
    """
    draft = loops.drafts[number]
    made = {f for dims in draft.writes for dim in dims for f in dim}
    factors = range(len(draft.sizes)) if draft.kind == "product" else sorted(made)
    found = set[int]()
    for f in factors:
        for g in (g for g in factors if g < f):
            if loops.find((number, f)) != loops.find((number, g)) or {f, g} & known:
                continue
            pairs = ((own, one, other) for own in flat[1::-1] for one, other in ((f, g), (g, f)))
            found.update([one for own, one, other in pairs if one in own and other not in own][:1])
    return found


def _view(draft: Draft, place: int, factors: set[int]) -> Draft:
    """One operand of ``draft`` with new loops in the place of some."""
    dims = draft.reads[place]
    flat = [f for dim in dims for f in dim]
    at = {f: i for i, f in enumerate(dict.fromkeys(flat))}
    sizes = [draft.sizes[f] for f in at]
    new = {f: len(at) + i for i, f in enumerate(sorted(factors))}
    sizes += [draft.sizes[f] for f in new]
    name = draft.inputs[place]
    return Draft(
        name=f"{name} as {draft.name} reads it", kind="view", primitives=[VIEW], inputs=[name],
        outputs=[f"{name} as {draft.name} reads it"], sizes=sizes,
        reads=[tuple(tuple(at[f] for f in dim) for dim in dims)],
        writes=[tuple(tuple({**at, **new}[f] for f in dim) for dim in dims)],
        whole=set(), reductions=[], halos=[], times=draft.times, region=draft.region, key="",
    )  # fmt: skip
