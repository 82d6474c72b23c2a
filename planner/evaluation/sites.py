"""Stages that differ: each on devices of its own, of one pool of the cluster, with a mesh of its own.

All stages share the sequences of a micro-batch, so a stage with half the data ranks has twice as many on each. What
each rank does after its last backward, and what it holds, follow from its own devices and mesh.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.topology import route
from cost_models.collectives import all_reduce
from planner.errors import Unsupported
from planner.evaluation import host
from planner.evaluation.cuts import copies_of, ranks_of
from planner.evaluation.host import HostMemory
from planner.evaluation.memory import DeviceMemory, activation_peaks, device_memory, in_flight
from planner.evaluation.setting import Setting
from planner.evaluation.stages import StageCost
from planner.evaluation.states import reduced_bytes
from planner.evaluation.step import Devices, StepTime, assembled, handed_on, ports_of
from planner.evaluation.tails import Tail, tail_of
from planner.plans import Parallelism, StagePlan
from planner.sharding.mesh import Mesh


class Site(NamedTuple):
    """A stage where it runs."""

    setting: Setting
    """Its cluster is the pool that the stage's devices belong to."""
    plan: Parallelism
    """As the stage sees it: its own degrees and micro-batch."""
    mesh: Mesh
    cost: StageCost
    devices: Devices
    """Of the whole cluster."""


def seen_by(plan: Parallelism, stage: StagePlan) -> Parallelism:
    """The plan with the degrees of one of its stages.

    Raises ``InputError`` where the stage cannot share the micro-batch or its devices evenly.
    """
    data, tensor, context, expert = stage.degrees
    sequences = plan.data * plan.micro_batch
    start, end = stage.devices
    if data * tensor * context != end - start:
        raise InputError(f"a stage on devices {start} to {end - 1} has a mesh of {data * tensor * context}")
    if sequences % data:
        raise InputError(
            f"{sequences} sequences of a micro-batch do not divide among {data} data ranks of a stage"
        )
    ranks = data * context
    shard = gcd(plan.shard_degree, ranks) if plan.sharding == "HYBRID_SHARD" else ranks
    return plan.model_copy(
        update={
            "data": data,
            "tensor": tensor,
            "context": context,
            "expert": expert,
            "micro_batch": sequences // data,
            "shard_degree": shard if plan.zero_stage else 1,
            "replicate_degree": ranks // shard if plan.zero_stage else ranks,
            "stages": (),
        }
    )


def check_sites(cluster: ClusterSpec, plan: Parallelism) -> None:
    """Refuse stages that are not whole: one per rank and virtual stage, on devices that no other rank has.

    Raises ``InputError``; ``Unsupported`` for schedules that hold every stage twice.
    """
    if copies_of(plan) > 1:
        raise Unsupported(
            f"schedule {plan.schedule} holds every stage twice, which needs stages that are alike"
        )
    expected = plan.pipeline * plan.virtual_stages
    if len(plan.stages) != expected:
        raise InputError(
            f"a plan on {cluster.name} needs `stages` with devices and mesh, {expected} of them; "
            f"found {len(plan.stages)}"
        )
    homes = []
    for rank, stages in enumerate(ranks_of(plan)):
        places = {(plan.stages[s].devices, plan.stages[s].degrees) for s in stages}
        if len(places) > 1:
            raise InputError(
                f"stages {list(stages)} share pipeline rank {rank}, so they need the same devices and mesh"
            )
        homes.append(plan.stages[stages[0]].devices)
    for before, after in pairwise(sorted(homes)):
        if after[0] < before[1]:
            raise InputError(f"two pipeline ranks share device {after[0]}: give each its own range")


def step_time(cluster: ClusterSpec, plan: Parallelism, sites: Sequence[Site]) -> StepTime:
    """The step: the pipeline of all sites, then what each rank still has to do."""
    stages = [site.cost for site in sites]
    # Waiting grows with the nodes: the smallest nodes make the most of them.
    setting = min((site.setting for site in sites), key=lambda setting: setting.cluster.devices_per_node)
    sends, tails = send_seconds(cluster, sites), tails_of(cluster, plan, sites)
    return assembled(setting, plan, stages, sends, tails, ports_of(cluster))


def send_seconds(cluster: ClusterSpec, sites: Sequence[Site]) -> tuple[float, ...]:
    """Passing a micro-batch on, per boundary [s]: each device sends what it has, or gets what it needs."""
    sizes = [max(a.cost.boundary_bytes, b.cost.boundary_bytes) for a, b in pairwise(sites)]
    return handed_on(cluster, sizes, [site.devices for site in sites])


def tails_of(cluster: ClusterSpec, plan: Parallelism, sites: Sequence[Site]) -> tuple[Tail, ...]:
    """What every rank does after its last backward, on its own devices."""
    found = []
    for stages in ranks_of(plan):
        site = sites[stages[0]]
        tied = 0.0 if len(sites) - 1 in stages else tied_seconds(cluster, site, sites[-1])
        found.append(tail_of(site.setting, site.plan, site.mesh, [sites[s].cost for s in stages], tied))
    return tuple(found)


def tied_seconds(cluster: ClusterSpec, site: Site, last: Site) -> float:
    """All-reduce of the tied embedding's gradient between its stage and the last [s]."""
    elements = site.cost.tied_elements / (site.plan.shard_degree if site.plan.zero_stage >= 2 else 1)
    if not elements:
        return 0.0
    size = elements * reduced_bytes(site.setting.job, site.setting.software)
    return all_reduce(size, route(cluster, site.devices, last.devices)).seconds


def memory_by_rank(plan: Parallelism, sites: Sequence[Site]) -> tuple[DeviceMemory, ...]:
    """Memory of a device of every rank."""
    peaks = activation_peaks(plan, [site.cost for site in sites])
    return tuple(memory_of(sites, stages, peak) for stages, peak in zip(ranks_of(plan), peaks, strict=True))


def memory_of(sites: Sequence[Site], stages: Sequence[int], activations: float) -> DeviceMemory:
    """Memory of a device of the rank that runs ``stages``, with ``activations`` bytes in flight at its fullest."""
    setting, local, mesh = sites[stages[0]][:3]
    costs = [sites[s].cost for s in stages]
    limit = setting.cluster.device.memory
    return device_memory(costs, activations, setting.job, local, mesh, setting.software, limit)


def host_memory(plan: Parallelism, sites: Sequence[Site]) -> HostMemory:
    """Of the node that is nearest to its limit, or holds most where no limit is known."""
    found = []
    for stages, held in zip(ranks_of(plan), in_flight(plan, [site.cost for site in sites]), strict=True):
        setting, local, mesh = sites[stages[0]][:3]
        found.append(host.host_memory(setting, local, mesh, [held]))
    return max(found, key=lambda node: (node.used / node.limit if node.limit else 0.0, node.used))
