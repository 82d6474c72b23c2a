"""ATen operators that read or write entries by index, as loops."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.tracing.factors import Loops, Rule, Shape, aligned, elementwise, opaque
from planner.tracing.program import Dims
from planner.tracing.reading.torch_calls import Call, TorchRule


def aligned_or_whole(call: Call) -> Rule:
    """Side by side where ranks are equal; else nothing can be split."""
    ranks = {len(s) for s in (*call.inputs, *call.outputs)}
    return (aligned if len(ranks) == 1 else opaque)(call.inputs, call.outputs)


def _rows_of_table(table: Shape, rows: Shape, axis: int = 0) -> tuple[Loops, Dims, Dims, Dims]:
    """Loops over a table's rows along a dim by index: the table, the indices, and what lies at them."""
    loops = Loops()
    at = tuple(loops.new(n) for n in rows)
    others = [loops.new(n) for i, n in enumerate(table) if i != axis]
    before, after = others[:axis], others[axis:]
    return loops, (*before, loops.new(table[axis]), *after), at, (*before, *at, *after)


def _embedding(call: Call) -> Rule:
    loops, table, rows, found = _rows_of_table(call.inputs[0], call.inputs[1])
    return loops.rule("lookup", (table, rows), (found,))


def _indexed(call: Call) -> int | None:
    """The dim that one tensor of indices picks from; None where there are several."""
    places = [i for i, given in enumerate(call.arguments["indices"]) if given is not None]
    return places[0] if len(places) == 1 else None


def _index(call: Call) -> Rule:
    """Rows along one dim by one tensor of indices; anything else stays whole."""
    axis = _indexed(call)
    if axis is None or len(call.inputs) != 2:
        return opaque(call.inputs, call.outputs)
    loops, table, rows, found = _rows_of_table(call.inputs[0], call.inputs[1], axis)
    return loops.rule("lookup", (table, rows), (found,))


def _index_put(call: Call) -> Rule:
    """Rows along one dim, or what a mask of every element picks, written or added to; anything else stays whole."""
    axis = _indexed(call)
    if axis is None or len(call.inputs) != 3:
        return opaque(call.inputs, call.outputs)
    target, at, given = call.inputs
    if given != (*target[:axis], *at, *target[axis + 1 :]):
        return (elementwise if at == target else opaque)(call.inputs, call.outputs)
    loops, table, rows, found = _rows_of_table(target, at, axis)
    if not call.arguments["accumulate"]:
        loops.whole += [f for d in rows for f in d]
    return loops.rule("accumulate", (table, rows, found), (table,))


def _embedding_backward(call: Call) -> Rule:
    loops, table, rows, found = _rows_of_table(call.outputs[0], call.inputs[1])
    return loops.rule("accumulate", (found, rows), (table,))


def _along(operand: Shape, indices: Shape, axis: int) -> tuple[Loops, Dims, Dims]:
    """Entries along one dim by index; the other dims side by side where they are equal."""
    loops, table, found = Loops(), list[tuple[int, ...]](), list[tuple[int, ...]]()
    for i, (n, m) in enumerate(zip(operand, indices, strict=True)):
        same = n == m and i != axis
        found.append(loops.new(m, same or i == axis))
        table.append(found[-1] if same else loops.new(n, i == axis))
    return loops, tuple(table), tuple(found)


def _gather(call: Call) -> Rule:
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.axis())
    return loops.rule("lookup", (table, found), (found,))


def _scatter_add(call: Call) -> Rule:
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.axis())
    return loops.rule("accumulate", (table, found, found), (table,))


def _scatter(call: Call) -> Rule:
    """Entries written along one dim by index, of a tensor or one number: whole where they are not added up."""
    if call.arguments.get("reduce") == "sum":
        return _scatter_add(call)
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.axis())
    loops.whole += [f for dim in found for f in dim if dim not in table]
    return loops.rule("accumulate", (table, *(found for _ in call.inputs[1:])), (table,))


