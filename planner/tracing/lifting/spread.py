"""Weights that are there once for every sequence: a Perceiver's latents, the queries of DETR, of which layers compute.

The first that computes of nothing but weights, and of each sequence, reads a copy per sequence; so do all after it.
"""

from collections.abc import Container

from planner.tracing.cleaning.draft import Draft
from planner.tracing.lifting.plain import Plain
from planner.tracing.lifting.views import Loops

SPREAD = "weights for every sequence"
"""The primitive of such a copy."""


def spread_weights(found: Plain) -> None:
    """Write copies of weights before what computes of them for every sequence."""
    batch = _batches(found)
    wanted = _multiplied(found, batch)
    copies: dict[tuple[str, str], str] = {}
    drafts: list[Draft] = []
    for draft in found.drafts:
        names = [copies.get((n, draft.region), n) for n in draft.inputs]
        if id(draft) in wanted and found.prepared.issuperset(names):
            widest = max(range(len(names)), key=lambda i: found.size(names[i]))
            place = 0 if draft.kind == "product" else widest
            copy = _copy(found, draft, place, batch[id(draft)])
            drafts.append(copy)
            copies[names[place], draft.region] = names[place] = copy.outputs[0]
        for i, (old, new) in enumerate(zip(draft.inputs, names, strict=True)):
            if old != new and id(draft) in batch:
                draft.inputs[i], draft.reads[i] = new, ((batch[id(draft)],), *draft.reads[i])
        if not found.prepared.issuperset(draft.inputs):
            found.prepared -= {*draft.outputs}
        drafts.append(draft)
    found.drafts[:] = drafts


def _batches(found: Plain) -> dict[int, int]:
    """Loops and products (their ids) that make something of each sequence -> their loop over these."""
    loops = Loops(found.drafts, found)
    first = [loops.find(loops.flat(name)[0]) for name in found.data if loops.flat(name)][:1]
    made = (
        (id(d), f)
        for number, d in enumerate(found.drafts)
        if d.kind in ("loop", "product")
        for f in {f for dims in d.writes for dim in dims for f in dim}
        if loops.find((number, f)) in first
    )
    return dict(made)


def _multiplied(found: Plain, batch: Container[int]) -> set[int]:
    """Those (their ids) that read weights alone, and end in a product with another weight."""
    needed: set[str] = set()
    ids: set[int] = set()
    for draft in reversed(found.drafts):
        alone = id(draft) in batch and found.prepared.issuperset(draft.inputs)
        if alone and (draft.kind == "product" or needed & {*draft.outputs}):
            ids.add(id(draft))
            needed.update(draft.inputs)
    return ids


def _copy(found: Plain, draft: Draft, place: int, batch: int) -> Draft:
    name, dims = draft.inputs[place], draft.reads[place]
    flat = [f for dim in dims for f in dim]
    at = {f: i + 1 for i, f in enumerate(dict.fromkeys(flat))}
    read = tuple(tuple(at[f] for f in dim) for dim in dims)
    made = f"{name} for each that {draft.name} makes"
    value = found.value[name]
    found.value[made] = value.model_copy(
        update={
            "name": made, "role": "intermediate", "path": "", "shape": (draft.sizes[batch], *value.shape)
        }
    )  # fmt: skip
    return Draft(
        name=made, kind="loop", primitives=[SPREAD], inputs=[name], outputs=[made],
        sizes=[draft.sizes[batch], *(draft.sizes[f] for f in at)], reads=[read], writes=[((0,), *read)],
        whole=set(), reductions=[], halos=[], times=draft.times, region=draft.region, key="",
    )  # fmt: skip
