"""What a plan leaves to the host of a node: copies beside compute, the update, and the memory that it takes there.

Weights that are offloaded live on the host with their gradients: a layer's shard comes to the device before it is
gathered, its gradient's shard leaves once it is reduced, and the host's processors step them.

Source: pytorch/pytorch pull request 120256 (FSDP2's ``CPUOffloadPolicy``); Rajbhandari et al., "ZeRO-Infinity",
arXiv:2104.07857, section 5.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from cluster_specs.errors import InputError
from cluster_specs.software import SoftwareSpec
from cost_models.host import host_update_seconds
from cost_models.memory import state_bytes
from cost_models.optimizers import optimizer_rule
from planner.errors import Unsupported
from planner.evaluation.setting import Setting
from planner.evaluation.stages import StageCost
from planner.evaluation.states import (
    Sync,
    gradient_bytes,
    reduced_bytes,
    sharded_elements,
    stored_weight_bytes,
    weight_bytes,
)
from planner.evaluation.weights import WeightGroup
from planner.plans import Job, Parallelism
from planner.sharding.mesh import Mesh


def check_offload(setting: Setting, plan: Parallelism) -> None:
    """Refuse what cannot be offloaded, or not be priced."""
    device = setting.cluster.device
    if plan.offload and device.host_bandwidth is None:
        raise InputError(f"offload: the bandwidth between {device.name} and its host is not known")
    if "optimizer" in plan.offload and optimizer_rule(setting.job.optimizer).orthogonalises:
        raise Unsupported(
            f"offload of the optimizer: what the matrix products of {setting.job.optimizer} cost on a host is not known"
        )
    if "weights" in plan.offload and "optimizer" not in plan.offload:
        raise InputError("offload of weights: the host steps them, so offload the optimizer as well")
    one_rank = plan.zero_stage == 0 and plan.data * plan.context == 1
    if "weights" in plan.offload and plan.zero_stage != 3 and not one_rank:
        raise InputError(
            f"offload of weights with ZeRO {plan.zero_stage}: only ZeRO 3 brings a layer's weights when it runs them"
        )


def with_copies(
    sync: Sync, groups: Iterable[WeightGroup], setting: Setting, plan: Parallelism, mesh: Mesh
) -> Sync:
    """``sync`` with the time of bringing the shards of ``groups`` from the host, and of taking gradients there."""
    bandwidth = setting.cluster.device.host_bandwidth
    if "weights" not in plan.offload or bandwidth is None:
        return sync
    shard = sharded_elements(groups, mesh, plan.state_shards)
    job, software = setting.job, setting.software
    return sync._replace(
        fetch=shard * stored_weight_bytes(job, software) / bandwidth,
        store=shard * reduced_bytes(job, software) / bandwidth,
    )


def host_step_seconds(setting: Setting, plan: Parallelism, elements: float) -> float:
    """The update of ``elements`` on the host, and what only it moves over the link [s].

    Weights that stay on the device wait for their gradients to go and for themselves to come. Where the bandwidth of
    the host's memory is not known, its update is taken to hide behind these copies.
    """
    job, cluster = setting.job, setting.cluster
    away = "weights" in plan.offload
    moved = 0.0 if away else elements * (gradient_bytes(job) + weight_bytes(job))
    copies = moved / cluster.device.host_bandwidth if cluster.device.host_bandwidth else 0.0
    if cluster.host.memory_bandwidth is None:
        return copies
    update = host_update_seconds(
        elements,
        job.optimizer,
        cluster.host.memory_bandwidth / cluster.devices_per_node,
        weight_bytes=weight_bytes(job),
        master_weights=job.master_weights,
        clips=away,
    )
    return copies + update


def states_on_host(elements: float, job: Job, software: SoftwareSpec, offload: Collection[str]) -> float:
    """Bytes of the states of ``elements`` parameters that ``offload`` puts on the host."""
    states = state_bytes(elements, job.precision, job.optimizer, job.master_weights, job.grad_dtype)
    held = states.master + states.optimizer if "optimizer" in offload else 0.0
    if "weights" in offload:
        held += states.weights * software.keeps_copy + states.gradients
    return held


def offloaded_states(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Iterable[StageCost]) -> float:
    """What the host has of the states of one device that runs ``stages`` [bytes]."""
    elements = sharded_elements([g for stage in stages for g in stage.weights], mesh, plan.state_shards)
    return states_on_host(elements, setting.job, setting.software, plan.offload)


class HostMemory(NamedTuple):
    """Of the node that is nearest to its limit [bytes]."""

    used: float = 0.0
    limit: float | None = None
    """None where it is not known."""

    @property
    def fits(self) -> bool:
        """Whether the node holds it, as far as one knows."""
        return self.limit is None or self.used <= self.limit


def host_memory(
    setting: Setting, plan: Parallelism, mesh: Mesh, ranks: Iterable[tuple[Sequence[StageCost], float]]
) -> HostMemory:
    """Of a node whose devices all are as its fullest; ``ranks`` are stages with all activations in flight [bytes]."""
    cluster, limit = setting.cluster, setting.cluster.host.memory
    if not plan.offload:
        return HostMemory(0.0, limit)
    share = plan.offload_share if "activations" in plan.offload else 0.0
    held = (offloaded_states(setting, plan, mesh, stages) + share * kept for stages, kept in ranks)
    fullest = max(held, default=0.0)
    return HostMemory(min(cluster.devices_per_node, plan.num_devices) * fullest, limit)
