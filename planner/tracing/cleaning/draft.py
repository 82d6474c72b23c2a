"""An operator that passes still work on: its factors can be cut, its inputs replaced, others merged into it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.tracing.factors import common_cuts
from planner.tracing.program import (
    Attention,
    Dims,
    Halo,
    Kind,
    Member,
    Operation,
    Program,
    Reduction,
    elements,
)


@dataclass
class Draft:
    """The fields of an `Operation`, open to change."""

    name: str
    kind: Kind
    primitives: list[str]
    inputs: list[str]
    outputs: list[str]
    sizes: list[int]
    reads: list[Dims]
    writes: list[Dims]
    whole: set[int]
    reductions: list[Reduction]
    halos: list[Halo]
    times: int
    region: str
    key: str
    members: list[Member] = field(default_factory=list)
    addends: list[str] = field(default_factory=list)
    total: str = ""
    kernel: str = ""
    attention: Attention | None = None
    manual: dict[str, int] | None = None
    branch: str = ""
    again: str = ""
    implied: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, op: Operation) -> "Draft":
        """A draft of ``op``, its own first member."""
        members = list(op.members) or [Member(name=op.name, reads=op.reads, writes=op.writes)]
        return cls(
            op.name, op.kind, op.primitive.split("+"), list(op.inputs), list(op.outputs), list(op.sizes),
            list(op.reads), list(op.writes), set(op.whole), list(op.reductions), list(op.halos), op.times,
            op.region, op.key, members, list(op.addends), op.total, op.kernel, op.attention,
            None if op.manual is None else dict(op.manual), op.branch, op.again, dict(op.implied),
        )  # fmt: skip

    def done(self) -> Operation:
        """The finished operator."""
        return Operation.model_construct(
            name=self.name, kind=self.kind, primitive="+".join(self.primitives), inputs=tuple(self.inputs),
            outputs=tuple(self.outputs), sizes=tuple(self.sizes), reads=tuple(self.reads),
            writes=tuple(self.writes), whole=tuple(sorted(self.whole)), reductions=tuple(self.reductions),
            halos=self._bordering(), times=self.times, region=self.region, branch=self.branch, again=self.again,
            key=self.key, members=tuple(self.members), addends=tuple(self.addends), total=self.total,
            kernel=self.kernel, attention=self.attention, manual=self.manual, implied=self.implied,
        )  # fmt: skip

    def _bordering(self) -> tuple[Halo, ...]:
        """Borders of what has them: a constant has none, nor has what is the same all over an image."""
        read = [{f for dim in dims for f in dim} for dims in self.reads] if self.halos else []
        return tuple(h for h in self.halos if h.operand < len(read) and h.factor in read[h.operand])

    def read_once(self) -> None:
        """Read once what is indexed alike twice, as in a square."""
        pairs = list(dict.fromkeys(zip(self.inputs, self.reads, strict=True)))
        self.inputs, self.reads = [n for n, _ in pairs], [dims for _, dims in pairs]

    def cut(self, factor: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Replace a factor by several, major first; their numbers."""
        if len(sizes) == 1:
            return (factor,)
        pieces = (factor, *range(len(self.sizes), len(self.sizes) + len(sizes) - 1))
        self.sizes[factor] = sizes[0]
        self.sizes += sizes[1:]
        self.rename({factor: pieces})
        if any(h.factor == factor for h in self.halos):
            self.halos = [h for h in self.halos if h.factor != factor]
            self.whole |= set(pieces)
        return pieces

    def rename(self, to: Mapping[int, tuple[int, ...]]) -> None:
        """Write other factors in the place of some."""
        if all(new == (f,) for f, new in to.items()):
            return
        known: dict[Dims, Dims] = {}

        def anew(arrays: Iterable[Dims]) -> list[Dims]:
            return [known[d] if d in known else known.setdefault(d, renamed(d, to)) for d in arrays]

        self.reads, self.writes = anew(self.reads), anew(self.writes)
        self.whole = {g for f in self.whole for g in to.get(f, (f,))}
        self.reductions = [
            r.model_copy(update={"dims": _flat(r.dims, to), "over": _flat(r.over, to)})
            for r in self.reductions
        ]
        if self.attention is not None:
            loops = {
                name: _flat(getattr(self.attention, name), to)
                for name in ("queries", "keys", "width", "depth")
            }
            self.attention = self.attention.model_copy(update=loops)
        if self.manual is not None:
            self.manual = {axis: to.get(f, (f,))[0] for axis, f in self.manual.items()}
        self.implied = {g: _flat(by, to) for f, by in self.implied.items() for g in to.get(f, (f,))}
        self.members = [
            Member.model_construct(name=m.name, reads=tuple(anew(m.reads)), writes=tuple(anew(m.writes)))
            for m in self.members
        ]


