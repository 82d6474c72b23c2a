"""Operators that need not run: unused ones, repeated ones, and those that depend on no input."""

from collections.abc import Callable, Sequence

from planner.tracing.cleaning.draft import Draft, finished
from planner.tracing.program import Operation, Program

RANDOM = ("random_", "rng_")
"""Primitives that begin so are not constants, though they may read nothing but a seed."""


def drop_dead(program: Program) -> Program:
    """Without the operators that no output needs."""
    needed = {*program.outputs}
    sources = {t.target: t.source for t in program.ties}
    kept: set[int] = set()
    grew = True
    while grew:  # a carry needs what comes round to it, which stands later
        before = len(needed)
        for i in range(len(program.operations) - 1, -1, -1):
            op = program.operations[i]
            if i not in kept and needed.intersection(op.outputs):
                kept.add(i)
                needed.update(op.inputs)
                needed.update(sources[n] for n in op.outputs if n in sources)
        grew = len(needed) > before
    dropped = len(program.operations) - len(kept)
    operations = [op for i, op in enumerate(program.operations) if i in kept]
    made = {*program.inputs, *(n for op in operations for n in op.outputs)}
    ties = tuple(  # what comes round may be wanted for itself, where nobody wants the state that it would be
        t
        for t in program.ties
        if t.target in made and (t.source in needed or program.value[t.source].role != "intermediate")
    )
    return finished(program.with_parts(ties=ties), operations, _note(dropped, "unused dropped"))


def merge_equal(program: Program) -> Program:
    """Each expression once: operators that compute the same of the same become one."""
    same: dict[str, str] = {}
    first: dict[tuple[object, ...], Operation] = {}
    kept: list[Operation] = []
    ends = {*program.outputs, *(t.source for t in program.ties)}
    for op in program.operations:
        inputs = tuple(same.get(n, n) for n in op.inputs)
        key = (op.kind, op.primitive, op.key, inputs, op.sizes, op.times, op.body)
        known = first.get(key)
        if known is None or not op.key or ends.intersection(op.outputs):
            first.setdefault(key, op)
            kept.append(op if inputs == op.inputs else op.model_copy(update={"inputs": inputs}))
        else:
            same.update(zip(op.outputs, known.outputs, strict=True))
    return finished(program, kept, _note(len(program.operations) - len(kept), "repeated merged"))


def fold_constants(program: Program) -> Program:
    """Without what depends on no input: it is made where it is needed, in any layout."""
    folded: set[str] = set()
    kept: list[Operation] = []
    ends = {*program.outputs, *(n for t in program.ties for n in (t.source, t.target))}
    for op in program.operations:
        made = op.kind in ("loop", "view") and not op.primitive.startswith(RANDOM)
        if made and folded.issuperset(op.inputs) and not ends.intersection(op.outputs):
            folded.update(op.outputs)
            continue
        if not folded.isdisjoint(op.inputs):
            draft = Draft.of(op)
            pairs = [(n, r) for n, r in zip(op.inputs, op.reads, strict=True) if n not in folded]
            draft.inputs, draft.reads = [n for n, _ in pairs], [r for _, r in pairs]
            op = draft.done()
        kept.append(op)
    return finished(program, kept, _note(len(program.operations) - len(kept), "constant folded"))


def _note(count: int, what: str) -> str:
    return f"{count} {what}" if count else ""


CLEANING: Sequence[Callable[[Program], Program]] = (drop_dead, merge_equal, fold_constants)
"""In the order in which they help each other."""
