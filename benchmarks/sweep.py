"""A sweep of a thousand points: Llama-3.1-70B over twenty kinds of clusters and fifty counts, each planned in full.

    python benchmarks/sweep.py [--jobs 2] [--every 1]

``--every 10`` takes every tenth count. Prints wall and CPU time, and the time per search. Target: minutes on two cores.
"""

import argparse
import platform
import resource
import time
from typing import Any

from planner.sweep.running import sweep

CLUSTERS = (
    "a3-mega", "a800-8x", "dgx-a100-40g", "dgx-a100-80g", "dgx-b200", "dgx-b300", "dgx-h100", "dgx-h200",
    "h100-96g-8x", "h800-8x", "l40s-8x", "mi300x-8x", "mi350x-8x", "mi355x-8x", "nd-h100-v5", "p4de.24xlarge",
    "p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge",
)  # fmt: skip
"""Twenty kinds of nodes of eight."""

COUNTS = tuple(8 * nodes for nodes in range(2, 102, 2))
"""Fifty counts: 16, 32, 48, ..., 800 devices."""

JOB: dict[str, tuple[Any, ...]] = {"seq_len": (8192,), "global_batch": (1024,)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    axes = {"model": ("llama-3.1-70b",), "cluster": CLUSTERS, "devices": COUNTS[:: arguments.every], **JOB}
    started = time.perf_counter()
    answer = sweep(axes, jobs=arguments.jobs)
    wall = time.perf_counter() - started
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    cpu = sum(u.ru_utime + u.ru_stime for u in used)
    planned = sum(point.status == "planned" for point in answer.points)
    print(f"Python {platform.python_version()} on {platform.machine()}, {arguments.jobs} processes")
    print(f"{len(answer.points):,} points ({planned:,} with a plan), {answer.searches:,} searches")
    print(f"{wall:,.0f} s wall, {cpu:,.0f} s CPU, {cpu / answer.searches:.2f} s CPU per search")


if __name__ == "__main__":
    main()
