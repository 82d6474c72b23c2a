"""How far contest problems are solved in a given time, against the best costs of the contest.

    python benchmarks/iopddl.py FOLDER [--seconds 300] [--only A B]

FOLDER holds the problems as published, ``asplos-2025-iopddl-*.json.gz``. They run one after another, on one
thread. The limit is on wall time, reading included; CPU seconds tell how much of it other work took.
"""

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from planner.errors import PlannerError
from planner.intra_op.contest import solve_contest_problem
from planner.intra_op.iopddl import read_contest_problem

BEST_KNOWN = {
    "A": 6_548_641_531,
    "B": 532_843,
    "G": 217_039,
    "K": 2_274_276_676,
    "S": 1_534_613_444,
    "V": 1_632_051,
}
"""Lowest costs reached in the contest, by the last letter of the problem's name; source: google/iopddl."""


def measure(path: Path, seconds: float) -> tuple[str, ...]:
    """One row: time, cost, bound, and how they compare."""
    start, cpu_start = time.monotonic(), time.process_time()
    problem = read_contest_problem(path)
    try:
        solution = solve_contest_problem(problem, start + seconds)
    except PlannerError as error:
        return f"{time.monotonic() - start:.1f}", "", str(error), "", "", ""
    took, cpu = time.monotonic() - start, time.process_time() - cpu_start
    if not problem.fits(solution.choice) or problem.cost(solution.choice) != solution.cost:
        raise AssertionError(f"{path.name}: the answer is not what it claims to be")
    best = BEST_KNOWN.get(problem.name.rpartition("-")[2])
    score = "" if best is None else f"{best / solution.cost:.4f}"
    return (
        f"{took:.1f}",
        f"{cpu:.1f}",
        f"{solution.cost:,}",
        f"{solution.lower_bound:,}",
        f"{solution.gap:.3%}",
        score,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", nargs="*", choices=sorted(BEST_KNOWN), help="letters of problems")
    options = parser.parse_args()
    table = Table("problem", "seconds", "CPU s", "cost", "lower bound", "gap", "best known / cost")
    for path in sorted(options.folder.glob("*.json*")):
        letter = path.name.partition(".")[0].rpartition("-")[2]
        if not options.only or letter in options.only:
            table.add_row(letter, *measure(path, options.seconds))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
