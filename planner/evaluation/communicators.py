"""Groups of ranks that communicate, each with buffers of its own on every device in it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cluster_specs.cluster import DeviceSpec
from cluster_specs.software import SoftwareSpec
from planner.plans import Parallelism

FURTHER_GROUPS: Mapping[str, Callable[[Parallelism, bool], bool]] = MappingProxyType(
    {
        "world": lambda plan, tied: plan.num_devices > 1,
        "neighbours": lambda plan, tied: plan.pipeline > 1,
        "model": lambda plan, tied: plan.pipeline > 1 and plan.tensor > 1,
        "slices": lambda plan, tied: plan.pipeline > 1 and plan.tensor > 1,
        "ties": lambda plan, tied: tied,
        "samples": lambda plan, tied: plan.data > 1,
        "samples of stages": lambda plan, tied: plan.pipeline > 1,
    }
)
"""Further group of a stack -> whether a rank of a plan has it, which may hold a tied table.

All ranks; a rank and the next stage's; all that share a model; tensor ranks, for what stages send; both ends, for the
gradients of a table that they share; data ranks and stages, where the model's code has groups beside the framework's.
"""


MEASURED_CHANNELS = 24
"""Channels of the communicators whose memory is known: on A100 and H100 (NVIDIA/nccl issues 578 and 1781)."""


def communicator_bytes(software: SoftwareSpec, device: DeviceSpec) -> float:
    """Memory of one communicator on ``device``: linear in its channels [bytes].

    Source: NVIDIA/nccl issue 986, of what a communicator's memory depends on.
    """
    return software.communicator * device.channels / MEASURED_CHANNELS


def num_communicators(plan: Parallelism, software: SoftwareSpec, tied: bool) -> int:
    """Process groups of more than one rank that a framework makes for the plan, on a rank that has a ``tied`` table."""
    degrees = [plan.tensor, plan.context, plan.expert, plan.pipeline, plan.data]
    if plan.replicate_degree > 1 and plan.shard_degree > 1:
        degrees.append(plan.replicate_degree)
    further = sum(FURTHER_GROUPS[group](plan, tied) for group in software.further_groups or ())
    return sum(degree > 1 for degree in degrees) + further
