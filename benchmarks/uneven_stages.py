"""What uneven stages gain: as many layers everywhere, layers dealt out by time, stages with meshes of their own.

    python benchmarks/uneven_stages.py [CASE ...]

Step time of 1F1B under the best micro-batch, ZeRO stage and rematerialisation of each way of cutting. The first two
columns have the same degrees; "any degrees" is the best plan of equal meshes, "own meshes" the best where every stage
may have its own number of devices, mesh and rematerialisation, and its gain is over "any degrees".
"""

import sys
import time
from typing import NamedTuple

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner.errors import Infeasible
from planner.evaluation.cuts import even_cuts
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Pins
from planner.search import plan
from planner.search.best_first import Search
from planner.search.candidates import parallelism
from planner.search.space import candidates


class Case(NamedTuple):
    """A model whose blocks are not alike, or devices that are not."""

    model: str
    cluster: str | ClusterSpec
    global_batch: int
    seq_len: int
    pins: Pins


def pipeline(ranks: int, tensor: int, **pins: object) -> Pins:
    return Pins.model_validate(
        {"pipeline": ranks, "tensor": tensor, "context": 1, "schedule": "1f1b", **pins}
    )


CASES = {
    "gemma-2-9b (vocabulary of 256,000)": Case("gemma-2-9b", "dgx-h100:2", 256, 4096, pipeline(4, 2)),
    "gemma-3-27b (vocabulary of 262,208)": Case("gemma-3-27b", "dgx-h100:4", 256, 4096, pipeline(4, 4)),
    "qwen2.5-0.5b (vocabulary of 151,936)": Case("qwen2.5-0.5b", "dgx-h100:1", 128, 4096, pipeline(4, 1)),
    "t5-11b (encoder and decoder)": Case("t5-11b", "dgx-a100-80g:4", 256, 512, pipeline(4, 4)),
    "deepseek-v3 (3 dense layers first)": Case("deepseek-v3-671b", "h800-8x:32", 2048, 4096, pipeline(16, 1)),
    "llama-3.1-8b (nothing special)": Case("llama-3.1-8b", "dgx-h100:2", 256, 4096, pipeline(4, 2)),
}

POOLS = {
    "llama-3.1-8b": Case("llama-3.1-8b", "dgx-a100-80g:2+dgx-h100:2", 256, 4096, Pins()),
    "llama-3.1-70b": Case("llama-3.1-70b", "dgx-a100-80g:4+dgx-h100:4", 256, 4096, Pins(context=1)),
}


def best_even(case: Case) -> float:
    """Step time [s] of the best plan with as many layers on every stage."""
    search = Search(Evaluator(load_model(case.model), cluster_of(case), job(case)), case.pins, "time")
    steps = []
    for c in candidates(search.evaluator, case.pins, "time"):
        cuts = even_cuts(search.evaluator.graph.num_layers, c.pipeline)
        estimate = search.evaluator.estimate(parallelism(c), search.sharding(c), cuts)
        if estimate.memory_bytes <= search.limit:
            steps.append(estimate.step_time_s)
    return min(steps, default=float("inf"))


def recommended(case: Case, pins: Pins) -> float:
    """What `plan` recommends [s]."""
    try:
        answer = plan(load_model(case.model), cluster_of(case), job(case), pins, top=1)
    except Infeasible:
        return float("inf")
    return answer.estimate.step_time_s if answer.estimate is not None else float("inf")


def cluster_of(case: Case) -> ClusterSpec:
    return case.cluster if isinstance(case.cluster, ClusterSpec) else load_cluster(case.cluster)


def job(case: Case) -> Job:
    return Job(global_batch=case.global_batch, seq_len=case.seq_len)


def alone(case: Case) -> float:
    """The best plan on one of the pools [s]."""
    pools = cluster_of(case).pools
    return min(recommended(case._replace(cluster=pool), case.pins) for pool in pools)


def main(names: list[str]) -> None:
    print(
        f"{'stages':<38}{'even':>9}{'by time':>9}{'gain':>7}{'any degrees':>13}{'own meshes':>12}{'gain':>7}{'CPU':>7}"
    )
    for name, case in CASES.items():
        if names and name.split()[0] not in names:
            continue
        started = time.process_time()
        even, by_time = best_even(case), recommended(case, case.pins)
        pins = Pins(schedule="1f1b", context=1)
        equal = recommended(case, pins)
        own = recommended(case, pins.model_copy(update={"unequal_stages": True}))
        spent = time.process_time() - started
        print(
            f"{name:<38}{even:>7.3f} s{by_time:>7.3f} s{even / by_time - 1:>7.1%}{equal:>11.3f} s{own:>10.3f} s"
            f"{equal / own - 1:>7.1%}{spent:>5.0f} s",
            flush=True,
        )
    print(f"\n{'pools (A100 + H100)':<38}{'alone':>9}{'together':>10}{'gain':>8}{'CPU':>8}")
    for name, case in POOLS.items():
        if names and name not in names:
            continue
        started = time.process_time()
        one, both = alone(case), recommended(case, case.pins)
        spent = time.process_time() - started
        print(f"{name:<38}{one:>7.3f} s{both:>8.3f} s{one / both - 1:>8.1%}{spent:>6.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
