"""Loops over time within a layer: the body of each is one operator, which runs step after step.

Such a loop takes rows of an activation, where a loop over layers takes rows of parameters.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.plain import Plain, no_graph
from planner.tracing.lifting.views import Loop, Loops
from planner.tracing.program import Dims, elements

RECURRENCE = "recurrence"
"""The primitive of a loop over time."""

OUTPUT_KEPT = frozenset({"exp", "tanh"})
"""Functions whose derivative reads what they make."""

ONE_MORE_KEPT = frozenset({"logistic", "rsqrt", "sqrt", "tanh"})
"""Functions of whose result an array is made for the derivative: y (1 - y) of a logistic, 1 - y beside y of a tanh."""


@dataclass(frozen=True)
class Recurrence:
    """What one step does, for all sequences of the program's batch."""

    products: tuple[tuple[str, int], ...]
    """Weights that multiply, as the program calls them, and how many elements each sums over."""
    flops: float
    """Of products with weights."""
    state: float
    """Elements that one step hands to the next."""
    kept: float
    """Elements that the backward pass reads: operands of products, results of functions."""
    over: int
    """The operator's loop over steps."""


def write_recurrences(found: Plain) -> None:
    """Replace loops over time in ``found`` by one operator each."""
    for region in dict.fromkeys(d.region for d in found.drafts if d.region):
        own = [d for d in found.drafts if d.name.startswith(f"{region}/") and d.region != region]
        rows = [d for d in own if d.name.startswith(f"{region}/slice.")]
        if rows and not any(found.prepared & set(d.inputs) for d in rows):
            _write(found, region)


def _write(found: Plain, region: str) -> None:
    group = [d for d in found.drafts if d.name.startswith(f"{region}/") or d.region == region]
    if any(d.region.startswith(f"{region}/") for d in group):
        raise no_graph(f"loop {region} takes rows of an activation, and there is a loop in it")
    ends = [d for d in group if d.kind == "boundary"]
    body = [d for d in group if d.kind != "boundary"]
    loops = Loops(group, found)
    time = _time(loops, ends, region)
    states = [d for d in ends if d.name.startswith(f"{region}/carry.")]
    made = {n for d in group for n in d.outputs}
    read = [d.inputs[0] for d in ends if d.inputs and not d.name.startswith(f"{region}/stack.")]
    read = list(dict.fromkeys(n for n in (*read, *(n for d in body for n in d.inputs)) if n not in made))
    stacks = [d.outputs[0] for d in ends if d.name.startswith(f"{region}/stack.")]
    results = [*stacks, *(d.outputs[-1] for d in states if d.outputs[-1] != d.name)]
    draft, over = _joined(found, loops, group, read, results, time)
    products = [d for d in body if d.kind == "product" and found.prepared & set(d.inputs)]
    found.recurrences[draft.name] = Recurrence(
        products=tuple(_weights(found, products)),
        flops=sum(2.0 * elements(n for f, n in enumerate(d.sizes) if f not in d.implied) for d in products),
        state=sum(found.size(d.name) for d in states),
        kept=elements_kept(found, body),
        over=over,
    )
    at = found.drafts.index(group[0])
    ids = {id(d) for d in group}
    found.drafts[:] = [
        *found.drafts[:at], draft, *(d for d in found.drafts[at:] if id(d) not in ids)
    ]  # fmt: skip


def _time(loops: Loops, ends: list[Draft], region: str) -> Loop:
    """The loop over rows, one for all that is taken apart or put together."""
    found: list[Loop] = []
    for number, draft in enumerate(loops.drafts):
        if draft in ends and not draft.name.startswith(f"{region}/carry."):
            whole, row = (draft.reads[0], draft.writes[0])
            if "/stack." in draft.name:
                whole, row = row, whole
            inside = {f for dim in row for f in dim}
            found += [(number, f) for dim in whole for f in dim if f not in inside]
    for other in found[1:]:
        loops.join(found[0], other)
    return loops.find(found[0])


def _joined(
    found: Plain, loops: Loops, group: list[Draft], read: list[str], results: list[str], time: Loop
) -> tuple[Draft, int]:
    """One operator over the loops of what comes in and goes out, and which is time; weights have loops of their own."""
    sizes: list[int] = []
    factor: dict[object, int] = {}

    def indexed(name: str) -> Dims:
        dims = []
        for i, dim in enumerate(loops.indexed[name]):
            keys = [(name, i, j) if name in found.prepared else loops.find(x) for j, x in enumerate(dim)]
            for key, loop in zip(keys, dim, strict=True):
                if key not in factor:
                    factor[key] = len(sizes)
                    sizes.append(loops.size[loop])
            dims.append(tuple(factor[key] for key in keys))
        return tuple(dims)

    reads, writes = [indexed(n) for n in read], [indexed(n) for n in results]
    outer = next(d for d in group if d.kind == "boundary" and d.inputs)
    region = outer.name.rpartition("/")[0]
    draft = Draft(
        name=region, kind="accumulate", primitives=[RECURRENCE], inputs=read, outputs=results, sizes=sizes,
        reads=reads, writes=writes, whole=set(), reductions=[], halos=[], times=outer.times,
        region=outer.region, key="",
    )  # fmt: skip
    return draft, factor[time]


def _weights(found: Plain, products: list[Draft]) -> Iterator[tuple[str, int]]:
    for draft in products:
        place = next(i for i, n in enumerate(draft.inputs) if n in found.prepared)
        made = {f for dim in draft.writes[0] for f in dim}
        summed = {f for dim in draft.reads[place] for f in dim} - made
        yield draft.inputs[place], elements(draft.sizes[f] for f in summed)


def elements_kept(found: Plain, body: Iterable[Draft]) -> float:
    """Elements that derivatives are made of: operands of products that vary, results of functions, and of what divides
    its power of -2.

    Source: the derivatives of jax's ``lax`` (``jax._src.lax.lax``); a loop keeps what its body does, step by step, and
    a scan that is made as a tree (``lax.associative_scan``) what each level does, on half of the one before.
    """
    kept: set[str] = set()
    same, more = set(found.prepared), 0.0
    for draft in body:
        primitives = {*draft.primitives}
        if same.issuperset(draft.inputs):
            # Functions of weights alone are there once, however many steps and sequences there are.
            same.update(draft.outputs)
            continue
        if draft.kind == "product" or ({"mul", "div"} & primitives and len(draft.inputs) > 1):
            kept.update(n for n in draft.inputs if n not in same)
        kept.update(draft.outputs if OUTPUT_KEPT & primitives else ())
        more += len(ONE_MORE_KEPT & primitives) * sum(map(found.size, draft.outputs))
        more += sum(found.size(n) for n in draft.inputs[1:] if "div" in primitives and n not in same)
    return more + sum(map(found.size, kept))


def runs_in_levels(found: Plain, body: Iterable[Draft]) -> bool:
    """Whether what is multiplied is cut apart, and its parts are multiplied again: a scan as a tree."""
    products: set[str] = set()
    halves: set[str] = set()
    for draft in body:
        varying = [n for n in draft.inputs if n not in found.prepared]
        if "mul" in draft.primitives and len(varying) > 1:
            if halves & set(varying):
                return True
            products.update(draft.outputs)
        elif draft.primitives == ["slice"]:
            halves.update(draft.outputs if products & set(varying) else ())
        elif products & set(varying):
            products.update(draft.outputs)
    return False
