"""Published runs by their names, and what is predicted of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.evaluation import evaluate
from planner.plans import Estimate
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run

PUBLISHED = Path(__file__).parents[2] / "published"


def rows_of(name: str) -> dict[str, Any]:
    lines = (PUBLISHED / name).read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def predicted(run: str, rows: Mapping[str, Any]) -> Estimate:
    plan, _ = plan_from_run(parse_run(rows[run]))
    return evaluate(plan)
