"""Options made as arrays are those that the words of `planner.tracing.solving.options` describe, one by one."""

import itertools

import hypothesis.strategies as st
from hypothesis import given

from cluster_specs.catalog import load_cluster
from planner.tracing.layouts import PARTS, WHOLE, NamedMesh
from planner.tracing.program import Operation
from planner.tracing.reading.products import product
from planner.tracing.solving.options import SUMMING, Option, Options, options, splittable

CLUSTER = load_cluster("dgx-h100:2")


@st.composite
def products(draw: st.DrawFn) -> Operation:
    """Rows, columns and depth, with or without a batch, as a matrix product or a lookup."""
    rows, depth, columns, batch = (draw(st.sampled_from([1, 2, 4, 6, 8])) for _ in range(4))
    rule = product((batch, rows, depth), (batch, depth, columns), ([2], [1]), ([0], [0]))
    return Operation(
        name="y",
        kind=draw(st.sampled_from(["product", "lookup", "loop"])),
        primitive="dot",
        inputs=("x", "w"),
        outputs=("y",),
        sizes=rule.sizes,
        reads=rule.reads,
        writes=rule.writes,
        whole=draw(st.sampled_from([(), (0,)])) if rule.sizes else (),
    )


def shape_of(op: Operation) -> tuple[int, ...]:
    return tuple(next((op.sizes[f] for f in dim), 1) for dim in op.writes[0])


def one_by_one(op: Operation, mesh: NamedMesh, lasting: bool) -> set[Option]:
    """Every split, every place for every sum, and what the rules forbid taken out again."""
    axes = range(len(mesh.sizes))
    shape = shape_of(op)
    found = set()
    for split in itertools.product([*splittable(op), WHOLE], repeat=len(mesh.sizes)):
        if any(f != WHOLE and mesh.sizes[a] == 1 for a, f in enumerate(split)):
            continue
        if any(op.sizes[f] % mesh.degree([a for a in axes if split[a] == f]) for f in set(split) - {WHOLE}):
            continue

        def lies(dims: tuple[tuple[int, ...], ...], split: tuple[int, ...] = split) -> tuple[int, ...]:
            return tuple(next((i for i, d in enumerate(dims) if d[:1] == (f,)), WHOLE) for f in split)

        reads, plain = tuple(map(lies, op.reads)), lies(op.writes[0])
        summed = [a for a in axes if split[a] != WHOLE and plain[a] == WHOLE] if op.kind in SUMMING else []
        ends = [
            [WHOLE, *(d for d, n in enumerate(shape) if n > 1)] if a in summed else [plain[a]] for a in axes
        ]
        for after in itertools.product(*ends):
            evenly = all(
                n % mesh.degree([a for a in axes if after[a] == d]) == 0 for d, n in enumerate(shape)
            )
            meets = any(after[a] == plain[b] != WHOLE for a in summed for b in axes if b > a)
            if evenly and not meets:
                found.add(Option(split, reads, (after,)))
        if summed and lasting:
            found.add(Option(split, reads, (tuple(PARTS if a in summed else plain[a] for a in axes),)))
    return found


@given(products(), st.sampled_from([(2,), (8,), (2, 4), (4, 1), (2, 2, 4)]), st.booleans())
def test_all_that_is_allowed_and_nothing_else(op: Operation, sizes: tuple[int, ...], lasting: bool) -> None:
    mesh = NamedMesh(CLUSTER, {f"axis{a}": n for a, n in enumerate(sizes)})
    found = options(op, [shape_of(op)], mesh, lasting)
    assert set(found) == one_by_one(op, mesh, lasting)
    assert len(set(found)) == len(found)


def test_one_option_is_itself() -> None:
    option = Option((0, WHOLE), ((0, 1), (WHOLE, PARTS)), ((1, WHOLE),))
    assert list(Options.of(option)) == [option]
    assert Options.of(option)[0:] == [option]
    assert option.parts == (1,)
    assert Options.of(option).parts.tolist() == [[False, True]]
