"""Products of rows by group, in the order of their groups.

A program's layouts split such rows wherever they lie, as it is known only when it runs where a group begins. Plans of
models deal experts out with the tokens that chose them, evenly: there a group is the major part of its rows.
"""

from planner.tracing.program import Dims, Operation, Program


def by_group(program: Program) -> Program:
    """``program`` with the loop over groups before that over a group's rows, wherever both index a dim."""
    return program.with_parts(operations=tuple(map(_groups_first, program.operations)))


def _groups_first(op: Operation) -> Operation:
    sizes = op.reads[2:] if op.kind == "product" else ()
    groups = {f for dims in sizes if len(dims) == 1 for f in dims[0]}
    if not groups:
        return op

    def sort(dims: Dims) -> Dims:
        return tuple(tuple(sorted(dim, key=lambda f: f not in groups)) for dim in dims)

    return op.model_copy(update={"reads": tuple(map(sort, op.reads)), "writes": tuple(map(sort, op.writes))})
