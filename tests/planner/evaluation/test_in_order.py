"""Stacks whose collectives wait: JAX on GPUs, against steps that AXLearn's code prints, and products on Trainium.

Source: apple/axlearn@4dae719 and @fea9ba8.
"""

from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.topology import comm_group
from cost_models.collectives import COLLECTIVES
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism
from planner.runs import plan_from_run
from planner.runs.files import load_rows

PUBLISHED = Path(__file__).parents[2] / "published" / "runs_gpu.jsonl"
AXLEARN = {row["id"]: row for row in load_rows(PUBLISHED) if row["id"].startswith("axlearn/")}


def seconds(name: str, stack: str) -> float:
    """Predicted step of a run of AXLearn under ``stack`` [s]."""
    row = AXLEARN[name]
    plan, _ = plan_from_run({**row, "parallel": {**row["parallel"], "stack": stack}})
    return evaluate(plan).step_time_s


def test_a_step_over_64_nodes_takes_longer_than_on_one_by_what_its_sums_take() -> None:
    """Both have four sequences a device; the sums between nodes hide in the backward only if scheduled there."""
    many, one = "axlearn/7b-v1-h100-512", "axlearn/7b-v1-node-64k"
    measured = AXLEARN[many]["measured"]["step_time_s"] - AXLEARN[one]["measured"]["step_time_s"]
    assert seconds(many, "jax-in-order") - seconds(one, "jax-in-order") == pytest.approx(measured, rel=0.15)
    assert seconds(many, "jax-xla") - seconds(one, "jax-xla") < 0.1 * measured


def test_products_on_trainium_wait_for_what_tensor_ranks_gather() -> None:
    """NeuronX Distributed gathers each input whole before its product: twice a layer, and scatters twice, forward."""
    cluster, job = load_cluster("trn1.32xlarge:1"), Job(global_batch=1, seq_len=4096, stack="neuronx")
    once = COLLECTIVES["all_gather"](2 * 4096 * 4096, comm_group(cluster, [(16, 1)])).seconds
    plan = Parallelism(data=1, tensor=16, recompute="none")
    shown = Evaluator(load_model("llama-2-7b"), cluster, job).estimate(plan).time["tensor"]
    assert 4 * 32 * once < shown < 8 * 32 * once
