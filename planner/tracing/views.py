"""Transposes, reshapes and broadcasts: not done, but read through.

Who reads a view reads what lies behind it, with the dims indexed otherwise: a product that reads the transpose
of a weight reads the weight; heads cut out of a projection's columns are its columns' major factor.
"""

from planner.tracing.draft import Draft, apply_cuts, finished, matching_cuts
from planner.tracing.program import Program


def absorb_views(program: Program) -> Program:
    """Readers of views read what lies behind them; views that nobody needs any more go."""
    ends = {*program.outputs, *(t.source for t in program.ties)}
    views: dict[str, Draft] = {}
    drafts: list[Draft] = []
    for op in program.operations:
        draft = Draft.of(op)
        for place, name in enumerate(draft.inputs):
            if name in views and views[name].region == draft.region:
                _read_through(draft, place, views[name])
        if draft.kind == "view" and draft.inputs:
            views[draft.outputs[0]] = draft
        drafts.append(draft)
    needed = {n for d in drafts for n in d.inputs} | ends
    while True:  # a view may be needed by views only
        kept = [d for d in drafts if d.kind != "view" or needed.intersection(d.outputs)]
        needed = {n for d in kept for n in d.inputs} | ends
        if len(kept) == len(drafts):
            break
        drafts = kept
    count = len(program.operations) - len(drafts)
    return finished(program, drafts, f"{count} views read through" if count else "")


def _read_through(draft: Draft, place: int, view: Draft) -> None:
    """Read the view's operand instead, where its dims can be expressed in the reader's factors."""
    seen = draft.reads[place]
    cuts = matching_cuts(
        [[draft.sizes[f] for f in dims] for dims in seen],
        [[view.sizes[f] for f in dims] for dims in view.writes[0]],
    )
    if cuts is None:
        return
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
