"""Token slices for a model on a cluster: TeraPipe's, beside equal ones and none."""

from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from planner.errors import InputError
from planner.evaluation.slices import slice_seconds
from planner.models.catalog import build_graph, sequence_length
from planner.models.model import Model
from planner.pipeline.token_slices import best_slices, slice_latency
from planner.plans import Job, Parallelism
from planner.search.numbers import divisors

USUAL_PIECES = 16
"""Pieces that a sequence is cut into at most, where no granularity is given."""


class Slices(NamedTuple):
    """Slices of one sequence; latencies are those of one sequence through all stages, forward and backward [s]."""

    slices: tuple[int, ...]
    """Tokens."""
    latency_s: float
    equal_slices: int
    """The number of equal slices that is best."""
    equal_latency_s: float
    whole_latency_s: float
    """Without slices."""


def sliced(
    model: Model, cluster: ClusterSpec, job: Job, pipeline: int, tensor: int, granularity: int | None = None
) -> Slices:
    """The slices of a sequence that pass ``pipeline`` ranks fastest, of ``tensor`` devices each.

    Raises ``InputError`` where tokens look ahead, or devices, layers or the granularity do not fit.
    """
    if not _looks_back(model, job.seq_len):
        raise InputError(
            f"{model.name} cannot be cut into slices: some tokens need those that come after them"
        )
    if cluster.num_devices % (pipeline * tensor):
        raise InputError(
            f"--pipeline {pipeline} x --tensor {tensor} needs {pipeline * tensor} devices, which do not divide the "
            f"{cluster.num_devices} of {cluster.name}"
        )
    step = granularity or _usual_granularity(job.seq_len)
    plan = Parallelism(tensor=tensor, pipeline=pipeline)
    seconds = slice_seconds(model, cluster, job, plan, step)
    slices = best_slices(job.seq_len, pipeline, seconds, step)

    def latency(lengths: tuple[int, ...]) -> float:
        times = [seconds(length, sum(lengths[:n])) for n, length in enumerate(lengths)]
        return slice_latency(times, pipeline)

    best = min(divisors(job.seq_len // step), key=lambda n: latency((job.seq_len // n,) * n))
    return Slices(
        slices,
        latency(slices),
        best,
        latency((job.seq_len // best,) * best),
        latency((job.seq_len,)),
    )


def _looks_back(model: Model, seq_len: int) -> bool:
    """Whether a token needs only what stands before it: then a slice passes a stage without those after it."""
    if sequence_length(model) is not None:
        return False
    blocks = build_graph(model, seq_len).blocks
    return all(op.attributes["causal"] for block in blocks for op in block.ops if op.kind == "attention")


def _usual_granularity(tokens: int) -> int:
    return tokens // max(n for n in divisors(tokens) if n <= USUAL_PIECES)
