"""Projections that are one product, cut into several afterwards: queries, keys and values.

Each part becomes a product of its own with its share of the weight, as a graph has it.
"""

from collections.abc import Callable, Mapping, Set
from copy import deepcopy

from planner.tracing.cleaning.draft import Draft, renamed
from planner.tracing.lifting.plain import Plain
from planner.tracing.program import Dims, elements

CUTS = ("split", "split_with_sizes")

PART = "@"
"""Between the name of a parameter and the number of its part."""


def separated(
    found: Plain, biases: Set[int], is_weight: Callable[[str], bool], root: Callable[[str], str]
) -> dict[str, str]:
    """Replace such products in ``found``; part of a parameter -> the parameter.

    ``biases`` are the ids of sums that belong to products; ``root`` says what a name stands for, ``is_weight``
    whether that is a parameter.
    """
    maker = {d.outputs[0]: d for d in found.drafts if d.kind == "product"}
    _slices_as_cuts(found, maker, biases, root)
    readers: dict[str, int] = {}
    for draft in (d for d in found.drafts if id(d) not in biases):
        for name in map(root, draft.inputs):
            readers[name] = readers.get(name, 0) + 1
    parts: dict[str, str] = {}
    made: dict[int, list[Draft]] = {}
    gone: set[int] = set()
    for draft in found.drafts:
        source = root(draft.inputs[0]) if draft.inputs else ""
        product = maker.get(source)
        if draft.primitives[0] not in CUTS or product is None or readers[source] > 1:
            continue
        column = _column(product, draft)
        weights = (r for n, r in zip(product.inputs, product.reads, strict=True) if is_weight(n))
        cuts_weight = column is not None and any(column in _flat(dims) for dims in weights)
        if column is not None and cuts_weight and [*map(is_weight, product.inputs)].count(False) == 1:
            made[id(product)] = [_part(product, draft, column, k, parts) for k in range(len(draft.outputs))]
            gone.add(id(draft))
    drafts = (made.get(id(d), [d]) for d in found.drafts if id(d) not in gone)
    found.drafts[:] = [d for group in drafts for d in group]
    found.prepared |= {part for part, whole in parts.items() if whole in found.prepared}
    return parts


def _slices_as_cuts(
    found: Plain, maker: Mapping[str, Draft], biases: Set[int], root: Callable[[str], str]
) -> None:
    """Slices that share out the columns of a product between them become one operator that cuts it."""
    readers: dict[str, list[Draft]] = {}
    for draft in (d for d in found.drafts if id(d) not in biases):
        for source in {root(n) for n in draft.inputs} & maker.keys():
            readers.setdefault(source, []).append(draft)
    gone: set[int] = set()
    for source, slices in readers.items():
        first, *others = slices
        if not others or any(d.primitives != ["slice"] for d in slices):
            continue
        columns = {_column(maker[source], d) for d in slices}
        column = columns.pop()
        major = any(dim[:1] == (column,) for dim in maker[source].writes[0])
        if columns or column is None or not major or sum(map(_kept, slices)) != maker[source].sizes[column]:
            continue
        for other in others:
            _append(first, other)
        first.primitives = ["split"]
        gone |= {id(d) for d in others}
    found.drafts[:] = [d for d in found.drafts if id(d) not in gone]


def _kept(cut: Draft) -> int:
    """How many columns a slice has."""
    return elements(cut.sizes[f] for f in _flat(cut.writes[0]) if f not in _flat(cut.reads[0]))


def _append(first: Draft, other: Draft) -> None:
    """What ``other`` makes of the same array, as another output."""
    same = zip(_flat(other.reads[0]), _flat(first.reads[0]), strict=True)
    to = {f: (g,) for f, g in same}
    for f in _flat(other.writes[0]):
        if f not in to:
            to[f] = (len(first.sizes),)
            first.sizes.append(other.sizes[f])
    first.outputs += other.outputs
    first.writes.append(renamed(other.writes[0], to))


def _flat(dims: Dims) -> list[int]:
    return [f for dim in dims for f in dim]


def _column(product: Draft, cut: Draft) -> int | None:
    """The loop of the product that makes what is cut, where that is one loop."""
    read, written = _flat(cut.reads[0]), _flat(product.writes[0])
    lost = [at for at, f in enumerate(read) if f not in _flat(cut.writes[0])]
    return written[lost[0]] if len(lost) == 1 and len(read) == len(written) else None


def _part(product: Draft, cut: Draft, column: int, number: int, parts: dict[str, str]) -> Draft:
    """The product with the columns of one part, written as its readers have them."""
    part = deepcopy(product)
    part.name, part.outputs = f"{product.name}{PART}{number}", [cut.outputs[number]]
    for i, (name, dims) in enumerate(zip(product.inputs, product.reads, strict=True)):
        if any(column in dim for dim in dims):
            part.inputs[i] = f"{name}{PART}{number}"
            parts[part.inputs[i]] = name
    same = dict(zip(_flat(cut.reads[0]), _flat(product.writes[0]), strict=True))
    sizes = [cut.sizes[f] for f in _flat(cut.writes[number]) if f not in same]
    part.sizes[column] = elements(sizes)
    pieces = iter(part.cut(column, sizes) if sizes else ())
    if not sizes:  # one of as many as there are
        part.rename({column: ()})
    part.writes = [
        tuple(tuple(same[f] if f in same else next(pieces) for f in dim) for dim in cut.writes[number])
    ]
    return part
