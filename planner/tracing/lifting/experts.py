"""Experts: products with a matrix for each of them, and the loops between these."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.plain import Plain
from planner.tracing.program import Dims, Reduction


def flat(dims: Dims) -> list[int]:
    """Loops over an array, in order."""
    return [f for dim in dims for f in dim]


@dataclass
class Experts:
    """Those of one layer."""

    drafts: list[Draft]
    """In order."""
    loops: Mapping[int, int]
    """Operator, by id -> its loop over experts."""
    weights: Collection[str]
    count: int

    @property
    def values(self) -> list[str]:
        """What they make."""
        return [n for d in self.drafts for n in d.outputs]

    @property
    def sources(self) -> list[str]:
        """What their first products read."""
        made = {*self.values, *self.weights}
        products = (d for d in self.drafts if d.kind == "product")
        return list(dict.fromkeys(n for d in products for n in d.inputs[:2] if n not in made))


def experts_of(found: Plain) -> list[Experts]:
    """All products with a matrix per group, and what lies between them, by what they begin with."""
    loops = {id(d): f for d in found.drafts if (f := _grouped(found, d)) is not None}
    _read_tables(found, loops)
    _Search(found, loops).run()
    clusters: dict[str, list[Draft]] = {}
    for draft in (d for d in found.drafts if id(d) in loops):
        own = [n for n in draft.inputs[:2] if n not in found.prepared]
        known = [clusters[n] for n in own if n in clusters]
        cluster = known[0] if known else []
        for other in known[1:]:
            if other is not cluster:
                cluster += other
        cluster.append(draft)
        clusters.update(dict.fromkeys((*own, *draft.outputs, *_names(cluster)), cluster))
    order = {id(d): i for i, d in enumerate(found.drafts)}
    distinct = {id(c): sorted(c, key=lambda d: order[id(d)]) for c in clusters.values()}
    return [
        Experts(drafts, loops, found.prepared, drafts[0].sizes[loops[id(drafts[0])]])
        for drafts in distinct.values()
    ]


def _names(drafts: Sequence[Draft]) -> Iterator[str]:
    return (n for d in drafts for n in d.outputs)


def _weight(found: Plain, draft: Draft) -> int | None:
    """Place of the weight among the operands of a product that has one."""
    places = [i for i, n in enumerate(draft.inputs[:2]) if n in found.prepared]
    product = draft.kind == "product" and not draft.primitives[0].startswith("conv")
    return places[0] if product and len(places) == 1 and len(draft.inputs) > 1 else None


def _grouped(found: Plain, draft: Draft) -> int | None:
    """The loop that is in the weight, the data and the result of a product."""
    place = _weight(found, draft)
    if place is None:
        return None
    shared = {*flat(draft.reads[place])} & {*flat(draft.reads[1 - place])} & {*flat(draft.writes[0])}
    return shared.pop() if len(shared) == 1 else None


def _read_tables(found: Plain, loops: Mapping[int, int]) -> None:
    """A row of a parameter for each token's expert, beside what experts make, is the parameter, read by expert."""
    products = {d.outputs[0]: d for d in found.drafts if id(d) in loops}
    rows = {d.outputs[0]: d for d in found.drafts if d.kind == "lookup" and d.inputs[0] in found.prepared}
    for draft in (d for d in found.drafts if d.kind == "loop" and len(d.inputs) == 2):
        for i, name in enumerate(draft.inputs):
            product, lookup = products.get(name), rows.get(draft.inputs[1 - i])
            if product is not None and lookup is not None:
                _read_table(draft, i, product, loops[id(product)], lookup.inputs[0])
    read = {n for d in found.drafts for n in d.inputs}
    found.drafts[:] = [d for d in found.drafts if rows.get(d.outputs[0]) is not d or d.outputs[0] in read]


