"""What a process has on its device before there is a model, in peaks as the driver prints them."""

import json
from pathlib import Path

import pytest

from planner.evaluation import evaluate
from planner.runs.mapping import plan_from_run

PUBLISHED = Path(__file__).parents[2] / "published" / "runs_memory.jsonl"


def test_a_step_of_2022_is_four_numbers_a_weight_and_a_context_of_all_kernels() -> None:
    """BERT large, recomputed: weights, gradients and two moments in fp32, and the 1343 MiB that the guide prints.

    One sequence, so that activations are 2 % of it where nothing is dropped.
    """
    rows = map(json.loads, PUBLISHED.read_text().splitlines())
    run = next(row for row in rows if row["id"] == "hf-guide/checkpoint")
    predicted, without = (
        evaluate(plan_from_run({**run, "model": {**run["model"], **more}})[0]).memory_bytes
        for more in ({}, {"dropout": 0.0})
    )
    weights = 335_174_458  # BERT large with pooler and head
    assert without == pytest.approx(16 * weights + 1343 * 2**20, rel=0.02)
    assert predicted == pytest.approx(run["measured"]["memory_gib_per_gpu"] * 2**30, rel=0.05)
