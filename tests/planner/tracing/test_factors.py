"""How reshapes and transposes are indexed, against numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.tracing.factors import (
    Rule,
    aligned,
    broadcast,
    elementwise,
    reduction,
    reshaped,
    stacked,
    transposed,
)
from planner.tracing.program import Dims

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


def addressed(rule: Rule, dims: Dims, shape: list[int]) -> np.ndarray:
    """[all factors]: which element of an array the loops stand at."""
    places = np.indices(rule.sizes)
    index = [np.zeros(rule.sizes, int) for _ in shape]
    for axis, factors in enumerate(dims):
        for f in factors:
            index[axis] = index[axis] * rule.sizes[f] + places[f]
    return np.ravel_multi_index(index, shape) if shape else np.zeros(rule.sizes, int)


@given(SHAPES, st.randoms())
def test_a_reshape_keeps_every_element_at_its_place(shape: list[int], random) -> None:
    pieces = [p for n in shape for p in ((2, n // 2) if n % 2 == 0 else (n,))]
    cut = random.randint(0, len(pieces))
    result = [math.prod(pieces[:cut]), *pieces[cut:]]
    rule = reshaped(tuple(shape), tuple(result))
    if rule.kind == "view":
        assert (addressed(rule, rule.reads[0], shape) == addressed(rule, rule.writes[0], result)).all()


def test_heads_are_the_major_factor_of_a_projections_columns() -> None:
    rule = reshaped((8, 16, 32), (8, 16, 4, 8))
    assert (rule.sizes, rule.reads, rule.writes) == (
        (8, 16, 4, 8),
        (((0,), (1,), (2, 3)),),
        (((0,), (1,), (2,), (3,)),),
    )


def test_what_does_not_nest_cannot_be_split() -> None:
    rule = reshaped((4, 6), (3, 8))
    assert (rule.kind, len(rule.whole), len(rule.sizes)) == ("loop", 4, 4)


def test_dims_of_one_element_have_no_factor() -> None:
    assert reshaped((4, 1, 2), (1, 8)).reads == (((0,), (), (1,)),)


@given(SHAPES.flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_a_transpose_follows_numpy(case: tuple[list[int], list[int]]) -> None:
    shape, order = case
    rule = transposed(tuple(shape), order)
    array = np.arange(math.prod(shape)).reshape(shape)
    at = addressed(rule, rule.reads[0], shape)
    there = array.transpose(order).ravel()[addressed(rule, rule.writes[0], [shape[i] for i in order])]
    assert (array.ravel()[at] == there).all()


def test_a_broadcast_reads_the_same_for_every_copy() -> None:
    assert broadcast((8, 1), (8, 16, 4), (0, 1)).reads == (((0,), ()),)


def test_stretched_operands_lack_the_factors() -> None:
    rule = elementwise([(8, 1), (4,), ()], [(8, 4)])
    assert rule.reads == (((0,), ()), ((1,),), ())


def test_a_reduction_says_what_it_reduces() -> None:
    rule = reduction((8, 4), (1,), "float32")
    assert (rule.writes, rule.reductions[0].over, rule.reductions[0].dims) == ((((0,),),), (1,), (0,))


def test_concatenated_dims_stay_whole() -> None:
    rule = aligned([(8, 4), (8, 2)], [(8, 6)], (1,))
    assert {rule.sizes[f] for f in rule.whole} == {4, 2, 6}
    assert rule.reads[0][0] == rule.writes[0][0]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_stack_is_split_along_what_is_stacked_only(axis: int) -> None:
    rule = stacked([(8, 4)] * 3, (*(8, 4)[:axis], 3, *(8, 4)[axis:]), axis)
    assert [rule.sizes[f] for f in rule.whole] == [3]
