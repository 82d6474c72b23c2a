"""Axes of JAX meshes over slices."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import cluster

from planner.errors import Unsupported
from planner.exporters.slices import split_axes

POWERS = st.sampled_from([1, 2, 4, 8])


@given(st.lists(POWERS, min_size=3, max_size=3), POWERS)
def test_parts_multiply_to_the_axis_and_fill_slices(sizes: list[int], per_slice: int) -> None:
    axes = dict(zip("abc", sizes, strict=True))
    where = cluster(math.prod(sizes)).model_copy(update={"devices_per_node": per_slice})
    split = split_axes(axes, where, "any")
    assert {axis: split.ici[axis] * split.dcn[axis] for axis in axes} == axes
    assert math.prod(split.ici.values()) == min(per_slice, math.prod(sizes))


def test_inner_axes_take_the_fast_links_first() -> None:
    where = cluster(16).model_copy(update={"devices_per_node": 8})
    split = split_axes({"tensor": 4, "fsdp": 4}, where, "any")
    assert split.ici == {"tensor": 4, "fsdp": 2}
    assert split.dcn == {"tensor": 1, "fsdp": 2}


def test_an_axis_across_the_border_of_a_slice_is_refused() -> None:
    where = cluster(18).model_copy(update={"devices_per_node": 6})
    with pytest.raises(
        Unsupported, match="cut slices of 6 devices evenly; tensor 4, fsdp 3 on 12 devices do not"
    ):
        split_axes({"tensor": 4, "fsdp": 3}, where, "any")
