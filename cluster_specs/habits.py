"""Habits of a software stack that take several numbers: of kernels, of a compiler, of another kind of device."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from cluster_specs.record import Record
from cluster_specs.units import Bytes, Seconds


class AttentionRate(Record):
    """Sustained fractions of peak of the attention kernel that a stack runs on some devices."""

    forward: float = Field(gt=0, le=1)
    backward: float = Field(gt=0, le=1)


class ActivationKernels(Record):
    """Arrays that an activation reads and writes where it is several kernels, less a gate's product with ``up``."""

    forward: float = Field(gt=0)
    backward: float = Field(gt=0)


class RoutingKernels(Record):
    """Passes over the copies of tokens that experts read or make, where kernel after kernel goes over them.

    A pass reads or writes them once in the training type; in fp32 it counts twice.
    """

    dispatch_forward: float = Field(gt=0)
    dispatch_backward: float = Field(gt=0)
    combine_forward: float = Field(gt=0)
    combine_backward: float = Field(gt=0)
    weighed: float = Field(ge=0)
    """Arrays of what experts make that are kept for the gradient of their weights."""
    unweighed: float = Field(ge=0)
    """Most arrays of its gradients at once on the way back through that, beside the one that experts get."""
    outer_element: Seconds = Field(ge=0)
    """For each element of the gradient that an outer product for each token makes in fp32, two of the passes, where a
    kernel of large tiles does; 0: as fast as memory is."""
    picked_element: Seconds = Field(ge=0)
    """For each element of the gradient of copies that an index picked, three of the passes of the dispatch's backward:
    at least so long, where they are summed row by row in sorted order; 0: as fast as memory is."""


class IndexedRows(Record):
    """Rows of tokens that are read, or added to, one by one where an index says, by a device without kernels for it."""

    gathered: Seconds = Field(ge=0)
    """Of a row that is taken to where experts, or tokens, have theirs one after the other [s]."""
    scattered: Seconds = Field(ge=0)
    """Of a row that is added to one which others add to as well [s]."""


class RoutingOperators(Record):
    """Operators that the host issues, one by one, to bring tokens to their experts and back, in the forward.

    Collectives, and the product that the router is, count by themselves.
    """

    choice: float = Field(ge=0)
    """From the router's product to the experts of each token, with what the loss of balance needs."""
    preparation: float = Field(ge=0)
    """To what is handed to the exchange: counts, copies of them to the host, and tokens in order."""
    dispatch: float = Field(ge=0)
    """From there to what experts read."""
    combine: float = Field(ge=0)
    """From what experts make to the sum of each token."""
    waits: Literal[0, 1]
    """Whether it waits, before the exchange, for the device to know how many tokens each expert gets."""


class IssuedProducts(Record):
    """Host time to issue a layer's product with weights, or one of its two gradients, by a library that takes long.

    What runs beside it in the same module, as a norm does, is issued as other operators are.
    """

    wide: Seconds = Field(gt=0)
    """In 16 bits or more [s]."""
    narrow: Seconds = Field(gt=0)
    """In 8 bits or fewer, with casts of what it reads and with their scales [s]."""


class BiasedExperts(Record):
    """What kernels of their own move for experts with biases, whose gates are clamped [bytes per element]."""

    gates_forward: float = Field(ge=0)
    """Of what the activation reads."""
    gates_backward: float = Field(ge=0)
    result_forward: float = Field(ge=0)
    """Of what an expert returns, to which its bias is added."""
    result_backward: float = Field(ge=0)


class FlatBuffers(Record):
    """Flat arrays beside those of states, in jobs of 16 bits."""

    copies: float = Field(ge=0)
    """Of a shard's gradients in their own type at the update, beside those in fp32; none of sums in fp32."""
    reduced: float = Field(gt=0)
    """Elements of gradients that are reduced at a time."""
    gathered: float = Field(gt=0)
    """Least elements of the equal parts in which updated weights are gathered, each into an array of its own."""


class GroupedGrid(Record):
    """How a kernel of grouped products is laid out whose grid has every block of rows once for every group.

    A program whose block has no rows of its group leaves as soon as it has read where the group begins and ends.
    """

    rows: int = Field(gt=0)
    """Of a block."""
    columns: int = Field(gt=0)
    leaving: Seconds = Field(ge=0)
    """Of a program without rows, on one unit of the device [s]."""


class OnGPU(Record):
    """What is different on GPUs of a stack whose other habits are those that it has on TPUs."""

    overlap_data: float = Field(ge=0, le=1)
    overlap_gather: float = Field(ge=0, le=1)
    overlap_slowdown: float = Field(ge=0)
    straggler: float = Field(ge=0)
    grouped_tile: int = Field(ge=0)
    heads_sum_last: bool


class Partitioner(Record):
    """What a compiler that partitions whole programs makes of collectives: rings of sends beside products."""

    ring_ranks: int = Field(ge=1)
    """Most ranks of a ring; without copies of shards, gradients are summed part by part as they are made."""
    ring_parts: int = Field(ge=1)
    """Parts of a gradient that a ring has at a time: those that it passes on, and those made to be added to them."""
    unrolled_ranks: int = Field(ge=1)
    """Ranks of the shortest ring, whose loop is unrolled: over fewer its further parts would be the whole array again.

    Beside tensor ranks its steps come after the layers' backward.
    """
    further_parts: int = Field(ge=0)
    """Parts that a ring sends beyond those that it needs; over four ranks only rings of sums do."""
    whole_square: int = Field(ge=2)
    """Side of the smallest square slice over all of which sums to be scattered are made whole, as over blocks."""
    product_dtype: Literal["fp32", "bf16"]
    """Widest type in which products read weights, which are gathered in it."""
    summed_gather: Bytes = Field(ge=0)
    """Largest array that is gathered by a sum over all of a flat slice of more than ``ring_ranks`` [bytes]."""
    scatter_buffer: Mapping[str, Bytes]
    """Pattern of devices -> what chunks of an array take that is scattered along its rows (`planner.sharding.chunks`)
    [bytes]; the first that matches counts."""

    sets_aside: tuple[str, ...]
    """Patterns of devices on which what the end of a step needs has memory from before the loss."""

    def sets_aside_on(self, device: str) -> bool:
        """Whether a device is one of these, by its name."""
        return any(fnmatchcase(device, pattern) for pattern in self.sets_aside)

    def scatter_buffer_of(self, device: str) -> float:
        """Of a device by its name [bytes]."""
        return next(size for pattern, size in self.scatter_buffer.items() if fnmatchcase(device, pattern))
