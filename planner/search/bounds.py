"""Optimistic bounds on time and memory, cheap enough for every candidate.

Both hold for any cut of the layers into stages and any of the searched schedules, so pruning by them loses nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from cluster_specs.cluster import DeviceSpec
from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import least_saved_bytes
from planner.evaluation.communicators import communicator_bytes
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.host import states_on_host
from planner.evaluation.memory import held_in_backward, states_of
from planner.evaluation.stages import StageCost
from planner.evaluation.step import through_all
from planner.evaluation.weights import narrower
from planner.graph import Block, tied_share
from planner.pipeline.generators import stage_to_rank
from planner.plans import Job, Parallelism
from planner.search.candidates import Candidate
from planner.search.fullest import Load, fullest_rank
from planner.sharding.pricing import Pricer


def pipeline_seconds(whole: StageCost, lightest: float, c: Candidate, splits_backward: bool) -> float:
    """Least makespan of the candidate's micro-batches [s]; ``whole`` is the model as one stage.

    With one stage on each rank, rank r works ``m w_r`` and stands still while the first micro-batch comes to
    it and the last one goes back: at least ``rho`` of the work of every rank before it. Solving
    ``m w_r + rho sum_(s<r) w_s <= M`` with equality for the largest total work W gives
    ``M >= rho W / (1 - (1 - rho / m)^p)``, whatever the split. Under 1F1B it also waits for the ranks behind it
    (`one_by_one`). With more stages on each rank only one layer of each earlier rank, ``lightest``, is certain to come
    before: ``M >= m W / p + (p - 1) / 2 lightest``. With few micro-batches it is their way through all stages that
    counts (`through_all`), the longest pass being no shorter than a mean backward.
    """
    p, m, work = c.pipeline, c.num_microbatches, whole.seconds
    if p == 1 or work <= 0:
        return m * work
    passes = 0.0 if splits_backward else through_all(work, (work - whole.forward) / (p * c.virtual_stages), m)
    return max(passes, _around_ranks(whole, lightest, c, splits_backward))


def _around_ranks(whole: StageCost, lightest: float, c: Candidate, splits_backward: bool) -> float:
    """Least makespan by what ranks do and what comes before and after it [s]."""
    p, m, work = c.pipeline, c.num_microbatches, whole.seconds
    if waits_behind(c.schedule, p, m):
        return one_by_one(work, p, m)
    if c.virtual_stages > 1:
        return m * work / p + (p - 1) / 2 * lightest
    ramp = whole.forward if splits_backward else work
    rho = ramp / work
    return rho * work / -math.expm1(p * math.log1p(-min(rho / m, 1 - 1e-12)))


def waits_behind(schedule: str, p: int, m: int) -> bool:
    """Whether ranks wait for those behind them, as `one_by_one` has it."""
    return schedule == "1f1b" and m > p


def one_by_one(work: float, p: int, m: int) -> float:
    """Least makespan of 1F1B over p ranks with more than p micro-batches, however ``work`` [s] is split.

    ``M >= sum_(s<r) w_s + m w_r + 2 sum_(s>r) w_s - (p - r - 1) w_r`` for ranks from 0 (`planner.inter_op.ordered`).
    Weights ``y_(r+1) = y_r (m - p + r - 1) / (m - p + r + 1)``, which are not negative, give every w_r the same factor
    in the sum of these, and they are equal for equal w_r: ``M >= (m + p - 1) W / p``.
    """
    return (m + p - 1) * work / p


def around_busiest(work: float, busiest: float, p: int, m: int) -> float:
    """The same where one rank takes ``busiest`` [s] for a micro-batch, or more.

    The ranks before it take no longer than it does, so `one_by_one`'s inequality for that rank gives
    ``M >= 2 W + (m - p - 1) w_r``.
    """
    return 2 * work + (m - p - 1) * busiest


def busiest_within(span: float, work: float, p: int, m: int) -> float:
    """What no rank takes more of for a micro-batch [s] where ``work`` or more is done within ``span`` [s]."""
    return (span - 2 * work) / (m - p - 1) if m - p > 1 else span / m


def busiest_rank(layer: float, number: int, ends: tuple[float, ...], pipeline: int) -> float:
    """Least seconds of the rank with most to do, as layers are whole: ``number`` of them take at least ``layer`` each.

    ``ends`` is what some ranks do beside layers [s]. In W seconds rank r does ``floor((W - ends_r) / layer)`` layers;
    the answer is the least W in which all are done.
    """
    least = max((number * layer + sum(ends)) / pipeline, *ends)
    if layer <= 0:
        return least
    others = pipeline - len(ends)

    def done(seconds: float) -> int:
        whole = [int((seconds - end) / layer + SLACK) for end in ends]
        return others * int(seconds / layer + SLACK) + sum(whole)

    starts = {0.0, *ends} if others else set(ends)
    full = (start + (int((least - start) / layer) + more) * layer for start in starts for more in (0, 1, 2))
    return min(seconds for seconds in full if seconds >= least * (1 - SLACK) and done(seconds) >= number)


def least_pipeline(work: float, c: Candidate, alternates: bool) -> float:
    """The same from the seconds of ``work`` alone, which may be part of what the ranks do.

    ``alternates``: every stage once, and a whole backward before the next stage's begins.
    """
    p, m = c.pipeline, c.num_microbatches
    if p == 1 or work <= 0 or not alternates:
        return m * work / p
    if c.virtual_stages > 1:  # of forward and backward one is half of the work at least
        return max(m * work / p, through_all(work, work / (2 * p * c.virtual_stages), m))
    if waits_behind(c.schedule, p, m):
        return one_by_one(work, p, m)
    return work / -math.expm1(p * math.log1p(-min(1 / m, 1 - 1e-12)))


SLACK = 1e-9
"""Of a layer that is all but done, it is done."""

EXPERT_DIMS = frozenset({"experts", "expert_ffn"})
"""Dims of the weights that expert ranks split."""


class Layers(NamedTuple):
    """Layers of one kind, however they are split."""

    number: int
    experts: float
    """Parameters of its experts, in one layer."""
    others: float
    """All its other parameters."""
    saved: Mapping[str, float]
    """Policy -> what one layer keeps of one sequence [bytes]."""


class Unavoidable(NamedTuple):
    """What no assignment and no policy avoids; splitting over tensor and context ranks divides it at best."""

    layers: tuple[Layers, ...]
    ends: tuple[float, float]
    """Parameters of embedding and head, tied ones once."""
    largest: float
    """The largest tensor that an operator makes for one sequence, in the kind of layer where that is least [bytes]."""
    handed_on: float
    """What a layer hands to the next of one sequence, of the kind where that is least [bytes]."""

    def saved(self, policy: str) -> float:
        """What all layers keep of one sequence [bytes]."""
        return sum(kind.number * kind.saved[policy] for kind in self.layers)

    @property
    def parameters(self) -> tuple[float, float]:
        """Of experts, and all others."""
        experts = sum(kind.number * kind.experts for kind in self.layers)
        return experts, sum(self.ends) + sum(kind.number * kind.others for kind in self.layers)


def unavoidable(pricer: Pricer, policies: Iterable[str]) -> Unavoidable:
    """Read off the graph; the mesh of ``pricer`` does not matter."""
    graph, policies = pricer.graph, tuple(policies)

    def largest(block: Block) -> float:
        made = [block.tensor[name] for op in block.ops for name in op.outputs]
        return max((graph.elements(tensor) * pricer.element_bytes(tensor) for tensor in made), default=0.0)

    def handed_on(block: Block) -> float:
        made = [block.tensor[name] for name in block.outputs[:1]]
        return sum(graph.elements(tensor) * pricer.element_bytes(tensor) for tensor in made)

    def parameters(name: str | None, experts: bool) -> float:
        weights = [t for t in graph.block[name].tensors if t.role == "weight" and t.stepped] if name else []
        return sum(graph.elements(t) for t in weights if experts == EXPERT_DIMS.issubset(t.dims))

    def untied(name: str | None) -> float:
        return parameters(name, False) * (1 - tied_share(graph, name)) if name else 0.0

    kinds = Counter(graph.sequence)
    return Unavoidable(
        layers=tuple(
            Layers(
                count,
                parameters(name, True),
                untied(name),
                {policy: least_saved_bytes(pricer, graph.block[name], policy) for policy in policies},
            )
            for name, count in kinds.items()
        ),
        ends=(parameters(graph.first, False), untied(graph.last)),
        largest=min(largest(graph.block[name]) for name in kinds),
        handed_on=min(handed_on(graph.block[name]) for name in kinds),
    )


class PerWeight(NamedTuple):
    """What a weight takes of its rank as a backward begins, its states sharded as far as they can be [bytes]."""

    usual: float
    of_embedding: float


def held_per_weight(plan: Parallelism, job: Job, software: SoftwareSpec) -> PerWeight:
    """As it says."""
    states = states_of(1.0, plan.state_shards, job, plan, software)
    states["weights"] -= min(states["weights"], narrower(job, software, None))
    return PerWeight(*(held_in_backward(states, 1.0, job, plan, software, late) for late in (0.0, 1.0)))


def early_floor(c: Candidate, least: Unavoidable, per_weight: PerWeight, evaluator: Evaluator) -> float:
    """Least memory of the fullest rank [bytes], before anything is priced; less what it receives (`least_received`)."""
    held, share = per_weight.usual / c.tensor, c.micro_batch / (c.tensor * c.context)
    kept = 0.0 if "activations" in c.offload else share
    loads = tuple(
        Load(kind.number, held * (kind.others + kind.experts / c.expert), kept * kind.saved[c.recompute])
        for kind in least.layers
    )
    ends = per_weight.of_embedding / c.tensor * least.ends[0], held * least.ends[1]
    return (
        fullest_rank(loads, ends, c)
        + share * least.largest
        + overhead(c, evaluator.software, evaluator.cluster.device)
    )


def least_stepped(c: Candidate, least: Unavoidable) -> float:
    """Fewest weights that some device steps: all, spread evenly."""
    experts, others = least.parameters
    local = (others + experts / c.expert) / (c.tensor * c.pipeline)
    return local / (c.shard_degree if c.zero_stage else 1)


def least_on_host(c: Candidate, least: Unavoidable, evaluator: Evaluator) -> float:
    """Least that one node's devices keep on their host [bytes]: offloaded states, spread evenly."""
    elements = least_stepped(c, least)
    devices = min(evaluator.cluster.devices_per_node, c.data * c.tensor * c.pipeline * c.context)
    return devices * states_on_host(elements, evaluator.job, evaluator.software, c.offload)