def _index_select(call: Call) -> Rule:
    """Rows along one dim, by one tensor of indices."""
    axis = call.axis()
    loops = Loops()
    found = tuple(loops.new(n) for n in call.outputs[0])
    table = tuple(loops.new(n) if i == axis else found[i] for i, n in enumerate(call.inputs[0]))
    return loops.rule("lookup", (table, (found[axis],)), (found,))


LARGEST = 2
"""``mode`` of bags whose entries are not added up."""


class _Bags:
    """Rows of a table that are added up by bag, in their order; bags are taken to have equally many rows."""

    def __init__(self, call: Call, rows: Shape, bags: Shape, table: Shape) -> None:
        self.loops = Loops()
        bag, width = self.loops.new(bags[0]), self.loops.new(bags[1])
        each, rest = divmod(rows[0], bags[0])
        at = self.loops.new(rows[0], False) if rest else (*bag, *self.loops.new(each))
        self.table: Dims = (self.loops.new(table[0], call.arguments["mode"] != LARGEST), width)
        self.known: dict[Shape, Dims] = {bags: (bag, width), bags[:1]: (bag,), rows: (at,)}

    def dims(self, shape: Shape) -> Dims:
        """How an array of rows, of bags, or of results is indexed; others stay whole."""
        return self.known.get(shape) or tuple(self.loops.new(n, False) for n in shape)


def bag_rules(call: Call) -> list[Rule]:
    """Of the sums, and of each array that their derivative needs: bags of rows, sizes of bags, largest rows."""
    table, rows, bags = call.inputs[0], call.inputs[1], call.outputs[0]
    found = []
    for place, made in enumerate(call.outputs):
        how = _Bags(call, rows, bags, table)
        reads = [*([] if place else [how.table]), *map(how.dims, call.inputs[1:])]
        found.append(how.loops.rule("loop" if place else "lookup", reads, [how.dims(made)]))
    return found


def _bags_backward(call: Call) -> Rule:
    bags, rows, table = call.inputs[0], call.inputs[1], call.outputs[0]
    how = _Bags(call, rows, bags, table)
    return how.loops.rule("accumulate", list(map(how.dims, call.inputs)), [how.table])


def _bag_weights_backward(call: Call) -> Rule:
    """Each row of the table times the gradient of its bag."""
    bags, table, *others = call.inputs
    rows = call.outputs[0]
    how = _Bags(call, rows, bags, table)
    return how.loops.rule("lookup", [how.dims(bags), how.table, *map(how.dims, others)], [how.dims(rows)])


def _index_reduce(call: Call) -> Rule:
    """Rows along one dim, by index a product, a mean or an extreme: they stay whole, as they are not added up."""
    loops, table, rows, found = _rows_of_table(call.inputs[0], call.inputs[1], call.axis())
    loops.whole += [f for d in rows for f in d]
    return loops.rule("accumulate", (table, rows, found), (table,))


def _searched(call: Call) -> Rule:
    """Places of values among sorted ones, which stay whole."""
    sorted_first = "sorted_sequence" in call.arguments
    loops = Loops()
    dims = tuple(loops.new(n) for n in call.outputs[0])
    table = call.inputs[0 if sorted_first else 1]
    kept = (*dims[: len(table) - 1], loops.new(table[-1], False))
    return loops.rule("loop", (kept, dims) if sorted_first else (dims, kept), [dims])


LOOKUPS: Mapping[str, TorchRule] = MappingProxyType(
    {
        "_embedding_bag_backward": _bags_backward,
        "_embedding_bag_dense_backward": _bags_backward,
        "_embedding_bag_per_sample_weights_backward": _bag_weights_backward,
        "bucketize": _searched,
        "embedding": _embedding,
        "embedding_dense_backward": _embedding_backward,
        "gather": _gather,
        "index": _index,
        "index_put": _index_put,
        "index_reduce": _index_reduce,
        "index_select": _index_select,
        "scatter": _scatter,
        "scatter_add": _scatter_add,
        "scatter_reduce": _scatter,
        "searchsorted": _searched,
    }
)
"""Rule of each, by its name without ``aten.`` and overload."""
