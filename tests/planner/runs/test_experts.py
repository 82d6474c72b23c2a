"""Which ranks hold the experts of a published run."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.plans import Parallelism
from planner.runs import plan_from_run

PUBLISHED = Path(__file__).parents[2] / "published" / "runs_gpu.jsonl"


@pytest.fixture(scope="module")
def long_row() -> dict[str, Any]:
    """Qwen3-235B at 131072 tokens: tensor 4, context 8, no data ranks beyond one, experts over 8."""
    rows = (json.loads(line) for line in PUBLISHED.read_text().splitlines())
    return next(row for row in rows if row["id"] == "moezoo/qwen3-235b-h100-long128k-balanced")


def planned(row: dict[str, Any], **parallel: int) -> Parallelism:
    return plan_from_run(row | {"parallel": row["parallel"] | parallel})[0].plan


@pytest.mark.parametrize(
    ("changes", "expert", "whole"),
    [
        ({}, 2, True),  # as the ModelZoo's tables say: tensor 4 x context 2
        ({"etp": 4}, 8, False),
        ({"ep": 32}, 8, True),
    ],
)
def test_they_include_context_ranks_where_data_ranks_are_too_few(
    changes: dict[str, int], expert: int, whole: bool, long_row: dict[str, Any]
) -> None:
    plan = planned(long_row, **changes)
    assert (plan.data, plan.expert, plan.experts_over_tensor) == (1, expert, whole)
    assert plan.context_experts == expert


def test_more_ranks_than_there_are_is_refused(long_row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="ep 64 does not divide dp 1 x cp 8 = 8 ranks"):
        planned(long_row, ep=64)


@pytest.mark.parametrize(("changes", "priced"), [({"etp": 2}, 4), ({"ep": 2, "etp": 1}, 4)])
def test_a_split_that_no_plan_has_is_said(
    changes: dict[str, int], priced: int, long_row: dict[str, Any]
) -> None:
    """Megatron takes any that divides its ranks; a plan has whole experts, or parts of all tensor ranks."""
    assumed = plan_from_run(long_row | {"parallel": long_row["parallel"] | changes})[1]
    assert [note for note in assumed if note.startswith(f"etp={priced} (no etp {changes['etp']} beside")]
