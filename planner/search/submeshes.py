"""What a stage costs on each submesh of a pool: the mesh, sharding and rematerialisation that suit it best."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.memory import device_memory, held_in_backward, model_states
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.tails import Tail, tail_of
from planner.pipeline.dependencies import peak_in_flight, programs
from planner.plans import Parallelism, Pins, Sharding, ZeroStage
from planner.search.assignments import Assignments
from planner.search.numbers import divisors
from planner.search.space import (
    SEARCHED_POLICIES,
    context_degrees,
    spreads_experts,
    stage_policies,
    tensor_degrees,
)

MOST_STAGES = 8
"""Stages that a pool is cut into at most: stages that differ have one mesh for each, and meshes of a device or two are
what the search over equal stages is for."""


ROUNDING = 1e-9
"""Of a micro-batch: room for all but so much is room for it."""


class Share(NamedTuple):
    """What all stages of a plan have in common."""

    sequences: int
    """Of one micro-batch, over all data ranks of a stage."""
    num_microbatches: int
    zero_stage: ZeroStage
    sharding: Sharding
    schedule: str


class Choice(NamedTuple):
    """How a stage runs on its submesh."""

    work: float
    """Of one micro-batch [s]."""
    tail: Tail
    """After the last backward."""
    seconds: float
    """Of one micro-batch, its part of what follows the last backward included."""
    local: Parallelism
    """Degrees and rematerialisation."""
    shardings: Shardings


class _Offer(NamedTuple):
    """A choice, and how many micro-batches in flight it has memory for."""

    choice: Choice
    room: int


class PoolPrices:
    """Prices stages on the submeshes of one pool."""

    def __init__(
        self, evaluator: Evaluator, pins: Pins, most_in_flight: int, devices: int | None = None
    ) -> None:
        """Nothing is priced yet. Of the pool so many ``devices`` are used, all if not given."""
        self.evaluator, self.pins, self._most = evaluator, pins, most_in_flight
        self.limit = evaluator.cluster.device.memory * (1 - evaluator.job.memory_headroom)
        self.devices = devices or evaluator.cluster.num_devices
        self.sizes = submesh_sizes(evaluator.cluster, self.devices)
        self._assignments = Assignments(evaluator)
        self._meshes: dict[tuple[int, Share], tuple[Parallelism, ...]] = {}
        self._offers: dict[tuple[object, ...], tuple[_Offer, ...]] = {}

    def choice(
        self, shape: StageShape, size: int, share: Share, in_flight: int, policy: str | None = None
    ) -> Choice | None:
        """The fastest way to run the stage that fits with so many micro-batches in flight, under any policy or one."""
        key = (shape, size, share, policy)
        if key not in self._offers:
            self._offers[key] = self._offers_for(shape, size, share, policy)
        fitting = (offer.choice for offer in self._offers[key] if offer.room >= in_flight)
        return next(fitting, None)

    def _offers_for(
        self, shape: StageShape, size: int, share: Share, policy: str | None
    ) -> tuple[_Offer, ...]:
        """Fastest first; a slower one is offered only where it has memory for more."""
        priced: list[tuple[float, int, Choice, StageCost]] = []
        for local in (one for one in self.meshes(size, share) if policy in (None, one.recompute)):
            cost, shardings = self.cost(local, shape)
            mesh = self.evaluator.mesh(local)
            tail = tail_of(self.evaluator.setting, local, mesh, [cost])
            seconds = cost.seconds + tail.seconds / share.num_microbatches
            choice = Choice(cost.seconds, tail, seconds, local, shardings)
            priced.append((seconds, len(priced), choice, cost))
        offers: list[_Offer] = []
        for _, _, choice, cost in sorted(priced, key=lambda entry: entry[:2]):
            most = offers[-1].room if offers else 0
            if most == self._most:
                break
            if self._most_room(choice.local, cost) < most + 1 - ROUNDING:
                continue
            room = self._room(choice.local, cost)
            if room > most:
                offers.append(_Offer(choice, room))
        return tuple(offers)

    def cost(self, local: Parallelism, shape: StageShape) -> tuple[StageCost, Shardings]:
        """A stage of the plan ``local``, and how its operators are split."""
        shardings = self.shardings(local)
        return self.evaluator.stage(local, shape, local.recompute, shardings), shardings

    def shardings(self, local: Parallelism) -> Shardings:
        """How the operators of all blocks are split on the mesh of ``local``."""
        return self._assignments.sharding(local, False)

    def _most_room(self, local: Parallelism, cost: StageCost) -> float:
        """No fewer micro-batches in flight than fit, from what is surely there as a backward begins.

        If all are, one of them has had its backward before there are sums of gradients.
        """
        held = surely_held(self.evaluator, local, cost)
        room = (self.limit - held) / cost.saved_bytes if cost.saved_bytes else math.inf
        return room + 1 if room >= local.num_microbatches - 1 - ROUNDING else room

    def _room(self, local: Parallelism, cost: StageCost) -> int:
        """Most micro-batches in flight that fit; memory grows with every one of them."""
        evaluator, mesh = self.evaluator, self.evaluator.mesh(local)

        def total(in_flight: int) -> float:
            held = in_flight * cost.saved_bytes
            capacity = evaluator.cluster.device.memory
            return device_memory([cost], held, evaluator.job, local, mesh, evaluator.software, capacity).total

        return most_below(self.limit, total, self._most)

    def meshes(self, size: int, share: Share) -> tuple[Parallelism, ...]:
        """Every mesh of so many devices with every policy, as a plan of one stage."""
        if (size, share) not in self._meshes:
            self._meshes[size, share] = tuple(self._degrees(size, share))
        return self._meshes[size, share]

    def _degrees(self, size: int, share: Share) -> Iterator[Parallelism]:
        """Every mesh of ``size`` devices and policy that the pins allow, as a plan of one stage."""
        evaluator, pins = self.evaluator, self.pins
        experts = evaluator.graph.dims.get("experts", 1)
        pinned = stage_policies(pins) or ((pins.recompute,) if pins.recompute else SEARCHED_POLICIES)
        policies = tuple(dict.fromkeys(pinned))
        for tensor in _pinned(tensor_degrees(evaluator.graph, evaluator.cluster), pins.tensor):
            for context in _pinned(context_degrees(evaluator.graph, evaluator.job.seq_len), pins.context):
                data, rest = divmod(size, tensor * context)
                if rest or data == 0 or share.sequences % data or pins.data not in (None, data):
                    continue
                if pins.micro_batch not in (None, share.sequences // data):
                    continue
                most = {math.gcd(ranks, experts) for ranks in (data, data * context)}
                for expert in _pinned(sorted({1, *most}), pins.expert):
                    if not spreads_experts(evaluator, data, context, expert):
                        continue
                    for policy in policies:
                        yield _local(share, data, tensor, context, expert, policy, pins)


def surely_held(evaluator: Evaluator, local: Parallelism, cost: StageCost) -> float:
    """What a stage surely has beside activations as a backward begins that is not the first of all [bytes]."""
    job, software, mesh = evaluator.job, evaluator.software, evaluator.mesh(local)
    states = model_states(cost.weights, job, local, mesh, software)
    elements = sum(group.elements for group in cost.weights)
    return software.context + held_in_backward(states, elements, job, local, software, cost.looked_up)


def _pinned(options: Sequence[int], pin: int | None) -> Sequence[int]:
    return options if pin is None else [pin]


def _local(
    share: Share, data: int, tensor: int, context: int, expert: int, policy: str, pins: Pins
) -> Parallelism:
    ranks = data * context
    return Parallelism.model_construct(
        data=data,
        tensor=tensor,
        pipeline=2,  # of several: what a stage keeps between micro-batches depends on nothing else
        context=context,
        expert=expert,
        virtual_stages=1,
        micro_batch=share.sequences // data,
        num_microbatches=share.num_microbatches,
        zero_stage=share.zero_stage,
        sharding=share.sharding,
        shard_degree=ranks if share.zero_stage else 1,
        replicate_degree=1 if share.zero_stage else ranks,
        sequence_parallel=True,
        recompute=policy,
        schedule=share.schedule,
        stages=(),
        offload=pins.offload or (),
    )


def submesh_sizes(cluster: ClusterSpec, total: int) -> tuple[int, ...]:
    """Devices of the submeshes of ``total`` devices of a pool: whole fractions down to an eighth, each a part of the
    one before.

    So they can lie side by side in any number without one reaching over the edge of another's place.
    """
    node = cluster.devices_per_node
    sizes: list[int] = []
    for size in reversed(divisors(total)):
        whole_nodes = size % node == 0 or node % size == 0
        blocks = cluster.torus is None or _is_block(cluster, size)
        if total // size <= MOST_STAGES and whole_nodes and blocks and (not sizes or sizes[-1] % size == 0):
            sizes.append(size)
    return tuple(sizes)


def _is_block(cluster: ClusterSpec, size: int) -> bool:
    """Whether the first ``size`` ranks fill a block of the torus."""
    from cluster_specs.topology import comm_group

    try:
        comm_group(cluster, ((size, 1),))
    except InputError:
        return False
    return True


@lru_cache(maxsize=1024)
def in_flight(schedule: str, stages_after: int, num_microbatches: int) -> int:
    """Micro-batches that a stage with so many behind it holds at most.

    It is the first stage of the pipeline that begins with it.
    """
    ranks = stages_after + 1
    enough = min(num_microbatches, 3 * ranks)
    several = num_microbatches if schedule == "gpipe" else enough
    return peak_in_flight(programs(schedule, ranks, 1, several))[0]


def most_below(limit: float, total: Callable[[int], float], most: int) -> int:
    """The largest of 0 to ``most`` whose ``total``, which grows with it, is no more than ``limit``; 0 if none is.

    Between a number that is and one that is not, next is where a straight line between them crosses.
    """
    low, high = 1, most
    above = total(high)
    if above <= limit:
        return high
    below = total(low) if high > low else above
    if below > limit:
        return 0
    while high - low > 1:
        crossing = low + int((limit - below) / (above - below) * (high - low))
        middle = min(max(crossing, low + 1), high - 1)
        found = total(middle)
        if found <= limit:
            low, below = middle, found
        else:
            high, above = middle, found
    return low
