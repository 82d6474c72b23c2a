"""Stacks and devices as they are together in a job: rates that a stack reaches, habits that a job changes."""

from fnmatch import fnmatchcase

from cluster_specs.cluster import DeviceSpec
from cluster_specs.software import SoftwareSpec


def in_training(device: DeviceSpec) -> DeviceSpec:
    """The device with the arithmetic rates that it sustains in training."""
    best = device.efficiency
    share = best.sustained
    rates = {
        "matmul": best.matmul * share,
        "attention_forward": best.attention_forward * share,
        "attention_backward": best.attention_backward * share,
        "sustained": 1.0,
    }
    exponentials = device.exponentials and device.exponentials * share
    efficiency = best.model_copy(update=rates)
    return device.model_copy(update={"efficiency": efficiency, "exponentials": exponentials})


def software_on(software: SoftwareSpec, device: DeviceSpec) -> SoftwareSpec:
    """The stack as it is on such a device."""
    if device.kind != "gpu" or software.on_gpu is None:
        return software
    return software.model_copy(update=dict(software.on_gpu))


def replayed(software: SoftwareSpec) -> SoftwareSpec:
    """The stack with steps replayed from captured graphs: the host issues nothing."""
    issued = [name for name in SoftwareSpec.model_fields if name.startswith("host_")]
    return software.model_copy(update={**dict.fromkeys(issued, 0.0), "host_product": None})


GROUPED_TEMPORARIES = 4.0
"""Bytes per fp32 parameter that an update by one kernel for each operation makes: square roots of second moments.

Source: torch.distributed FSDPMemTracker of torch 2.13 (``foreach`` AdamW peaks at 20 bytes a parameter, fused at 16).
"""


def updating(software: SoftwareSpec, fused: bool) -> SoftwareSpec:
    """The stack with an update that is one kernel, or that is several; as it is where that is its habit.

    DeepSpeed's own has temporaries though it is one kernel.
    """
    if fused == software.fused_optimizer:
        return software
    temporaries = 0.0 if fused else GROUPED_TEMPORARIES
    return software.model_copy(update={"fused_optimizer": fused, "optimizer_temporaries": temporaries})


def gathering(software: SoftwareSpec, narrow: bool) -> SoftwareSpec:
    """The stack with tensor ranks that gather in 8 bits, or in 16."""
    return software.model_copy(update={"gathers_narrow": narrow})


def device_on(device: DeviceSpec, software: SoftwareSpec) -> DeviceSpec:
    """The device with the attention rates that ``software`` reaches on it (first pattern to fit its name)."""
    for pattern, rate in software.attention.items():
        if fnmatchcase(device.name, pattern):
            update = {"attention_forward": rate.forward, "attention_backward": rate.backward}
            return device.model_copy(update={"efficiency": device.efficiency.model_copy(update=update)})
    return device
