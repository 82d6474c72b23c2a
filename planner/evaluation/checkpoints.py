"""Memory of devices and hosts while a run's states are saved or loaded, between steps.

What ways take beside the states is in ``cluster_specs/data/checkpoints.toml``; PyTorch's own was measured by its memory
tracker (``benchmarks/tracking_checkpoints.py``).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster_specs.checkpoints import Amount, CheckpointWay, checkpoint_family
from cluster_specs.record import Record
from planner.evaluation.cuts import ranks_of
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.host import offloaded_states
from planner.evaluation.memory import device_memory, model_states
from planner.evaluation.setting import Setting
from planner.evaluation.sites import Site
from planner.evaluation.stages import StageCost
from planner.evaluation.states import saved_bytes, sharded_elements, stored_weight_bytes, weight_bytes
from planner.graph import Graph, Tensor
from planner.plans import Parallelism, Plan
from planner.sharding.mesh import Mesh


class CheckpointCost(Record):
    """Saving or loading in one way."""

    does: str
    """``save`` or ``load``."""
    way: str
    call: str
    """What one calls for it, or the name of its format."""
    device_bytes: float
    """Of the fullest device meanwhile, as the driver reports it where no step was run before."""
    host_bytes: float
    """Of the fullest node's host, or of all hosts of a slice of TPUs, with what is offloaded."""
    fits: bool
    """On both, as far as the host's memory is known."""
    source: str


class Checkpoints(Record):
    """What a run's states take on disk, and each known way of saving and loading them."""

    written_bytes: float
    """Weights, master weights and optimizer states, each once."""
    ways: tuple[CheckpointCost, ...]


class _Rank(NamedTuple):
    """A pipeline rank, of which all devices have as much."""

    setting: Setting
    plan: Parallelism
    mesh: Mesh
    stages: Sequence[StageCost]


class _Sized(NamedTuple):
    """A rank with its amounts [bytes]."""

    rank: _Rank
    amounts: Mapping[str, float]
    """Of one device, wherever they lie, and of the whole model."""
    there: Mapping[str, float]
    """The same without what is offloaded."""


def checkpoints(plan: Plan) -> Checkpoints | None:
    """Of ``plan``; None where adapters are trained, or nothing is known of how its stack saves."""
    evaluator = Evaluator(plan.model, plan.cluster, plan.job)
    family = checkpoint_family(evaluator.setting.software.name)
    if family is None or plan.job.adapter is not None or not evaluator.setting.parameters:
        return None
    ranks = tuple(_ranks(evaluator, plan.plan))
    largest = _largest(evaluator.setting.graph)
    whole = _whole(evaluator.setting, largest)
    sizes = [
        _Sized(
            rank,
            _amounts(rank, (), whole, largest),
            _amounts(rank, rank.plan.offload, whole, largest),
        )
        for rank in ranks
    ]
    ways = tuple(_cost(way, sizes) for way in family.ways)
    return Checkpoints(written_bytes=whole["all_states"], ways=ways)


def _ranks(evaluator: Evaluator, plan: Parallelism) -> Iterator[_Rank]:
    sites: Sequence[Site]
    if evaluator.differs(plan):
        sites = evaluator.sites(plan)
        for stages in ranks_of(plan):
            setting, local, mesh = sites[stages[0]][:3]
            yield _Rank(setting, local, mesh, [sites[s].cost for s in stages])
        return
    costs, mesh = evaluator.stages(plan), evaluator.mesh(plan)
    for stages in ranks_of(plan):
        yield _Rank(evaluator.setting, plan, mesh, [costs[s] for s in stages])


def _largest(graph: Graph) -> Tensor:
    """The weight with most elements."""
    weights = (t for block in graph.blocks for t in block.tensors if t.is_parameter)
    return max(weights, key=graph.elements)


def _whole(setting: Setting, largest: Tensor) -> Mapping[str, float]:
    """Amounts of the whole model [bytes]."""
    job, software = setting.job, setting.software
    return {
        "largest": setting.graph.elements(largest) * stored_weight_bytes(job, software),
        "all_weights": setting.parameters * weight_bytes(job),
        "all_states": setting.parameters * saved_bytes(job, software),
    }


def _amounts(
    rank: _Rank, offload: Collection[str], whole: Mapping[str, float], largest: Tensor
) -> Mapping[str, float]:
    """Amounts of one device of ``rank``, but of what is offloaded, and of the whole model [bytes]."""
    setting, plan, mesh, stages = rank
    job, groups = setting.job, [g for stage in stages for g in stage.weights]
    states = model_states(groups, job, plan.model_copy(update={"offload": offload}), mesh, setting.software)
    elements = sum(g.elements for g in groups)
    # Tables and projections are split over tensor ranks, stacks of experts over expert ranks.
    parts = plan.tensor * (plan.expert if "experts" in largest.dims else 1)
    shard = sharded_elements(groups, mesh, plan.state_shards)
    once = sharded_elements(groups, mesh, plan.num_devices)
    weights = states["weights"] + states["master_weights"]
    return {
        **whole,
        "states": weights + states["optimizer"],
        "weights": weights,
        "master_weights": states["master_weights"],
        "optimizer": states["optimizer"],
        "reloaded": max(weights, states["optimizer"]),
        "written": once * saved_bytes(job, setting.software),
        "largest_shard": whole["largest"] / parts * shard / elements if elements else 0.0,
    }


def _cost(way: CheckpointWay, sizes: Sequence[_Sized]) -> CheckpointCost:
    """Of the fullest device, and of the fullest node: the first one's where the first rank has more."""
    devices, hosts, fits = [], [], True
    for number, (rank, amounts, there) in enumerate(sizes):
        beside = _sum(way.device, there)
        device = _between_steps(rank) + beside
        host = offloaded_states(*rank) + _sum(way.host, amounts) + _sum(way.device, amounts) - beside
        cluster = rank.setting.cluster
        node = min(cluster.devices_per_node, rank.plan.num_devices) * host
        node += _sum(way.first, amounts) if number == 0 else 0.0
        limit = cluster.host.memory
        fits &= device <= cluster.device.memory and (limit is None or node <= limit)
        devices.append(device)
        hosts.append(node)
    return CheckpointCost(
        does=way.does,
        way=way.way,
        call=way.call,
        device_bytes=max(devices),
        host_bytes=max(hosts),
        fits=fits,
        source=way.source,
    )


def _sum(multiples: Mapping[Amount, float], amounts: Mapping[str, float]) -> float:
    return sum(times * amounts[name] for name, times in multiples.items())


def _between_steps(rank: _Rank) -> float:
    """What is on a device before and after a step [bytes]: states, communicators, the framework."""
    setting, plan, mesh, stages = rank
    memory = device_memory(stages, 0.0, setting.job, plan, mesh, setting.software)
    outside = (memory.components.get(name, 0.0) for name in ("communicators", "framework"))
    return sum(memory.resident.values()) + sum(outside)
