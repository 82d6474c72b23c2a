"""Element-wise operators and reductions that run as one kernel, under one layout.

An operator joins the one that makes one of its inputs, if all its loops are among that one's and nothing that
it needs besides waits for that one. Products, gathers and scans stay by themselves. A kernel that begins by adding
up products notes which (`planner.tracing.program.Operation.addends`): those may arrive as partial sums.
"""

from collections.abc import Mapping

from planner.tracing.cleaning.draft import Draft, finished
from planner.tracing.program import Dims, Program

ADDITIONS = frozenset({"add", "add_any"})
"""Primitives, as the front ends call them, that add two arrays."""


def fuse(program: Program) -> Program:
    """Loops merged into the loops that feed them."""
    groups = _Groups({name for name, readers in program.readers.items() if len(readers) == 1})
    for op in program.operations:
        groups.add(Draft.of(op))
    ends = {*program.outputs, *(n for t in program.ties for n in (t.source, t.target))}
    drafts = groups.ordered(ends)
    merged = len(program.operations) - len(drafts)
    return finished(
        program, [d.done() for d in drafts], f"{merged} fused into the loops that feed them" if merged else ""
    )


class _Groups:
    """Kernels so far, and what each waits for as the bits of a number."""

    def __init__(self, read_once: set[str]) -> None:
        self.read_once = read_once
        self.groups: list[Draft] = []
        self.before: list[int] = []
        """Bit g: group g must run before."""
        self.made: dict[str, tuple[int, Dims]] = {}
        """Value -> group that makes it, and how it is indexed there."""
        self.read_by: dict[str, list[int]] = {}
        """Value -> groups of loops that read it."""

    def add(self, draft: Draft) -> None:
        """Join a group, or begin one."""
        needs = [self.made[n][0] for n in dict.fromkeys(draft.inputs) if n in self.made]
        if draft.kind == "loop":
            beside = (g for n in draft.inputs for g in self.read_by.get(n, ()))
            for group in dict.fromkeys((*sorted(set(needs), reverse=True), *beside)):
                if self._may_join(draft, group, needs):
                    to = self._factors(draft, group)
                    if to is not None:
                        self._join(draft, group, to, needs)
                        return
        if self._adds(draft) and all(map(self._is_product, draft.inputs)):
            draft.addends, draft.total = list(draft.inputs), draft.outputs[0]
        if draft.kind == "loop" and not draft.halos:
            draft.read_once()
        self.groups.append(draft)
        self.before.append(self._waits(needs))
        self._record(draft, len(self.groups) - 1)

    def _adds(self, draft: Draft) -> bool:
        """Whether it adds arrays of one shape that nobody else reads."""
        loops = set(range(len(draft.sizes)))
        return (
            len(draft.primitives) == 1
            and draft.manual is None
            and draft.primitives[0] in ADDITIONS
            and len(set(draft.inputs)) == 2
            and self.read_once.issuperset(draft.inputs)
            and all({f for dim in dims for f in dim} == loops for dims in (*draft.reads, *draft.writes))
        )

    def _is_product(self, name: str) -> bool:
        """Of matrices; convolutions are not left in parts."""
        group = self.groups[self.made[name][0]] if name in self.made else None
        return group is not None and group.kind == "product" and not group.primitives[0].startswith("conv")

    def _record(self, draft: Draft, group: int) -> None:
        for name, dims in zip(draft.outputs, draft.writes, strict=True):
            self.made[name] = (group, dims)
        if draft.kind == "loop":
            for name in dict.fromkeys(draft.inputs):
                if group not in self.read_by.setdefault(name, []):
                    self.read_by[name].append(group)

    def _waits(self, needs: list[int]) -> int:
        mask = 0
        for group in needs:
            mask |= self.before[group] | 1 << group
        return mask

    def _may_join(self, draft: Draft, group: int, needs: list[int]) -> bool:
        other = self.groups[group]
        if other.kind != "loop" or other.whole or draft.whole:
            return False
        if (other.region, other.branch, other.again) != (draft.region, draft.branch, draft.again):
            return False
        if (other.manual is None) != (draft.manual is None):
            return False
        return not any(self.before[need] >> group & 1 for need in needs if need != group)

    def _factors(self, draft: Draft, group: int) -> Mapping[int, tuple[int, ...]] | None:
        """The group's factor for each of the draft's; None where some has none."""
        other = self.groups[group]
        sizes, to = other.sizes, dict[int, tuple[int, ...]]()
        known = dict(zip(reversed(other.inputs), reversed(other.reads), strict=True))
        for name, dims in zip(draft.inputs, draft.reads, strict=True):
            made_by, indexed = self.made.get(name, (None, ()))
            if made_by != group and name not in known:
                continue
            for mine, theirs in zip(dims, indexed if made_by == group else known[name], strict=True):
                if [draft.sizes[f] for f in mine] != [sizes[f] for f in theirs]:
                    return None
                for f, g in zip(mine, theirs, strict=True):
                    if to.setdefault(f, (g,)) != (g,):
                        return None
        complete = len(to) == len(draft.sizes) and len(set(to.values())) == len(to)
        return to if complete and _split_alike(draft, other, to) else None

    def _join(self, draft: Draft, group: int, to: Mapping[int, tuple[int, ...]], needs: list[int]) -> None:
        other = self.groups[group]
        rest = [n for n in draft.inputs if n != other.total]
        if other.total in draft.inputs and self._adds(draft) and all(map(self._is_product, rest)):
            other.addends, other.total = other.addends + rest, draft.outputs[0]
        draft.rename(to)
        for name, dims in zip(draft.inputs, draft.reads, strict=True):
            known = list(zip(other.inputs, other.reads, strict=True))
            if self.made.get(name, (None,))[0] != group and (name, dims) not in known:
                other.inputs.append(name)
                other.reads.append(dims)
        other.outputs += draft.outputs
        other.writes += draft.writes
        other.reductions += draft.reductions
        other.members += draft.members
        other.primitives += draft.primitives
        self._record(draft, group)
        waits = self._waits([n for n in needs if n != group])
        if waits & ~self.before[group]:
            for g in range(len(self.groups)):
                if g == group or self.before[g] >> group & 1:
                    self.before[g] |= waits

    def ordered(self, ends: set[str]) -> list[Draft]:
        """Groups in an order in which they can run, with only the outputs that others need."""
        users = {n for d in self.groups for n in d.inputs} | ends
        left, done = list(range(len(self.groups))), 0
        order: list[Draft] = []
        while left:
            g = next(g for g in left if not self.before[g] & ~done)
            left.remove(g)
            done |= 1 << g
            draft = self.groups[g]
            pairs = [(n, w) for n, w in zip(draft.outputs, draft.writes, strict=True) if n in users]
            draft.outputs, draft.writes = [n for n, _ in pairs], [w for _, w in pairs]
            order.append(draft)
        return order


def _split_alike(draft: Draft, other: Draft, to: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the axes that are fixed split the loops of both that are the same, or neither's."""
    theirs = {f: axis for axis, f in (other.manual or {}).items()}
    mine = {f: axis for axis, f in (draft.manual or {}).items()}
    return all(mine.get(f) == theirs.get(g) for f, (g,) in to.items())