def overhead(c: Candidate, software: SoftwareSpec, device: DeviceSpec) -> float:
    """What framework and communicators take beside tensors, at least [bytes]."""
    groups = sum(degree > 1 for degree in (c.tensor, c.context, c.expert, c.pipeline, c.data))
    return software.context + groups * communicator_bytes(software, device)


def least_boundary(c: Candidate, least: Unavoidable) -> float:
    """What a stage hands on for one micro-batch at least, however operators are split [bytes]."""
    return c.micro_batch / (c.tensor * c.context) * least.handed_on


def least_received(c: Candidate, software: SoftwareSpec, boundary: float) -> float:
    """Buffers of any rank for what it receives, where stages hand on ``boundary`` for a micro-batch, or more [bytes].

    As in `planner.evaluation.handing_over.receive_buffers`.
    """
    if not (software.receives_apart and c.pipeline > 1):
        return 0.0
    return _ways(c.schedule, c.pipeline, c.virtual_stages) * c.num_microbatches * boundary


@lru_cache(maxsize=1 << 10)
def _ways(schedule: str, pipeline: int, virtual_stages: int) -> int:
    """From which any rank receives: its stages both ways, but for the pipeline's two ends, which may be on one rank."""
    home = stage_to_rank(schedule, pipeline, virtual_stages)
    return 2 * virtual_stages - (2 if home[0] == home[-1] else 1)
