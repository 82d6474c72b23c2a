"""A program without its ``shard_map``: instead of what each device holds, the whole arrays that these are parts of.

Inside, a dim for each mesh axis stands before what lies in parts over it (`planner.tracing.reading.jax_manual`). Each
such dim goes back to where specs and collectives say that it belongs: in front of the dim that it cuts, or into the
sum that a collective ends; copies that are alike are one. What is left of a collective then changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.errors import Unsupported
from planner.tracing.cleaning.draft import Draft
from planner.tracing.program import Dims, Operation, Program, Reduction, elements

NOTE = (
    "its shard_map was read as the function of whole arrays that it computes: "
    "degrees, layouts and collectives are chosen here, not taken from it"
)

SUMS = frozenset({"psum", "psum2", "psum_invariant", "reduce_scatter"})
MOVES = frozenset({*SUMS, "all_gather", "all_gather_invariant", "all_to_all", "shard_map"})
"""Primitives that change nothing where every device's part is at hand, once their sums are made."""

LINEAR = frozenset(
    {
        "add", "add_any", "broadcast_in_dim", "convert_element_type", "copy", "div", "expand_dims", "mul", "neg",
        "pcast", "pvary", "reduce_sum", "reshape", "squeeze", "sub", "transpose",
    }
)  # fmt: skip
"""Primitives of which the sum over devices is that of what they read, where one operand differs among these."""

ADDS = frozenset({"add", "add_any", "sub"})
"""Those that may read several such operands."""

Moved = list[tuple[int, int | None]]
"""Dims of a value that stood for devices -> those that they are the major part of now, in order; None: none."""


def unmapped(program: Program) -> Program:
    """``program`` on whole arrays; itself, where it has no ``shard_map``.

    Raises ``Unsupported`` where devices hand arrays round (``ppermute``), and where a loop begins with other parts
    than it ends with.
    """
    if all(op.manual is None for op in program.operations):
        return program
    whole = _Whole(program)
    operations = [whole.operator(op) for op in program.operations]
    whole.check_loops()
    values = tuple(v.model_copy(update={"shape": whole.shape[v.name]}) for v in program.values)
    return _without_copies(program.with_parts(operations=tuple(operations), values=values)).checked()


