"""Sums of gradients inside a TPU slice, which compiled programs run by themselves."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

LAYERS = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
"""Weights of the layers of Llama-2-7B."""

LINKS = 4 * 0.938 * 45e9
"""Of a chip of TPU v5e in a slice of 16x16, as measured: two axes, both ways round [bytes/s]."""


def exposed_data(cluster: str, ranks: int, **plan: int) -> float:
    """Communication of data ranks that shows in a step of Llama-2-7B, recomputed in full, under ZeRO 3 [s]."""
    job = Job(global_batch=ranks, seq_len=4096, stack="jax-xla")
    degrees = {"shard_degree": ranks, "zero_stage": 3, **plan}
    parallelism = Parallelism(data=ranks, recompute="full", sharding="FULL_SHARD", **degrees)
    return Evaluator(load_model("llama-2-7b"), load_cluster(cluster), job).estimate(parallelism).time["data"]


def test_sums_over_a_slice_show_whole() -> None:
    """Over all of 16x16 they are made whole, in 16 bits; embedding and head are 4 % of the layers."""
    whole = 2 * 255 / 256 * 2 * LAYERS / LINKS
    assert whole < exposed_data("tpu-v5e:16x16", 256) == pytest.approx(whole, rel=0.12)


def test_rings_run_beside_products() -> None:
    """Gradients over 16 ranks without copies are summed part by part as they are made: hardly any of it shows."""
    scattered = 15 / 16 * 2 * LAYERS / LINKS
    assert exposed_data("tpu-v5e:4x4", 16) < 0.2 * scattered


def test_sums_between_slices_run_beside_the_backward() -> None:
    """Two slices: shards of the 1/256 go over the network meanwhile, but for the last."""
    alone, joined = exposed_data("tpu-v5e:16x16", 256), exposed_data("tpu-v5e:16x16*2", 512, shard_degree=256)
    assert joined == pytest.approx(alone, rel=0.02)


def test_sums_over_two_slices_show_inside_each() -> None:
    """States over all of both: scattered in a slice, by itself, before what is left goes over the network.

    A first gather and a last sum over the network show as well.
    """
    scattered = 255 / 256 * 2 * LAYERS / LINKS
    assert scattered < exposed_data("tpu-v5e:16x16*2", 512) < 1.3 * scattered
