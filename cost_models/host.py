"""Seconds that the host of a node takes for what its devices leave to it."""

from cost_models.constants import constants
from cost_models.optimizers import update_bytes

CLIP_BYTES = 12.0
"""Per gradient in fp32: read for the norm; read and written to be clipped."""


def host_update_seconds(
    num_parameters: float,
    optimizer: str,
    bandwidth: float,
    *,
    weight_bytes: float = 2,
    master_weights: bool = True,
    clips: bool = False,
) -> float:
    """One optimizer step of ``num_parameters`` by the host's processors [s], as one vectorised pass over all states.

    ``bandwidth`` [bytes/s] is this device's part of the memory bandwidth of its node; ``clips`` says that the norm
    of the gradients is taken there too. Gradients are in fp32 on the host.
    Source of the rate: ``data/host.toml``; of the pass: Ren et al., "ZeRO-Offload", arXiv:2101.06840, section 5.1.
    """
    each = update_bytes(optimizer, weight_bytes, 4.0, master_weights, fused=True) + CLIP_BYTES * clips
    sustained = bandwidth * float(constants("host")["update_share"])
    return num_parameters * each / sustained
