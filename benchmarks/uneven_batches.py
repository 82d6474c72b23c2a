"""What a batch dealt out unevenly over unlike pools would gain: each pool trains the whole model on its own share.

    python benchmarks/uneven_batches.py MODEL POOL POOL GLOBAL_BATCH SEQ_LEN

Every split of the batch into sixteenths is planned on each pool by itself; a step takes as long as the slower one, and
both sum their gradients over the slower pool's outer link, a shard for each device. Nothing of that sum is hidden, so
the figures are an upper bound on the step. The last line is the plan that joins the pools by a pipeline.
"""

import sys
from typing import NamedTuple

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.pools import join
from cluster_specs.topology import route
from cost_models.collectives import all_reduce
from planner.errors import Infeasible
from planner.graph import count_parameters
from planner.models.catalog import build_graph, load_model
from planner.models.model import Model
from planner.plans import Job
from planner.search import plan

PARTS = 16
"""Of the batch."""

GRADIENT_BYTES = 4
"""Of an element while it is summed: fp32, as the default job reduces."""


class Question(NamedTuple):
    """What is trained, where and on what."""

    model: Model
    pools: tuple[ClusterSpec, ClusterSpec]
    job: Job


def alone(asked: Question, pool: ClusterSpec, sequences: int) -> float:
    """Step time [s] of the pool on so many sequences; infinite where nothing fits."""
    if not sequences:
        return 0.0
    job = asked.job.model_copy(update={"global_batch": sequences})
    try:
        return planned_s(asked.model, pool, job)
    except Infeasible:
        return float("inf")


def planned_s(model: Model, pool: ClusterSpec, job: Job) -> float:
    """Step time [s] of the best plan."""
    found = plan(model, pool, job, top=1).estimate
    assert found is not None
    return found.step_time_s


def summed(asked: Question) -> float:
    """All-reduce of the gradients between the pools [s]."""
    first, second = (pool.num_devices for pool in asked.pools)
    between = route(join(asked.pools, None, "both"), (0, first), (first, first + second))
    elements = count_parameters(build_graph(asked.model, asked.job.seq_len)) / min(first, second)
    return all_reduce(elements * GRADIENT_BYTES, between).seconds


def main() -> None:
    name, first, second, batch, length = sys.argv[1:]
    pools = load_cluster(first), load_cluster(second)
    asked = Question(load_model(name), pools, Job(global_batch=int(batch), seq_len=int(length)))
    apart = summed(asked)
    for part in range(PARTS + 1):
        shares = [int(batch) * part // PARTS, int(batch) * (PARTS - part) // PARTS]
        seconds = [alone(asked, pool, share) for pool, share in zip(pools, shares, strict=True)]
        step = max(seconds) + (apart if all(shares) else 0.0)
        print(
            f"{shares[0]:5} + {shares[1]:5} sequences: {seconds[0]:7.2f} and {seconds[1]:7.2f} s, step {step:7.2f} s"
        )
    together = planned_s(asked.model, join(pools, None, "both"), asked.job)
    print(f"pipeline over both: {together:7.2f} s")


if __name__ == "__main__":
    main()
