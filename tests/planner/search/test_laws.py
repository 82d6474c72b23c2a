"""What holds of the best plan whatever the question: better hardware never makes it worse."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_cases import cluster_with, small_llama, small_mixture
from unlike_pools import pair, tight

from cluster_specs.cluster import ClusterSpec
from cluster_specs.pools import join
from planner.errors import Infeasible
from planner.models.model import Model
from planner.plans import Job, Pins
from planner.search import plan

MODELS = st.sampled_from([small_llama(), small_llama(num_hidden_layers=3), small_mixture()])

CLUSTERS = st.sampled_from(["dgx-a100-80g:1", "dgx-h100:2", "a100-4x-50g:2", "h100-pcie-8x:1"])

JOBS = st.builds(
    Job,
    global_batch=st.sampled_from([8, 16, 24]),
    seq_len=st.sampled_from([1024, 4096]),
    precision=st.sampled_from(["bf16", "fp32"]),
)

PINS = st.sampled_from([Pins(), Pins(pipeline=2), Pins(zero_stage=1), Pins(recompute="full")])

MEMORY = st.floats(5, 40)
"""[GiB]: from what only a few plans fit to what they all do."""

FACTORS = st.floats(1, 4)

LAWS = settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])


def seconds(model: Model, cluster: ClusterSpec, job: Job, pins: Pins) -> float:
    """Step of the best plan [s]; infinite where none fits."""
    try:
        found = plan(model, cluster, job, pins, top=1).estimate
    except Infeasible:
        return float("inf")
    assert found is not None
    return found.step_time_s


@LAWS
@given(MODELS, CLUSTERS, JOBS, PINS, MEMORY, FACTORS)
def test_more_memory_is_never_slower(
    model: Model, cluster: str, job: Job, pins: Pins, gib: float, more: float
) -> None:
    less, most = (seconds(model, cluster_with(cluster, size), job, pins) for size in (gib, gib * more))
    assert most <= less * (1 + 1e-9)


@LAWS
@given(MODELS, CLUSTERS, JOBS, PINS, MEMORY, FACTORS)
def test_more_bandwidth_is_never_slower(
    model: Model, cluster: str, job: Job, pins: Pins, gib: float, more: float
) -> None:
    slow, fast = (seconds(model, cluster_with(cluster, gib, times), job, pins) for times in (1.0, more))
    assert fast <= slow * (1 + 1e-9)


PINNED = st.sampled_from(
    [
        {"tensor": 2},
        {"context": 1},
        {"micro_batch": 1},
        {"zero_stage": 0},
        {"sharding": "HYBRID_SHARD"},
        {"recompute": "selective"},
        {"schedule": "1f1b"},
        {"virtual_stages": 1},
    ]
)
"""Parts of plans that every search of pipelines looks at."""


@LAWS
@given(MODELS, CLUSTERS, JOBS, MEMORY, PINNED)
def test_a_pin_is_never_faster_than_the_plan_found_without_it(
    model: Model, cluster: str, job: Job, gib: float, pin: dict[str, Any]
) -> None:
    where = cluster_with(cluster, gib)
    free, pinned = (seconds(model, where, job, Pins(pipeline=2, **more)) for more in ({}, pin))
    assert pinned >= free * (1 - 1e-9)


def computing(cluster: ClusterSpec, times: float) -> ClusterSpec:
    """With ``times`` the arithmetic and memory bandwidth."""
    device = cluster.device
    faster = {
        "peak_flops_per_second": {name: times * rate for name, rate in device.peak_flops_per_second.items()},
        "memory_bandwidth": times * device.memory_bandwidth,
    }
    return cluster.model_copy(update={"device": device.model_copy(update=faster)})


@LAWS
@given(MODELS, CLUSTERS, JOBS, PINS, MEMORY, FACTORS)
def test_faster_devices_are_never_slower(
    model: Model, cluster: str, job: Job, pins: Pins, gib: float, more: float
) -> None:
    whole = cluster_with(cluster, gib)
    assert seconds(model, computing(whole, more), job, pins) <= seconds(model, whole, job, pins) * (1 + 1e-9)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.sampled_from([small_llama(num_hidden_layers=3), small_mixture()]), JOBS, MEMORY)
def test_the_order_in_which_pools_are_named_does_not_matter(model: Model, job: Job, gib: float) -> None:
    pools = [tight(pair("dgx-a100-80g"), gib), pair("dgx-h100")]
    one, other = (seconds(model, join(order, None, "pools"), job, Pins()) for order in (pools, pools[::-1]))
    assert one == pytest.approx(other)
