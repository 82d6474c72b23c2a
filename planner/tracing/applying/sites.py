"""Operators of a framework, as parts of the operators of a program that layouts were chosen for."""

from typing import NamedTuple

from planner.tracing.applying.views import partition_of
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims, Operation
from planner.tracing.sharded import OperatorSharding, ShardedProgram
from planner.tracing.solving.rings import Ring, loops_of, ring_of


class Site(NamedTuple):
    """An operator of the function, as part of one of the program."""

    operation: Operation
    sharding: OperatorSharding
    reads: tuple[Dims, ...]
    writes: tuple[Dims, ...]

    @property
    def ring(self) -> Ring | None:
        """Of an attention whose keys go round."""
        return ring_of(self.operation) if self.sharding.ring else None

    def lies(self, dims: Dims) -> Partition:
        """How an array over these loops lies."""
        ring, split = self.ring, self.sharding.split
        return partition_of(dims, ring.of_axes(split, self.sharding.ring, loops_of(dims)) if ring else split)

    def without_ring(self) -> "Site":
        """The same, but that what goes round in a ring is gathered."""
        return self._replace(sharding=self.sharding.model_copy(update={"ring": ()}))

    def left(self) -> list[Partition]:
        """How its outputs are left: sums where the plan puts them."""
        if len(self.operation.members) == 1 and len(self.writes) == len(self.sharding.writes):
            return list(self.sharding.writes)
        return [self.lies(dims) for dims in self.writes]


def sites_of(sharded: ShardedProgram) -> dict[str, Site]:
    """By the framework's operator."""
    chosen = {s.name: s for s in sharded.operators}
    return {
        member.name: Site(op, chosen[op.name], member.reads, member.writes)
        for op in sharded.program.operations
        for member in op.members
    }