def _read_table(draft: Draft, place: int, product: Draft, group: int, table: str) -> None:
    count, other = product.sizes[group], 1 - place
    dim = next(i for i, dims in enumerate(product.writes[0]) if dims[:1] == (group,))
    row = draft.reads[place][dim]
    if len(row) != 1 or draft.sizes[row[0]] % count or draft.reads[other][:1] != (row,):
        return
    if draft.sizes[row[0]] > count:
        draft.cut(row[0], (count, draft.sizes[row[0]] // count))
    draft.inputs[other], draft.reads[other] = table, ((row[0],), *draft.reads[other][1:])


class _Search:
    """Gives loops between grouped products, and products that make the groups, their loop over groups."""

    def __init__(self, found: Plain, loops: dict[int, int]) -> None:
        self.found, self.loops = found, loops
        self.maker = {n: d for d in found.drafts for n in d.outputs}

    def run(self) -> None:
        """Backwards from each product, then what adds a weight to its result."""
        for draft in [d for d in self.found.drafts if id(d) in self.loops]:
            place = 1 - (_weight(self.found, draft) or 0)
            self.loops.update(self._made_by(draft, place, self.loops[id(draft)]) or {})
        for draft in self.found.drafts:
            self._add_bias(draft)

    def _made_by(self, reader: Draft, place: int, loop: int) -> dict[int, int] | None:
        """What makes an operand for each group, back to products with weights; None where something else does."""
        dim = next((i for i, dims in enumerate(reader.reads[place]) if dims[:1] == (loop,)), None)
        maker = self.maker.get(reader.inputs[place])
        if dim is None or maker is None or not maker.writes[0][dim : dim + 1]:
            return None
        own = maker.writes[maker.outputs.index(reader.inputs[place])][dim][:1]
        if not own:
            return None
        if id(maker) in self.loops:
            return {id(maker): self.loops[id(maker)]}
        if maker.kind == "product":
            return self._makes_groups(maker, own[0])
        if maker.kind != "loop":
            return None
        return self._through(maker, own[0])

    def _makes_groups(self, maker: Draft, loop: int) -> dict[int, int] | None:
        """A product of something with all matrices: every token sees every expert."""
        place = _weight(self.found, maker)
        return {id(maker): loop} if place is not None and loop in flat(maker.reads[place]) else None

    def _through(self, maker: Draft, loop: int) -> dict[int, int] | None:
        found = {id(maker): loop}
        for i, name in enumerate(maker.inputs):
            if name not in self.found.prepared and loop in (dim[0] for dim in maker.reads[i] if dim):
                before = self._made_by(maker, i, loop)
                if before is not None:
                    found |= before
        return found if len(found) > 1 else None

    def _add_bias(self, draft: Draft) -> None:
        """What adds something of each expert to its result."""
        if draft.kind != "loop" or id(draft) in self.loops or len(draft.inputs) != 2:
            return
        for i, name in enumerate(draft.inputs):
            maker = self.maker.get(name)
            if maker is None or id(maker) not in self.loops or draft.inputs[1 - i] not in self.found.prepared:
                continue
            written = maker.writes[maker.outputs.index(name)]
            dim = next(k for k, dims in enumerate(written) if dims[:1] == (self.loops[id(maker)],))
            if draft.reads[i][dim][0] in flat(draft.reads[1 - i]):
                self.loops[id(draft)] = draft.reads[i][dim][0]


class Rewriting:
    """Experts as if each took every token: its arrays are tokens by experts by features."""

    def __init__(self, experts: Experts, tokens: Sequence[int]) -> None:
        self.experts, self.tokens = experts, tokens
        self.features: dict[str, list[bool]] = {}
        """Value -> which of its loops are features."""

    def run(self) -> None:
        """Rewrite all operators."""
        for draft in self.experts.drafts:
            self._note(draft)
        for draft in self.experts.drafts:
            self._rewrite(draft)

    def _note(self, draft: Draft) -> None:
        """Which loops of what it reads and makes are what."""
        weights = [i for i, n in enumerate(draft.inputs) if n in self.experts.weights]
        group = self.experts.loops[id(draft)]
        features = {f for i in weights for f in flat(draft.reads[i])} - {group}
        for name, dims in zip(draft.inputs, draft.reads, strict=True):
            if name in self.features:
                loops = zip(flat(dims), self.features[name], strict=True)
                features |= {f for f, is_feature in loops if is_feature}
        if draft.kind != "product":  # what is cut or put together is features, too
            known = {f for dims in draft.reads for f in flat(dims)}
            features |= {f for dims in draft.writes for f in flat(dims)} - known
        pairs = [*zip(draft.outputs, draft.writes, strict=True)]
        if draft.kind == "product":
            pairs += zip(draft.inputs[:2], draft.reads[:2], strict=True)
        for name, dims in pairs:
            if name not in self.experts.weights:
                self.features.setdefault(name, [f in features for f in flat(dims)])

    def _rewrite(self, draft: Draft) -> None:
        first = len(self.tokens)
        to = {self.experts.loops[id(draft)]: first}
        for name, dims in (
            *zip(draft.inputs, draft.reads, strict=True),
            *zip(draft.outputs, draft.writes, strict=True),
        ):
            marks = self.features.get(name, [name in self.experts.weights] * len(flat(dims)))
            for f in (f for f, is_feature in zip(flat(dims), marks, strict=True) if is_feature):
                to.setdefault(f, first + len(to))
        kept = [i for i, n in enumerate(draft.inputs) if n in self.features or n in self.experts.weights]
        draft.reads = [self._dims(draft.inputs[i], draft.reads[i], to) for i in kept]
        draft.inputs = [draft.inputs[i] for i in kept]
        draft.writes = [self._dims(n, d, to) for n, d in zip(draft.outputs, draft.writes, strict=True)]
        draft.sizes = [*self.tokens, *(draft.sizes[f] for f in to)]
        draft.reductions = [
            Reduction(
                dims=(*range(first), *(to[f] for f in r.dims if f in to)),
                over=tuple(to[f] for f in r.over if f in to),
                dtype=r.dtype,
            )
            for r in draft.reductions
        ]
        draft.whole, draft.halos, draft.members = set(), [], []

    def _dims(self, name: str, dims: Dims, to: Mapping[int, int]) -> Dims:
        if name in self.experts.weights:
            return tuple(tuple(to[f] for f in dim) for dim in dims)
        features = [f for f, mark in zip(flat(dims), self.features[name], strict=True) if mark]
        first = len(self.tokens)
        return (*((t,) for t in range(first)), (first,), *((to[f],) for f in features))
