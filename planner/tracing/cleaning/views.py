"""Transposes, reshapes and broadcasts: not done, but read through.

Who reads a view reads what lies behind it, with the dims indexed otherwise: a product that reads the transpose
of a weight reads the weight; heads cut out of a projection's columns are its columns' major factor.
"""

from planner.tracing.cleaning.draft import Draft, apply_cuts, finished, matching_cuts
from planner.tracing.program import Operation, Program


def absorb_views(program: Program) -> Program:
    """Readers of views read what lies behind them; views that nobody needs any more go."""
    ends = {*program.outputs, *(t.source for t in program.ties)}
    views: dict[str, Draft] = {}
    operations: list[Operation] = []
    for op in program.operations:
        if op.kind != "view" and views.keys().isdisjoint(op.inputs):
            operations.append(op)
            continue
        draft = Draft.of(op)
        behind = [
            read_through(draft, place, views[name])
            for place, name in enumerate(op.inputs)
            if name in views and views[name].region == draft.region
        ]
        if draft.kind == "view" and draft.inputs:
            views[draft.outputs[0]] = draft
        operations.append(draft.done() if any(behind) else op)
    needed = {n for op in operations for n in op.inputs} | ends
    while True:  # a view may be needed by views only
        kept = [op for op in operations if op.kind != "view" or needed.intersection(op.outputs)]
        needed = {n for op in kept for n in op.inputs} | ends
        if len(kept) == len(operations):
            break
        operations = kept
    count = len(program.operations) - len(operations)
    return finished(program, operations, f"{count} views read through" if count else "")


def read_through(draft: Draft, place: int, view: Draft) -> bool:
    """Read the view's operand instead, where its dims can be expressed in the reader's factors, which it says."""
    seen = draft.reads[place]
    cuts = matching_cuts(
        [[draft.sizes[f] for f in dims] for dims in seen],
        [[view.sizes[f] for f in dims] for dims in view.writes[0]],
    )
    if cuts is None:
        return False
    behind: dict[int, tuple[int, ...]] = {}
    for axis, sizes in enumerate(cuts):
        pieces = apply_cuts(draft, draft.reads[place][axis], sizes)
        for factor in view.writes[0][axis]:
            taken, size = [], 1
            while size < view.sizes[factor]:
                taken.append(pieces.pop(0))
                size *= draft.sizes[taken[-1]]
            behind[factor] = tuple(taken)
    draft.inputs[place] = view.inputs[0]
    draft.reads[place] = tuple(tuple(g for f in dims for g in behind[f]) for dims in view.reads[0])
    return True
