"""Moves between layouts, on numpy arrays cut as a mesh cuts them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from planner.errors import InputError
from planner.tracing.applying.places import between, fits
from planner.tracing.layouts import (
    PARTS,
    WHOLE,
    Layout,
    NamedMesh,
    PartialSums,
    Partition,
    among,
    as_layouts,
    different,
    distinct,
    divides,
    moves,
    share,
    step_of,
    steps,
    sums,
    ways,
)
from planner.tracing.solving.options import all_layouts
from planner.tracing.solving.tables import Moves

MESH = NamedMesh(load_cluster("dgx-h100:2"), {"a": 2, "b": 4})
SHAPE = (8, 16)
LAYOUTS = all_layouts(SHAPE, MESH.sizes)


def blocks(layout: Layout) -> dict[tuple[int, ...], set[int]]:
    """Per device, the elements that it holds."""
    array = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    held = {}
    for place in itertools.product(*map(range, MESH.sizes)):
        part = array
        for dim in range(len(SHAPE)):
            axes = [a for a, d in enumerate(layout) if d == dim]
            number = 0
            for a in axes:
                number = number * MESH.sizes[a] + place[a]
            part = np.split(part, MESH.degree(axes), dim)[number]
        held[place] = set(part.ravel().tolist())
    return held


def missing(source: Layout, target: Layout) -> int:
    """Elements that the neediest device must receive."""
    before, after = blocks(source), blocks(target)
    return max(len(after[place] - before[place]) for place in before)


@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_something_moves_exactly_where_devices_lack_elements(source: Layout, target: Layout) -> None:
    assert bool(moves(MESH, 1.0, source, target)) == (missing(source, target) > 0)


@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_no_move_delivers_less_than_is_missing(source: Layout, target: Layout) -> None:
    full = float(math.prod(SHAPE))
    received = 0.0
    for move in moves(MESH, full, source, target):
        degree = MESH.degree([int(a) for a in move.axes])
        received += move.full_bytes * (1.0 if move.collective == "send" else 1 - 1 / degree)
    assert received >= missing(source, target) - 1e-9


@pytest.mark.parametrize(
    ("source", "target", "collective", "axes", "bytes_"),
    [
        ((0, WHOLE), (WHOLE, WHOLE), "all_gather", ("0",), 128.0),
        ((0, 0), (0, WHOLE), "all_gather", ("1",), 64.0),
        ((0, 1), (1, 1), "send", ("0", "1"), 16.0),
        ((0, WHOLE), (1, WHOLE), "all_to_all", ("0",), 64.0),
        ((0, 0), (WHOLE, 0), "send", ("0", "1"), 16.0),
        ((WHOLE, 0), (0, 0), "send", ("0", "1"), 16.0),  # cut first, then sent: XLA on 2x4 devices
    ],
)
def test_the_first_move_is(
    source: Layout, target: Layout, collective: str, axes: tuple[str, ...], bytes_: float
) -> None:
    assert moves(MESH, 128.0, source, target)[0] == (collective, axes, bytes_)


def test_all_pairs_at_once_are_what_one_pair_is() -> None:
    mesh = NamedMesh(load_cluster("dgx-h100:2"), {"a": 2, "b": 4, "c": 2})
    layouts = all_layouts((16, 8, 2), mesh.sizes)
    codes = steps(layouts, layouts)
    for i, j in np.random.default_rng(0).integers(len(layouts), size=(500, 2)):
        one = tuple(step_of(mesh, 64.0, int(step[i, j])) for step in codes if step[i, j])
        assert one == moves(mesh, 64.0, layouts[i], layouts[j])


def test_what_leaves_one_dim_for_several_goes_in_turn() -> None:
    """As one all-to-all for each; axes that stay together go together."""
    mesh = NamedMesh(load_cluster("dgx-h100:2"), {"a": 2, "b": 4, "c": 2})
    apart = moves(mesh, 128.0, (2, 2, WHOLE), (0, 1, WHOLE))
    assert sorted(apart) == [("all_to_all", ("0",), 16.0), ("all_to_all", ("1",), 16.0)]
    assert moves(mesh, 128.0, (2, 2, WHOLE), (0, 0, WHOLE)) == (("all_to_all", ("0", "1"), 16.0),)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (((), (), ("a", "b")), (("a",), ("b",), ()), [((), ("b",), ("a",))]),  # the inner one leaves first
        ((("a",), ("b",), ()), ((), (), ("a", "b")), [((), ("b",), ("a",))]),  # the outer one arrives first
        (((), (), ("a", "b")), (("a", "b"), (), ()), []),
        (((), ("a",), ("b",)), (("a",), (), ()), [(("a",), (), ("b",))]),  # the other axis is gathered last
        ((("a",), (), ()), ((), ("b",), ()), [(("a",), ("b",), ())]),  # cut first
        ((("a", "b"), (), ()), ((), ("b",), ()), [(("a",), ("b",), ())]),
    ],
)
def test_an_array_is_told_each_place_on_its_way(
    source: Partition, target: Partition, expected: list[Partition]
) -> None:
    assert list(between(source, target, ("a", "b"))) == expected


def test_a_place_on_the_way_divides_evenly() -> None:
    assert fits((4, 6), (("a",), ("b",)), {"a": 2, "b": 3})
    assert not fits((4, 6), (("a", "b"), ()), {"a": 2, "b": 3})


def test_a_slice_is_free() -> None:
    assert moves(MESH, 128.0, (WHOLE, WHOLE), (0, 1)) == ()
    assert share(MESH, (0, 1)) == 1 / 8


def test_layouts_divide_evenly() -> None:
    every = np.array(all_layouts((6, 16), MESH.sizes))
    assert divides(every, MESH.sizes, {0: 6, 1: 16}).all()
    assert (1, 0) not in all_layouts((6, 16), MESH.sizes)
    assert (0, 1) in all_layouts((6, 16), MESH.sizes)


def test_inner_axes_use_the_faster_links() -> None:
    mesh = NamedMesh(load_cluster("dgx-h100:2"), {"outer": 2, "inner": 8})
    assert [level.kind for level in mesh.group([1]).levels] == ["nvlink"]
    assert [level.kind for level in mesh.group([0]).levels] == ["infiniband"]


def test_a_mesh_fits_its_cluster() -> None:
    with pytest.raises(InputError, match="needs 32 devices, cluster dgx-h100:2 has 16"):
        NamedMesh(load_cluster("dgx-h100:2"), {"a": 32})


def test_moves_between_options_are_those_between_their_layouts() -> None:
    table = Moves(np.array([[0.0, 3.0], [1.0, np.inf]]), np.array([0, 1, 0]), np.array([0, 1]))
    assert table.full.tolist() == [[0.0, 3.0], [1.0, np.inf], [0.0, 3.0]]


def test_each_layout_of_each_array_once_and_where_it_is() -> None:
    layouts = np.array([[WHOLE, 1], [PARTS, 0], [WHOLE, 1], [2, PARTS]])
    others = np.array([[5, 5], [WHOLE, 1]])
    (once, place), (twice, _), (other, at) = distinct([layouts, layouts[[1, 1]], others])
    assert sorted(as_layouts(once)) == [(PARTS, 0), (WHOLE, 1), (2, PARTS)]
    assert (once[place] == layouts).all()
    assert as_layouts(twice) == ((PARTS, 0),)
    assert sorted(as_layouts(other)) == [(WHOLE, 1), (5, 5)]
    assert (other[at] == others).all()
    assert not list(distinct([]))


@pytest.mark.parametrize(
    ("ends", "kinds", "expected"),
    [
        ((WHOLE, WHOLE), (0, 0), [("all_reduce", ("0", "1"), 64.0)]),
        ((WHOLE, WHOLE), (0, 1), [("all_reduce", ("1",), 64.0), ("all_reduce", ("0",), 64.0)]),
        ((1, 1), (0, 1), [("reduce_scatter", ("0", "1"), 64.0)]),
        ((1, 0), (0, 0), [("reduce_scatter", ("0",), 64.0), ("reduce_scatter", ("1",), 32.0)]),
        ((1, WHOLE), (0, 0), [("reduce_scatter", ("0",), 64.0), ("all_reduce", ("1",), 32.0)]),
        ((WHOLE, 0), (0, 0), [("reduce_scatter", ("1",), 64.0), ("all_reduce", ("0",), 16.0)]),
        ((1, PARTS), (0, 0), [("reduce_scatter", ("0",), 64.0)]),
        ((PARTS, PARTS), (0, 0), []),
    ],
)
def test_sums_scatter_first_and_leave_less(
    ends: Layout, kinds: Layout, expected: list[tuple[str, tuple[str, ...], float]]
) -> None:
    """An array of 64 bytes in parts over both axes, 2 x 4."""
    parts = PartialSums(np.array([ends]), np.array([kinds]), np.ones((1, 2), np.bool_), np.zeros(1, np.int64))
    ((steps,),) = sums([parts])
    assert [step_of(MESH, 64.0, code) for code in steps.tolist() if code] == expected


def test_a_sum_of_shards_moves_the_shards_only() -> None:
    one_axis = np.array([[True, False]])
    shards = PartialSums(np.array([[WHOLE, 0]]), np.array([[3, 1]]), one_axis, np.array([0b10]))
    scattered = PartialSums(np.array([[4, 0]]), np.array([[WHOLE, WHOLE]]), one_axis, np.array([0]))
    for found, expected in zip(
        sums([shards, scattered]),
        [("all_reduce", ("0",), 16.0), ("reduce_scatter", ("0",), 64.0)],
        strict=True,
    ):
        assert [step_of(MESH, 64.0, code) for code in found[0].tolist() if code] == [expected]


def test_dims_are_gathered_one_after_another_the_last_one_first() -> None:
    """As XLA's partitioner does: what is gathered first is only a part of what is left."""
    whole = (WHOLE, WHOLE)
    outer, inner = MESH.sizes
    assert moves(MESH, 128.0, (0, 0), whole) == (("all_gather", ("0", "1"), 128.0),)
    assert moves(MESH, 128.0, (0, 1), whole) == (
        ("all_gather", ("1",), 128.0 / outer),
        ("all_gather", ("0",), 128.0),
    )
    assert moves(MESH, 128.0, (1, 0), whole) == (
        ("all_gather", ("0",), 128.0 / inner),
        ("all_gather", ("1",), 128.0),
    )


LAYOUT_LISTS = st.lists(st.tuples(*[st.integers(PARTS, 7)] * 3), min_size=1, max_size=8)


@given(LAYOUT_LISTS, LAYOUT_LISTS)
def test_ways_are_the_steps_of_every_move(sources: list[Layout], targets: list[Layout]) -> None:
    """Looked up where arrays have few dims, worked out where they have many."""
    found = ways(np.array(sources), np.array(targets))
    looked_up, worked_out = found.codes[found.which], np.stack(steps(sources, targets), axis=-1)
    for pair in np.ndindex(len(sources), len(targets)):
        assert [c for c in looked_up[pair] if c] == [c for c in worked_out[pair] if c]


@given(st.lists(st.tuples(*[st.integers(1, 1 << 20)] * 4), min_size=1, max_size=8))
def test_rows_are_told_apart_however_large(rows: list[tuple[int, ...]]) -> None:
    each, which = different(np.array(rows))
    assert (each[which] == np.array(rows)).all()


def test_parts_and_whole_are_among_no_dims() -> None:
    assert among(np.array([[PARTS, WHOLE, 0], [1, 2, 0]]), {0, 2}).tolist() == [[0, 0, 1], [0, 1, 1]]
