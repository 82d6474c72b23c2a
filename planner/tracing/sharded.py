"""The answer for a traced program: how every array lies, what that costs, and what is proven."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cluster_specs.record import Record
from planner.tracing.layouts import Partition
from planner.tracing.program import Program

SCHEMA: Literal["meshwright/sharding/1"] = "meshwright/sharding/1"


class OperatorSharding(Record):
    """How one operator of the cleaned program runs."""

    name: str
    members: tuple[str, ...]
    """Operators of the framework in it."""
    split: Mapping[str, int]
    """Mesh axis -> the factor of the operator that it splits."""
    reads: tuple[Partition, ...]
    writes: tuple[Partition, ...]
    parts: tuple[str, ...] = ()
    """Axes along which a product is left as a sum of parts, or a kernel's addends arrive so and are summed there."""
    ring: tuple[str, ...] = ()
    """Axes around which an attention passes keys and values; along others that split its queries it has all keys."""
    dealt: Literal["", "in order", "from both ends"] = ""
    """Positions around a ring: each device has one part of the sequence, or an early and a late chunk."""


class SharedCopy(Record):
    """A value brought elsewhere once, for several operators that read it."""

    value: str
    readers: tuple[str, ...]
    partition: Partition


class CollectiveUse(Record):
    """One collective of the plan."""

    operator: str
    collective: str
    axes: tuple[str, ...]
    full_bytes: float
    """The whole array, as `cost_models.collectives` [B]."""
    seconds: float
    """Of one [s]."""
    times: int


class ShardedProgram(Record):
    """A program with a layout for every array on a mesh."""

    schema_version: Literal["meshwright/sharding/1"] = Field(default=SCHEMA, alias="schema")
    program: Program
    """After the clean-up passes, which it lists."""
    cluster: str
    mesh: Mapping[str, int]
    """Axis -> devices, outermost first."""
    inputs: Mapping[str, Partition]
    """Path of every input -> its layout: parameters, states, data."""
    outputs: Mapping[str, Partition]
    operators: tuple[OperatorSharding, ...]
    recomputed: tuple[OperatorSharding, ...] = ()
    """Operators that run again before their late readers, which do not get what the first run made."""
    collected: Mapping[str, Partition] = {}
    """Rows that loops collect for second runs, beside those that the program collects: their names in the body."""
    copies: tuple[SharedCopy, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    """Products of one value that run as one, each device's columns of the others side by side."""
    collectives: tuple[CollectiveUse, ...]
    seconds: float
    """Of one call [s]."""
    compute_seconds: float
    communication_seconds: float
    memory_bytes: float
    """Most that arrays take on one device at once [B]."""
    memory_limit_bytes: float
    lower_bound_seconds: float
    """No choice in this space takes less [s]."""
    proven: bool
    folded: bool
    """Operators of repeated blocks were made to share their choice; the bound is for such plans."""
    baselines: Mapping[str, float] = {}
    """What plans written by hand take in the same space [s]."""

    def to_json(self, **kwargs: Any) -> str:
        """The documented JSON."""
        return self.model_dump_json(by_alias=True, **kwargs)

    @property
    def gap(self) -> float:
        """(seconds - lower bound) / seconds."""
        return max(0.0, 1 - self.lower_bound_seconds / self.seconds) if self.seconds else 0.0

    def partition_specs(self) -> dict[str, tuple[Any, ...]]:
        """Arguments for ``jax.sharding.PartitionSpec`` by input path: None, an axis, or a tuple of axes."""
        return {path: spec_arguments(partition) for path, partition in self.inputs.items()}


def spec_arguments(partition: Partition) -> tuple[Any, ...]:
    """A partition as ``PartitionSpec`` takes it."""
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in partition)
