"""Other names for dims of what products read, where two dims of one product run over the same thing.

Queries and keys are positions of one sequence, and a projection around which a residual goes makes what it sums over.
One of its operands is then read under other names: a *view*, free but for what brings it there from where it lies.
"""

from collections.abc import Iterable, Mapping, Sequence

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


def with_views(drafts: Sequence[Draft], products: Iterable[int], plain: Plain) -> list[Draft]:
    """``drafts`` with views before those of ``products`` (their ids) in which two loops are the same."""
    chosen = set(products)
    loops = Loops(drafts, plain)
    found: list[Draft] = []
    for number, draft in enumerate(drafts):
        for place, factors in _meeting(loops, number).items() if id(draft) in chosen else ():
            view = _view(draft, place, factors)
            found.append(view)
            draft.inputs[place] = view.outputs[0]
        found.append(draft)
    return found


def _meeting(loops: Loops, number: int) -> Mapping[int, set[int]]:
    """Operand -> its factors that run over what another factor of the product does, which it lacks."""
    draft = loops.drafts[number]
    found: dict[int, set[int]] = {}
    used = [[f for dim in dims for f in dim] for dims in draft.reads[:2]]
    for f in range(len(draft.sizes)):
        for g in range(f):
            if loops.find((number, f)) != loops.find((number, g)):
                continue
            for place, other in ((1, g), (1, f), (0, g), (0, f)):
                one = f if other == g else g
                if one in used[place] and other not in used[place]:
                    found.setdefault(place, set()).add(one)
                    break
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