class _Whole:
    """Shapes of whole arrays, and where the dims that stood for devices went."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.shape = {v.name: tuple(v.shape) for v in program.values}
        self.moved: dict[str, Moved] = {}
        self.summed = _summed(program)

    def operator(self, op: Operation) -> Operation:
        """``op`` on whole arrays."""
        if op.primitive == "ppermute":
            raise Unsupported(
                f"operator {op.name} hands arrays round among the devices of a shard_map, an order that a plan chooses "
                "itself: pass the same model on whole arrays (plain attention, layers one after another), or "
                "meshwright shard, which takes it as it is"
            )
        draft = Draft.of(op)
        leads = set((op.manual or {}).values())
        if op.primitive == "reduce_scatter":  # parts of what is summed become those of devices
            leads |= set(range(len(op.sizes)))
        for i, name in enumerate(op.inputs):
            draft.reads[i] = self._read(name, draft.reads[i], leads)
        for i, name in enumerate(op.outputs):
            draft.writes[i] = self._written(op, draft, i, name, leads)
        draft.members, draft.manual = [], None
        _tidy(draft, op, self.program.value[op.outputs[0]].dtype)
        if leads:
            _join_pairs(draft, leads)
        return draft.done()

    def _read(self, name: str, dims: Dims, leads: set[int]) -> Dims:
        found = list(dims)
        for at, to in self.moved.get(name, ()):
            leads |= set(found[at])
            if to is not None:
                found[to] = (*found[at], *found[to])
            found[at] = ()
        return _left(found, self.moved.get(name, ()))

    def _written(self, op: Operation, draft: Draft, number: int, name: str, leads: set[int]) -> Dims:
        """How an output is indexed; notes its shape and what became of its dims for devices."""
        dims, moved = list(draft.writes[number]), Moved()
        read = {f for r in draft.reads for dim in r for f in dim}
        ending = {f for a, f in (op.manual or {}).items() if a in self.summed.get(name, ())}
        ending = ending & read if _sums(draft) else set()
        at = {dim[0]: i for i, dim in enumerate(dims) if len(dim) == 1 and dim[0] in leads}
        for factor, i in at.items():
            if factor in ending or (factor not in read and op.inputs):
                dims[i] = ()
                moved.append((i, None))
        draft.reductions = [_longer(r, ending) for r in draft.reductions]
        pairs = {pair for r in draft.reads for dim in r for pair in zip(dim, dim[1:], strict=False)}
        for factor, i in [*reversed(at.items())] * len(at):  # in whatever order axes stand in a spec
            to = next((j for j, dim in enumerate(dims) if dim and (factor, dim[0]) in pairs), None)
            if dims[i] and to is not None:
                dims[to], dims[i] = (*dims[i], *dims[to]), ()
                moved.append((i, to))
        if moved:
            self.moved[name] = moved
        left = _left(dims, moved)
        self.shape[name] = tuple(elements(draft.sizes[f] for f in dim) for dim in left)
        return left

    def check_loops(self) -> None:
        """What a pass of a loop leaves is to lie as what it began with."""
        for tie in self.program.ties:
            if self.shape[tie.source] != self.shape[tie.target]:
                raise Unsupported(
                    f"in a shard_map, {tie.target} begins alike on all devices and ends otherwise on each: "
                    "pass the function that it maps, on whole arrays, or use meshwright shard"
                )


def _left(dims: Sequence[tuple[int, ...]], moved: Iterable[tuple[int, int | None]]) -> Dims:
    """Dims without those that moved."""
    gone = {at for at, _ in moved}
    return tuple(dim for i, dim in enumerate(dims) if i not in gone)


def _without_copies(program: Program) -> Program:
    """What only stood elsewhere is what it was made of."""
    same: dict[str, str] = {}
    kept: list[Operation] = []
    for op in program.operations:
        inputs = tuple(same.get(n, n) for n in op.inputs)
        if op.kind == "view" and op.reads == op.writes:
            same[op.outputs[0]] = inputs[0]
        else:
            kept.append(op.model_copy(update={"inputs": inputs}))
    ties = (t.model_copy(update={"source": same.get(t.source, t.source)}) for t in program.ties)
    return program.with_parts(
        operations=tuple(kept),
        values=tuple(v for v in program.values if v.name not in same),
        outputs=tuple(dict.fromkeys(same.get(n, n) for n in program.outputs)),
        results=tuple(None if n is None else same.get(n, n) for n in program.results),
        ties=tuple(ties),
    )


def _summed(program: Program) -> Mapping[str, frozenset[str]]:
    """Value -> axes over which all that reads it sums up what devices have."""
    found: dict[str, frozenset[str]] = dict.fromkeys(program.outputs, frozenset())
    alike = _alike(program)
    for op in reversed(program.operations):
        axis = {f: a for a, f in (op.manual or {}).items()}
        written = {f for dims in op.writes for dim in dims for f in dim}
        on = frozenset[str]().union(*(found.get(n, frozenset()) for n in op.outputs[:1]))
        on = on.intersection(*(found.get(n, frozenset()) for n in op.outputs))
        differ = _differing(op, alike)
        moves = op.primitive in MOVES or (op.kind == "boundary" and not _hands_on(op))
        if not (moves or op.primitive in LINEAR or op.kind == "view"):
            on = frozenset()
        elif op.primitive not in ADDS:
            on = frozenset(a for a in on if sum(a in of for of in differ) < 2)
        for name, dims in zip(op.inputs, op.reads, strict=True):
            own = {axis[f] for dim in dims for f in dim if f in axis and f not in written}
            wanted = on | own if op.primitive in SUMS else on
            found[name] = found.get(name, wanted) & wanted
    return found


def _alike(program: Program) -> Mapping[str, frozenset[str]]:
    """Value -> axes along which all devices have the same."""
    found: dict[str, frozenset[str]] = {}
    for op in program.operations:
        differ = frozenset[str]().union(*_differing(op, found))
        same = frozenset(op.manual or ()) - differ if op.inputs else frozenset()
        found.update(dict.fromkeys(op.outputs, same))
    return found


def _differing(op: Operation, alike: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Per operand, axes along which devices have other parts."""
    axis = {f: a for a, f in (op.manual or {}).items()}
    return [
        frozenset(axis[f] for dim in dims for f in dim if f in axis) - alike.get(name, frozenset())
        for name, dims in zip(op.inputs, op.reads, strict=True)
    ]


