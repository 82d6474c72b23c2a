"""Biases: parameters that are added to what a product makes, and are part of it."""

from collections.abc import Callable, Mapping

from planner.tracing.cleaning.draft import Draft

ADDS = frozenset({"add", "add_any"})


def taken_by(
    draft: Draft, is_weight: Callable[[str], bool], root: Callable[[str], str], producer: Mapping[str, Draft]
) -> Draft | None:
    """The product that took the parameter which ``draft`` adds to it, as it is alike for all rows; else None."""
    biases = [i for i, n in enumerate(draft.inputs) if is_weight(n)]
    if not set(draft.primitives) <= ADDS or len(draft.inputs) != 2 or len(biases) != 1:
        return None
    bias, other = draft.inputs[biases[0]], root(draft.inputs[1 - biases[0]])
    product = producer.get(other)
    if product is None or product.kind != "product" or not any(map(is_weight, product.inputs)):
        return None
    mine = [f for dim in draft.reads[1 - biases[0]] for f in dim]
    theirs = [f for dim in product.writes[0] for f in dim]
    to = dict(zip(mine, theirs, strict=True))
    columns = {
        f
        for n, dims in zip(product.inputs, product.reads, strict=True)
        if is_weight(n)
        for d in dims
        for f in d
    }
    if any(to[f] not in columns for dim in draft.reads[biases[0]] for f in dim):
        return None  # one for each position
    product.inputs.append(bias)
    product.reads.append(tuple(tuple(to[f] for f in dim) for dim in draft.reads[biases[0]]))
    return product
