"""Products that are only added up: left in parts, and summed once."""

import itertools

import pytest

from planner.tracing.applying.parts import sums_in_turn
from planner.tracing.cleaning.fusion import fuse
from planner.tracing.layouts import PARTS, NamedMesh, Partition, share
from planner.tracing.program import Member, Operation, Program, Value
from planner.tracing.solving.setting import set_up
from planner.tracing.solving.shard import shard

ROWS, DEPTH, WIDE = 4096, 16384, 4096
CLUSTER, MESH = "dgx-h100:1", {"model": 8}


def array(name: str, *shape: int, role: str = "intermediate") -> Value:
    return Value(name=name, shape=shape, dtype="bfloat16", role=role, path=name)


def product(name: str, left: str, right: str, depth: int = DEPTH) -> Operation:
    return Operation(
        name=name, kind="product", primitive="dot_general", inputs=(left, right), outputs=(name,),
        sizes=(ROWS, depth, WIDE), reads=(((0,), (1,)), ((1,), (2,))), writes=(((0,), (2,)),),
    )  # fmt: skip


def addition(name: str, first: str, second: str, primitive: str = "add") -> Operation:
    dims = ((0,), (1,))
    return Operation(
        name=name, kind="loop", primitive=primitive, inputs=(first, second), outputs=(name,), sizes=(ROWS, WIDE),
        reads=(dims, dims), writes=(dims,), members=(Member(name=name, reads=(dims, dims), writes=(dims,)),),
    )  # fmt: skip


def sum_of(*names: str, operations: tuple[Operation, ...], outputs: tuple[str, ...] = ("y",)) -> Program:
    lefts = [array(f"x{n}", ROWS, DEPTH, role="input") for n in names]
    rights = [array(f"w{n}", DEPTH, WIDE, role="parameter") for n in names]
    return Program(
        name="sum",
        values=(*lefts, *rights, *(array(op.name, ROWS, WIDE) for op in operations)),
        operations=operations,
        inputs=tuple(v.name for v in (*lefts, *rights)),
        outputs=outputs,
    )


def three() -> Program:
    products = tuple(product(n, f"x{n}", f"w{n}") for n in "abc")
    return sum_of(
        *"abc", operations=(*products, addition("ab", "a", "b", "add_any"), addition("y", "ab", "c"))
    )


def test_a_kernel_knows_the_products_that_it_adds_up() -> None:
    fused = fuse(three())
    assert [(op.addends, op.total) for op in fused.operations if op.kind == "loop"] == [
        (("a", "b", "c"), "y")
    ]


@pytest.mark.parametrize(
    ("operations", "outputs"),
    [
        ((product("a", "xa", "wa"), product("b", "xb", "wb"), addition("y", "a", "b", "mul")), ("y",)),
        ((product("a", "xa", "wa"), addition("y", "a", "a")), ("y",)),
        (
            (
                product("a", "xa", "wa"),
                product("b", "xb", "wb"),
                addition("y", "a", "b"),
                addition("z", "y", "b"),
            ),
            ("y", "z"),
        ),
    ],
    ids=["a product of both", "the same twice", "read by another"],
)
def test_what_is_not_only_added_up_does_not_stay_in_parts(
    operations: tuple[Operation, ...], outputs: tuple[str, ...]
) -> None:
    fused = fuse(sum_of(*"ab", operations=operations, outputs=outputs))
    assert [op.addends for op in fused.operations if op.addends] == []


def test_one_sum_in_the_place_of_three() -> None:
    """With operands that lie split along what is contracted, as Megatron's backward pass has them."""
    program = three()
    setting = set_up(program, CLUSTER, MESH)
    fixed = {name: (1,) if name.startswith("x") else (0,) for name in setting.nodes.inputs}
    fastest = min(
        (
            setting.estimate(c)
            for c in feasible(setting)
            if all(c[i] == fixed[n] for i, n in enumerate(fixed))
        ),
        key=lambda e: e.seconds,
    )
    assert (
        len([p for p in fastest.exchanges if p.exchange.collective in ("all_reduce", "reduce_scatter")]) == 1
    )


def test_brute_force_finds_nothing_better() -> None:
    program = sum_of(
        *"ab", operations=(product("a", "xa", "wa"), product("b", "xb", "wb"), addition("y", "a", "b"))
    )
    setting = set_up(program, CLUSTER, MESH)
    best = min(setting.estimate(c).seconds for c in feasible(setting))
    assert shard(program, CLUSTER, MESH).seconds == pytest.approx(best, rel=1e-6)


def feasible(setting):
    nodes, first = setting.nodes, len(setting.nodes.inputs)
    for operators in itertools.product(*setting.problem.options[first:]):
        wanted = {
            n: r
            for op, o in zip(nodes.operations, operators, strict=True)
            for n, r in zip(op.inputs, o.reads, strict=True)
        }
        chosen = (
            *(wanted[n] for n in nodes.inputs),
            *operators,
        )  # inputs lie as they are wanted: no cheaper way
        try:
            setting.estimate(chosen)
        except ValueError:
            continue  # in parts on one side only
        yield chosen


@pytest.mark.parametrize(
    ("end", "sums"),
    [
        ((("a",), ("b",)), [(("b",), ((), ("b",))), (("a",), (("a",), ("b",)))]),
        (((), ("b",)), [(("b",), ((), ("b",))), (("a",), ((), ("b",)))]),
        ((("a", "b"), ()), [(("a", "b"), (("a", "b"), ()))]),
        (((), ()), [(("a", "b"), ((), ()))]),
    ],
    ids=["two dims", "a dim and everywhere", "one dim", "everywhere"],
)
def test_sums_that_end_in_several_places_are_done_in_turn(end: Partition, sums: list[tuple]) -> None:
    """Scattered ones first, and of these the last dim's: as `planner.tracing.layouts.sums` prices them."""
    reads, writes = (((1,), (0,)), ((0,), (2,))), ((1,), (2,))
    assert sums_in_turn({"a": 0, "b": 0}, reads, writes, end) == sums
    assert sums_in_turn({"a": 1, "b": 2}, reads, writes, (("a",), ("b",))) == []


def test_parts_take_a_whole_array_on_each_device() -> None:
    mesh = NamedMesh(set_up(three(), CLUSTER, MESH).mesh.cluster, MESH)
    assert share(mesh, (PARTS,)) == 1.0