def _sums(draft: Draft) -> bool:
    return draft.kind == "product" or any(r.over for r in draft.reductions)


def _longer(reduction: Reduction, over: Iterable[int]) -> Reduction:
    """One that sums over more."""
    more = tuple(f for f in over if f not in reduction.over)
    left = tuple(f for f in reduction.dims if f not in more)
    return reduction.model_copy(update={"over": (*more, *reduction.over), "dims": left})


def _hands_on(op: Operation) -> bool:
    """Whether a value goes into a loop, or comes out of it, there; else it only stands where it lies."""
    loops = op.name.rpartition("/")[2].startswith(("slice.", "carry.", "stack."))
    return op.kind == "boundary" and loops and " of " not in op.name


def _tidy(draft: Draft, op: Operation, dtype: str) -> None:
    """Leave out sums over what is there once; what only moves is a view."""
    read = {f for dims in draft.reads for dim in dims for f in dim}
    written = {f for dims in draft.writes for dim in dims for f in dim}
    kept = [r.model_copy(update={"over": tuple(f for f in r.over if f in read)}) for r in draft.reductions]
    draft.reductions = [r for r in kept if r.over]
    if op.primitive in MOVES or (op.kind == "boundary" and not _hands_on(op)):
        draft.whole = set()
        draft.kind = "view" if read <= written else "loop"
        if op.primitive == "reduce_scatter" and read - written:
            made = tuple(f for dim in draft.writes[0] for f in dim)
            draft.reductions = [Reduction(dims=made, over=tuple(sorted(read - written)), dtype=dtype)]


def _join_pairs(draft: Draft, leads: Iterable[int]) -> None:
    """One loop over a dim where its parts are always run through in order; loops of nothing go."""
    for lead in leads:
        after = set(_followers(lead, (*draft.reads, *draft.writes)))
        last = after.pop() if len(after) == 1 else None
        if last is None or set(_followers(last, _backwards((*draft.reads, *draft.writes)))) != {lead}:
            continue
        if not any((lead in t) != (last in t) for r in draft.reductions for t in (r.over, r.dims)):
            draft.sizes[last] *= draft.sizes[lead]
            draft.rename({lead: ()})
    used = {f for dims in (*draft.reads, *draft.writes) for dim in dims for f in dim}
    order = {f: i for i, f in enumerate(sorted(used))}
    draft.rename({f: (order[f],) if f in order else () for f in range(len(draft.sizes))})
    draft.sizes = [draft.sizes[f] for f in order]


def _backwards(arrays: Iterable[Dims]) -> list[Dims]:
    return [tuple(dim[::-1] for dim in dims) for dims in arrays]


def _followers(factor: int, arrays: Sequence[Dims]) -> Iterator[int | None]:
    """What is run through inside ``factor``, wherever that is; None where nothing is."""
    for dim in (dim for dims in arrays for dim in dims if factor in dim):
        at = dim.index(factor) + 1
        yield dim[at] if at < len(dim) else None
