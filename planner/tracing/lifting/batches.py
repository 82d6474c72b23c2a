"""A program of one input as one of a batch: every value that depends on data gets a first dim of several inputs.

A batch of one shows no loop over inputs, and a graph's nodes and edges are no inputs beside one another: a batch of
either is several such inputs, as ``jax.vmap`` makes one of a function.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.tracing.program import Dims, Operation, Program, Reduction, Value

INPUTS = 2
"""Of a batch: as many as tell a loop over them from none."""


def batched(program: Program) -> Program:
    """``program`` of several inputs at a time; what it makes of all values of one, a number, it makes of all inputs."""
    changed = _made_of_data(program)
    values = tuple(
        v.model_copy(update={"shape": (INPUTS, *v.shape)}) if v.name in changed else v for v in program.values
    )
    operations = tuple(_of_several(op, changed) for op in program.operations)
    return program.with_parts(values=values, operations=operations).checked()


def is_of_one(program: Program, data: Sequence[str]) -> bool:
    """Whether it was traced with a batch of one, or with one graph, where other inputs choose among activations."""
    lengths = [program.value[name].shape[:1] for name in data if program.value[name].shape]
    if not lengths or lengths[0] == (1,):
        return bool(lengths)
    others = {name for name in data if program.value[name].shape[:1] not in ((), lengths[0])}
    return bool(others) and not others.isdisjoint(_choosing(program))


def is_key(value: Value) -> bool:
    """Whether it is the key of random numbers: these depend on no data."""
    return value.dtype.startswith("key<") or (value.dtype, value.shape[-1:]) == ("uint32", (2,))


def _choosing(program: Program) -> Iterator[str]:
    """Inputs by whose numbers activations are chosen, or told where to be added."""
    made = _made_of_data(program)
    source: dict[str, frozenset[str]] = {
        v.name: frozenset((v.name,)) for v in program.values if v.role == "input"
    }
    for op in program.operations:
        whole = [n for n in op.inputs if program.value[n].dtype.startswith(("int", "uint"))]
        if op.kind in ("lookup", "accumulate") and any(n in made and n not in whole for n in op.inputs):
            yield from (name for n in whole for name in source.get(n, ()))
        roots = frozenset(name for n in whole for name in source.get(n, ()))
        source.update(dict.fromkeys(op.outputs, roots))


def _made_of_data(program: Program) -> set[str]:
    """Data, and what depends on it and has dims; a loop's state where any pass changes it so."""
    found = {v.name for v in program.values if v.role == "input" and v.shape and not is_key(v)}
    before = -1
    while len(found) > before:
        before = len(found)
        for op in program.operations:
            if not found.isdisjoint(op.inputs):
                found.update(n for n in op.outputs if program.value[n].shape)
        for tie in program.ties:
            if tie.source in found and program.value[tie.target].role == "intermediate":
                found.add(tie.target)
                made = program.operations[program.producer[tie.target]]
                found.update(n for n in made.outputs if program.value[n].shape)
    return found


def _of_several(op: Operation, changed: set[str]) -> Operation:
    """The operator in a loop over inputs, the last of its factors; a sum to a number is over these, too."""
    if changed.isdisjoint((*op.inputs, *op.outputs)):
        return op
    factor = len(op.sizes)
    ends = changed.isdisjoint(op.outputs)

    def indexed(names: Sequence[str], dims: Sequence[Dims]) -> tuple[Dims, ...]:
        return tuple(
            ((factor,), *own) if name in changed else own for name, own in zip(names, dims, strict=True)
        )

    def of_several(reduction: Reduction) -> Reduction:
        grown: Mapping[str, tuple[int, ...]] = (
            {"over": (*reduction.over, factor)} if ends else {"dims": (*reduction.dims, factor)}
        )
        return reduction.model_copy(update=grown)

    return op.model_copy(
        update={
            "sizes": (*op.sizes, INPUTS),
            "reads": indexed(op.inputs, op.reads),
            "writes": indexed(op.outputs, op.writes),
            "reductions": tuple(map(of_several, op.reductions)),
            "members": (),
        }
    )