def renamed(dims: Dims, to: Mapping[int, tuple[int, ...]]) -> Dims:
    """``dims`` with other factors in the place of some."""
    return tuple(_flat(factors, to) for factors in dims)


def _flat(factors: Iterable[int], to: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(g for f in factors for g in to.get(f, (f,)))


def matching_cuts(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """Per dim, sizes of which both ways to index it are made; None where they do not nest, or nothing is there."""
    found = []
    for a, b in zip(first, second, strict=True):
        cuts = None if 0 in a else list(a) if list(a) == list(b) else common_cuts(a, b)
        if cuts is None:
            return None
        found.append(cuts)
    return found


def apply_cuts(draft: Draft, factors: Sequence[int], cuts: Sequence[int]) -> list[int]:
    """Cut the factors of one dim so that they have the sizes ``cuts``; the numbers of the pieces."""
    rest, pieces = list(cuts), list[int]()
    for factor in factors:
        taken, size = [], 1
        while size < draft.sizes[factor]:
            taken.append(rest.pop(0))
            size *= taken[-1]
        pieces += draft.cut(factor, taken)
    return pieces


class Unmatched(ValueError):
    """A dim that is indexed in ways that do not nest."""


def cut_alike(drafts: Sequence[Draft]) -> None:
    """Cut factors until every dim of every value has the same ones wherever it is indexed.

    Raises `Unmatched` where that cannot be.
    """
    sites: dict[str, list[_Site]] = {}
    for draft in drafts:
        for writes, names in ((False, draft.inputs), (True, draft.outputs)):
            for place, name in enumerate(names):
                sites.setdefault(name, []).append(_Site(draft, writes, place))
    changed = True
    while changed:
        changed = False
        for name, at in sites.items():
            for dim in range(len(at[0].dims)):
                changed |= _cut_dim(name, dim, at)


class _Site(NamedTuple):
    """Where a value is read or written."""

    draft: Draft
    writes: bool
    place: int

    @property
    def dims(self) -> Dims:
        return (self.draft.writes if self.writes else self.draft.reads)[self.place]


def _cut_dim(name: str, dim: int, at: Sequence[_Site]) -> bool:
    ways = {tuple(site.draft.sizes[f] for f in site.dims[dim]) for site in at}
    if len(ways) == 1:
        return False
    if len({elements(way) for way in ways}) > 1:
        raise Unmatched(f"{name} is indexed along dim {dim} by loops of different lengths")
    cuts: list[int] = list(next(iter(sorted(ways))))
    for way in sorted(ways):
        finer = common_cuts(cuts, way)
        if finer is None:
            raise Unmatched(f"dim {dim} of {name} is cut into {list(way)} and {cuts}, which do not nest")
        cuts = finer
    for site in at:
        apply_cuts(site.draft, site.dims[dim], cuts)
    return True


def finished(program: Program, operations: Sequence[Operation], note: str) -> Program:
    """``program`` with other operators, values that are gone left out, and a note of what was done."""
    used = {n for op in operations for n in (*op.inputs, *op.outputs)} | {*program.inputs, *program.outputs}
    used |= {n for t in program.ties for n in (t.source, t.target)}
    return program.with_parts(
        operations=tuple(operations),
        values=tuple(v for v in program.values if v.name in used),
        applied=(*program.applied, *((note,) if note else ())),
    )
