"""Costs add up and keep their parts."""

import pytest

from cost_models.costs import CommTime, ComputeTime, kernel_time


def test_the_longest_resource_decides_one_kernel() -> None:
    assert kernel_time(3.0, 2.0).seconds == 3.0
    assert kernel_time(1.0, 2.0).seconds == 2.0
    assert kernel_time(1.0, 2.0, launch=5.0).seconds == 5.0


def test_kernels_in_sequence_add_up() -> None:
    both = kernel_time(3.0, 1.0) + kernel_time(1.0, 2.0)
    assert both == ComputeTime(seconds=5.0, arithmetic=4.0, memory=3.0)
    assert both * 3 == 3 * both == both + both + both


@pytest.mark.parametrize(
    ("time", "bound"),
    [
        (kernel_time(3.0, 1.0), "arithmetic"),
        (kernel_time(1.0, 3.0), "memory"),
        (kernel_time(1.0, 1.0, 3.0), "launch"),
    ],
)
def test_names_the_bound(time: ComputeTime, bound: str) -> None:
    assert time.bound == bound


def test_comm_time_is_latency_plus_transfer() -> None:
    assert CommTime(1.0, 2.0).seconds == 3.0
