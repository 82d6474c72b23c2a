"""What a configuration says, in our words: `Settings`. What it leaves open is None, and filled in with a notice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from planner.models.dropout import Shares


class Surroundings(NamedTuple):
    """What a configuration cannot know but its meaning may depend on."""

    layers: int
    """Of the model."""
    devices: int
    """Of the cluster."""
    devices_per_node: int


class Given(NamedTuple):
    """What the caller says of the job, where a configuration leaves it to the training script."""

    global_batch: int | None = None
    seq_len: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """One configuration; its own defaults are what absence means in every framework."""

    stack: str
    """Software stack whose habits the estimate follows."""
    devices: int | None = None
    """Processes that it starts."""
    data: int | None = None
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    virtual_stages: int = 1
    cuts: tuple[int, ...] | None = None
    """Boundaries of the stages in layers."""
    micro_batch: int | None = None
    num_microbatches: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    zero_stage: int = 0
    shard: int | None = None
    """Data-parallel ranks, context ranks aside, that share states; None is all, or what ``replicate`` leaves."""
    replicate: int | None = None
    """Copies of the states."""
    sequence_parallel: bool = True
    experts_over_tensor: bool = False
    recompute: str = "none"
    recompute_every: int = 1
    schedule: str = "1f1b"
    offload: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)
    """What the framework takes for ``seq_len``, ``micro_batch`` or ``num_microbatches`` where nobody says."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Job` that it fixes."""
    dropout: Shares | None = None
    """What residual sums and attention drop; None: as the model's configuration says."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the model that it repeats: ``layers`` or a dim of the graph -> size."""
    assumed: tuple[str, ...] = ()
    """Where its meaning is not exactly ours, as ``field=value (why)``."""
    unknown: tuple[str, ...] = ()
    """Keys that are not understood."""


def states_on_host(
    optimizer: bool, weights: bool, zero_stage: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is offloaded as a plan says it, and what has to be assumed instead."""
    kept = ("optimizer",) if optimizer else ()
    if not weights:
        return kept, ()
    if optimizer and zero_stage == 3:
        return (*kept, "weights"), ()
    return kept, ("weights stay on the device (offload is priced with ZeRO 3, and with the optimizer's)",)
