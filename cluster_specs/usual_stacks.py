"""Which stacks go with what: the usual one of each device, where a stack runs at all, and what it splits."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from cluster_specs.cluster import DeviceSpec
from cluster_specs.software import Axis, DeviceFamily, SoftwareSpec

FAMILIES: Mapping[str, DeviceFamily] = MappingProxyType({"aws": "trainium"})
"""Who makes a device -> its family, where that is another than its kind: Trainium is priced as a TPU is."""


def device_family(device: DeviceSpec) -> DeviceFamily:
    """What software must have been written for to run on such a device."""
    return FAMILIES.get(device.vendor.lower(), device.kind)


def runs_on(software: SoftwareSpec, device: DeviceSpec) -> bool:
    """Whether the stack trains on such a device."""
    return device_family(device) in software.runs_on


def lacking_axes(software: SoftwareSpec) -> tuple[Axis, ...]:
    """Axes over which the stack splits nothing."""
    return tuple(axis for axis in get_args(Axis) if axis not in software.splits)


USUAL_STACKS: Mapping[str, str] = MappingProxyType(
    {"nvidia": "torch-fsdp2", "amd": "torch-fsdp2", "google": "jax-xla", "aws": "neuronx"}
)
"""Who makes a device -> the stack that is meant where nobody names one."""

OTHER_STACKS: Mapping[str, str] = MappingProxyType({"gpu": "torch-fsdp2", "tpu": "jax-xla"})
"""The same by the kind of device, for those of other makers."""


def usual_stack(device: DeviceSpec) -> str:
    """The stack that most jobs on such a device run."""
    return USUAL_STACKS.get(device.vendor.lower(), OTHER_STACKS[device.kind])


UNASKED: Mapping[str, str] = MappingProxyType({"torch-fsdp2": "torch-eager"})
"""Stack that is planned for -> what runs that name none have: PyTorch compiles nothing unless it is told to.

Source: ``torch.compile`` is a call; by default it is off in huggingface/transformers (``torch_compile``),
pytorch/torchtitan (``CompileConfig.enable``), pytorch/torchtune (``compile`` of recipes/configs@bd2a0fc) and
huggingface/accelerate (``dynamo_backend``).
"""


def unasked_stack(device: DeviceSpec) -> str:
    """The stack of runs on such a device of which nobody knows the program."""
    usual = usual_stack(device)
    return UNASKED.get(usual, usual)
