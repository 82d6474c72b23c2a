"""Operators that are to run as one kernel, joined: products and the loops between them under one layout.

Their loops become one set, a loop for each that runs over the same thing. What a product inside sums over is a
reduction of the kernel, as that of a softmax is. Where loops do not match, the operators stay by themselves.
"""

from collections.abc import Mapping, Sequence, Set
from copy import deepcopy
from itertools import groupby

from planner.tracing.cleaning.draft import Draft, Unmatched, cut_alike, finished
from planner.tracing.program import Attention, Dims, Operation, Program, Reduction

Loop = tuple[int, int]
"""(operator, factor): one of those that are the same stands for all."""


def join_kernels(program: Program) -> Program:
    """Operators with the same ``kernel``, which stand side by side, as one attention."""
    ends = {*program.outputs, *(t.source for t in program.ties)}
    operations: list[Operation] = []
    count = 0
    for kernel, group in groupby(program.operations, key=lambda op: op.kernel):
        apart = list(group)
        members = list(map(Draft.of, apart)) if kernel else []
        whole = _joined(members) if kernel else None
        if whole is None:
            operations += apart
            continue
        outside = ends | {n for op in program.operations if op.kernel != kernel for n in op.inputs}
        _describe(whole, members, {n: program.value[n].dtype for m in members for n in m.outputs})
        _keep(whole, outside)
        operations.append(whole.done())
        count += 1
    return finished(program, operations, f"{count} attentions joined" if count else "")


def _joined(members: Sequence[Draft]) -> Draft | None:
    """All of them as one, in loops that are theirs together; None where their loops do not match."""
    drafts = deepcopy(list(members))
    try:
        cut_alike(drafts)
    except Unmatched:
        return None
    same = _SameLoops(drafts)
    whole = drafts[0]
    for i, draft in enumerate(drafts):
        draft.rename({f: (same.number((i, f)),) for f in range(len(draft.sizes))})
        if i:
            _add(whole, draft)
    whole.sizes = same.sizes()
    return whole


def _add(whole: Draft, draft: Draft) -> None:
    for name, dims in zip(draft.inputs, draft.reads, strict=True):
        known = zip(whole.inputs, whole.reads, strict=True)
        if name not in whole.outputs and (name, dims) not in known:
            whole.inputs.append(name)
            whole.reads.append(dims)
    whole.outputs += draft.outputs
    whole.writes += draft.writes
    whole.whole |= draft.whole
    whole.reductions += draft.reductions
    whole.members += draft.members
    whole.primitives += draft.primitives


class _SameLoops:
    """Loops of several operators that run over the same thing."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.of = {(i, f): {(i, f)} for i, d in enumerate(drafts) for f in range(len(d.sizes))}
        self.size = {(i, f): n for i, d in enumerate(drafts) for f, n in enumerate(d.sizes)}
        known: dict[str, list[tuple[int, Dims]]] = {}
        for i, draft in enumerate(drafts):
            for name, dims in zip(draft.outputs, draft.writes, strict=True):
                known[name] = [(i, dims)]
        made = frozenset(known)
        # What is made here first: what is read from outside may be read along several loops of one operator.
        for ours in (True, False):
            for i, draft in enumerate(drafts):
                for name, dims in zip(draft.inputs, draft.reads, strict=True):
                    if (name in made) == ours:
                        self._match(i, dims, known.setdefault(name, []))
        classes = {id(c): c for c in self.of.values()}
        self._number = {loop: k for k, c in enumerate(classes.values()) for loop in c}

    def _match(self, operator: int, dims: Dims, sites: list[tuple[int, Dims]]) -> None:
        """Join the loops over a value with those over it elsewhere, in the first place where that can be."""
        mine = [(operator, f) for dim in dims for f in dim]
        for other, indexed in sites:
            pairs = list(zip(mine, ((other, f) for dim in indexed for f in dim), strict=True))
            if all(self._may_join(a, b) for a, b in pairs):
                for a, b in pairs:
                    self._join(a, b)
                return
        sites.append((operator, dims))

    def _may_join(self, a: Loop, b: Loop) -> bool:
        """No two loops of one operator become one."""
        return self.of[a] is self.of[b] or {i for i, _ in self.of[a]}.isdisjoint(i for i, _ in self.of[b])

    def _join(self, a: Loop, b: Loop) -> None:
        both = self.of[a] | self.of[b]
        self.of.update(dict.fromkeys(both, both))

    def number(self, loop: Loop) -> int:
        """Of the loop among all that differ."""
        return self._number[loop]

    def sizes(self) -> list[int]:
        """Of each."""
        by_number = {k: self.size[loop] for loop, k in self._number.items()}
        return [by_number[k] for k in range(len(by_number))]


def _describe(whole: Draft, members: Sequence[Draft], dtypes: Mapping[str, str]) -> None:
    """Say what the kernel is, what it sums over, and which of its loops are not split."""
    named = {m.name: m for m in whole.members}
    products = [named[m.name] for m in members if m.kind == "product"]
    whole.name, whole.kind, whole.kernel = whole.kernel, "attention", ""
    for member in products:
        made, read = _loops(member.writes), _loops(member.reads)
        over, dims = tuple(sorted(read - made)), tuple(sorted(made))
        whole.reductions.append(Reduction(dims=dims, over=over, dtype=dtypes[member.name]))
    attention = _attention(products[0].reads, _loops(products[0].writes), whole, backward=len(products) > 2)
    whole.attention = attention
    whole.whole |= {*attention.keys, *attention.width, *attention.depth}


def _attention(operands: Sequence[Dims], scores: Set[int], whole: Draft, backward: bool) -> Attention:
    """By the first product, which makes the scores; softmax reduces over keys."""
    left, right = (_loops([dims]) for dims in operands)
    keys = {f for r in whole.reductions for f in r.over if set(r.dims) | set(r.over) == scores}
    queries = next(side for side in (left, right) if not keys & side) & scores - (left & right)
    return Attention(
        queries=tuple(sorted(queries)),
        keys=tuple(sorted(keys)),
        width=tuple(sorted((left & right) - scores)),
        depth=tuple(sorted(set(range(len(whole.sizes))) - left - right)),
        causal=False,
        backward=backward,
        kernel="plain",
    )


def _keep(whole: Draft, outside: Set[str]) -> None:
    """Of what the kernel makes, only what others read."""
    pairs = [(n, w) for n, w in zip(whole.outputs, whole.writes, strict=True) if n in outside]
    whole.outputs, whole.writes = [n for n, _ in pairs], [w for _, w in pairs]


def _loops(arrays: Sequence[Dims]) -> set[int]:
    return {f for dims in arrays for dim in dims for f in dim}
