"""What XLA's partitioner makes of the collectives that a sharding asks for, on slices of TPUs.

A sum of which each rank keeps a part, beside the product that makes it, and a gather beside the one product that reads
it, become a *ring*: parts go round, both ways at once, while the product works on those that are there. A ring sends
two parts more than it needs to (over four ranks, where its loop is unrolled, gathers send none, sums of one shape in
the forward of a layer two in all, and so in its backward with what that makes again), and is taken where the product is
longer than that takes. With ``2 k / n`` FLOPs an element of the array (``k`` contracted elements, ``n`` ranks together)
and ``w`` bytes an element over a link both ways, this asks for a *depth* ``k`` of more than ``w P / (2 b)``, whatever
``n``: 4,378 on TPU v5e in 16 bits. Products whose sums go round have each its own; others that make parts of one
gradient are added up first.

Over all of a slice that is a square or a block, other sums are made whole on every rank, which slices its part. Over
all of one that is too large for rings, arrays that are small, or any on a block, are gathered as sums of what is zero
but for a rank's own part.

Source: openxla/xla ``xla/service/spmd/dot_handler.cc`` (``disable_windowed_einsum``) and ``spmd_partitioner.h``
(``max_windowed_einsum_iterations``); products compiled for slices of TPU v4, v5e, v5p and v6e (jax 0.10.2, libtpu
0.0.52), some of which are in ``tests/planner/sharding/test_partitioning.py``.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cluster_specs.cluster import ClusterSpec, TorusSpec
from cluster_specs.habits import Partitioner
from cluster_specs.software import SoftwareSpec
from cluster_specs.topology import CommGroup
from cost_models.collectives import wire_bytes
from planner.graph import TOKEN_DIMS, Block, Graph, Op, Tensor
from planner.sharding.chunks import cuts_columns, padded_rows, scatters_heads
from planner.sharding.costs import Comm, EdgeCost
from planner.sharding.depths import copied_parts, copied_whole, depths, is_product
from planner.sharding.mesh import BATCH_AXES, Mesh
from planner.sharding.neighbours import Around, gradient_in_common, plain_sums
from planner.sharding.pinning import pins_gathered
from planner.sharding.spec import Sizes
from planner.sharding.widths import DTYPE_BYTES


class Padded(NamedTuple):
    """A scatter in chunks of one size, over what each rank keeps of it."""

    scattered: float = 1.0
    """For each rank."""
    returned: float = 0.0
    """By the rank that is furthest from its own rows."""
    whole: float = 0.0
    """Of an array that has no such chunks, which all ranks sum."""


class SlicePartitioner(NamedTuple):
    """A partitioner on the slices of one cluster."""

    habits: Partitioner
    torus: TorusSpec
    peak: float
    """Of products in 16 bits [FLOP/s]."""
    scatter_buffer: float
    """As `Partitioner.scatter_buffer_of` [bytes]."""

    def rings(self, depth: float, width: float, ranks: int, nearest: bool) -> bool:
        """Whether a product that contracts ``depth`` elements has a ring for an array of ``width`` bytes an element.

        Of ``nearest`` neighbours JAX makes a square where the slice is a block with one, in which there are none.
        """
        deep = depth > width * self.peak / (2 * self.torus.bandwidth)
        square = nearest and ranks == self.habits.unrolled_ranks and self._has_square(ranks)
        return deep and not square and self.habits.unrolled_ranks <= ranks <= self.habits.ring_ranks

    def _has_square(self, ranks: int) -> bool:
        """Whether two of three sides of the slice are a square of ``ranks``."""
        sides = self.torus.shape
        return len(sides) > 2 and any(a * b == ranks and a == b for a, b in itertools.combinations(sides, 2))

    def scattered(self, rows: float, columns: float, ranks: int, nearest: bool) -> Padded:
        """What a scatter of an array along its rows sends, of ``rows`` for each of ``ranks``, over what is kept."""
        square = nearest and self._has_square(ranks)
        more = padded_rows(rows, columns, ranks, self.scatter_buffer, square) / rows - 1
        return Padded(1 + more, (ranks - 1) * more)

    def in_columns(self, rows: float, columns: float, ranks: int, width: float) -> Padded:
        """The same of an array along its columns, of which each of ``ranks`` keeps so many; ``width`` as in `rings`."""
        cut = cuts_columns(rows, columns, ranks, self.scatter_buffer, width)
        return Padded() if cut else Padded(scattered=0.0, whole=1.0)

    def scatters_heads(self, tokens: float, heads: float, ranks: int) -> bool:
        """Whether one of the gradients of keys and values, of so many tokens on each of ``ranks``, is scattered."""
        return scatters_heads(tokens, heads, ranks, self.scatter_buffer)

    def sums_whole(self, group: CommGroup) -> bool:
        """Whether a sum over ``group`` of which each rank keeps a part is made whole on all."""
        levels = group.levels
        if group.size != self.torus.num_devices or any(level.kind != "ici" for level in levels):
            return False
        sides = [level.size for level in levels]
        square = len(sides) == 2 and min(sides) == max(sides) >= self.habits.whole_square
        return square or len(sides) > 2

    def sums_gathers(self, group: CommGroup) -> bool:
        """Whether arrays of up to `most_summed` are gathered over ``group`` by a sum, where there is no ring.

        They are over all of a slice that is too large for rings.
        """
        large = group.size == self.torus.num_devices > self.habits.ring_ranks
        return large and all(level.kind == "ici" for level in group.levels)

    @property
    def most_summed(self) -> float:
        """Largest array that is gathered by a sum [bytes]: any in slices of three dimensions."""
        return math.inf if len(self.torus.shape) > 2 else self.habits.summed_gather

    def beyond(self, collective: str, ranks: int) -> float:
        """What a ring over ``ranks`` sends beyond the gather or scatter that it is, as a share of that."""
        unrolled = collective == "all_gather" and ranks == self.habits.unrolled_ranks
        return 0.0 if unrolled else self.habits.further_parts / (ranks - 1)

    def shares_zeros(self, ranks: int) -> bool:
        """Whether sums of one shape that a layer makes in rings over ``ranks`` share the parts that are zeros."""
        return ranks == self.habits.unrolled_ranks


def slice_partitioner(software: SoftwareSpec, cluster: ClusterSpec) -> SlicePartitioner | None:
    """The partitioner of a stack that has one, on slices of a torus of single devices; None elsewhere."""
    if software.partitioner is None or cluster.torus is None or cluster.torus.devices_per_point > 1:
        return None
    habits, device = software.partitioner, cluster.device
    buffer = habits.scatter_buffer_of(device.name)
    return SlicePartitioner(habits, cluster.torus, device.peak_flops_per_second["bf16"], buffer)


def _no_gathers(comms: Iterable[Comm]) -> tuple[Comm, ...]:
    return tuple(comm for comm in comms if comm.collective != "all_gather")


class Edges(NamedTuple):
    """Turns the scatters of reshardings into what the partitioner makes of them."""

    partitioner: SlicePartitioner
    graph: Graph
    mesh: Mesh
    comm: Callable[[str, tuple[str, ...], float], Comm]
    """A collective, by name, axes and bytes of the whole array."""
    element_bytes: Callable[[Tensor], float]
    head_bytes: float
    """Of an element of a gradient of the last block."""
    sequences: float
    """Of a micro-batch on one device."""
    tables: dict[tuple[object, ...], Any]
    """What is derived by value."""

    def beside(self, block: Block, name: str, reader: Op, cost: EdgeCost) -> EdgeCost:
        """``cost`` of the tensor ``name`` between the operators that make it and read it."""
        tensor, around = block.tensor[name], self._around(block, name, reader)
        cost = self._narrowed(cost, self.element_bytes(tensor), around.made is not None, around.is_product)
        if around.gathered_before:
            cost = cost._replace(forward=_no_gathers(cost.forward), again=())
        backward = _no_gathers(cost.backward) if around.gathered_after else cost.backward
        if around.widened is not None:
            backward = tuple(self._widened(comm, around.widened) for comm in backward)
        whole = tuple(self._of_whole(block, tensor, reader, backward, ("all_gather",)))
        forward, remade = (
            (*self._scattered(tensor, cost.forward, around.made or (), sent), *whole)
            for sent in (around.zeros, around.zeros or around.summed_back)
        )
        return cost._replace(
            forward=forward,
            remade=remade,
            backward=(
                *self._scattered(tensor, backward, around.rings, around.zeros_back, around.plain),
                *self._of_copies(block, reader, backward),
                *self._of_whole(block, tensor, reader, backward, ("reduce_scatter", "all_reduce")),
            ),
        )

    def _around(self, block: Block, name: str, reader: Op) -> Around:
        """The operators around the tensor ``name`` on its way to ``reader``, looked at once for all shardings."""
        size = self.mesh.size
        on_mesh = size("tensor"), size("context"), size("data") > 1
        key = ("around", block.name, name, reader.name, *on_mesh)
        if key not in self.tables:
            self.tables[key] = self._look_around(block, name, reader)
        found: Around = self.tables[key]
        return found

    def _look_around(self, block: Block, name: str, reader: Op) -> Around:
        tensor = block.tensor[name]
        width = self.element_bytes(tensor)
        makers = [i for i, op in enumerate(block.ops) if name in op.outputs]
        earlier = (op for op in block.ops[: min(makers, default=0)] if self._makes(block, op.outputs, tensor))
        after = block.ops[block.ops.index(reader) + 1 :]
        later = (op for op in after if self._makes(block, op.inputs, tensor))
        made = tuple(depth for i in makers for depth in depths(self.graph, block, block.ops[i]))
        multiplies = bool(self._back_rings(block, reader, width))
        at_end = multiplies and block.name == self.graph.last
        gradient_width = self.head_bytes if at_end else width
        rings = self._back_rings(block, reader, gradient_width)
        # Gradients of it by what reads it later, beside which they are summed: a product's, or one that needs no sum.
        others = [
            ring
            for op in after
            if name in op.inputs
            for ring in self._back_rings(block, op, gradient_width) or (not is_product(op),)
        ]
        return Around(
            made=self._rings(made, width) if made else None,
            is_product=multiplies,
            widened=gradient_width / width if at_end else None,
            rings=rings,
            plain=plain_sums(rings, others),
            zeros=any(any(self._rings(depths(self.graph, block, op), width)) for op in earlier),
            zeros_back=any(any(self._back_rings(block, op, width)) for op in later),
            summed_back=self._sums_back(block, tensor, width),
            gathered_before=reader in [op for op in block.ops if name in op.inputs and is_product(op)][1:],
            gathered_after=gradient_in_common(block, name),
        )

    def _back_rings(self, block: Block, reader: Op, width: float) -> tuple[bool, ...]:
        """Whether each gradient by ``reader`` has a ring: none where programs pin the sum of all as it is gathered."""
        ranks = self.mesh.size("tensor")
        rings = self._rings(depths(self.graph, block, reader, backward=True, ranks=ranks), width)
        pinned = pins_gathered(self.graph, block, reader, self.mesh.size)
        return tuple(ring and not pinned for ring in rings)

    def _sums_back(self, block: Block, like: Tensor, width: float) -> bool:
        """Whether the backward of the block sums gradients of an array's shape in rings."""
        readers = (op for op in block.ops if self._makes(block, op.inputs, like))
        return any(any(self._back_rings(block, op, width)) for op in readers)

    def _narrowed(self, cost: EdgeCost, width: float, made: bool, read: bool) -> EdgeCost:
        """What products read is gathered in the type in which they do: inputs, and gradients of what they ``made``."""
        share = min(1.0, DTYPE_BYTES[self.partitioner.habits.product_dtype] / width)

        def narrow(comms: Iterable[Comm]) -> tuple[Comm, ...]:
            return tuple(
                self.comm(c.collective, c.axes, share * self._full_bytes(c))
                if c.collective == "all_gather"
                else c
                for c in comms
            )

        if share == 1:
            return cost
        return EdgeCost(
            narrow(cost.forward) if read else cost.forward,
            narrow(cost.backward) if made else cost.backward,
            narrow(cost.again),
        )

    def between(self, tensor: Tensor, cost: EdgeCost) -> EdgeCost:
        """``cost`` of the ``tensor`` that one block hands to the next."""
        there, back = (self._scattered(tensor, way) for way in (cost.forward, cost.backward))
        return cost._replace(forward=there, backward=back)

    @staticmethod
    def _makes(block: Block, names: Iterable[str], like: Tensor) -> bool:
        """Whether one of the arrays ``names``, or its gradient, has the shape of another."""
        return any(block.tensor[n].dims == like.dims and block.tensor[n].dtype == like.dtype for n in names)

    def _rings(self, depths: Sequence[float], width: float) -> tuple[bool, ...]:
        """Whether each product has a ring over the tensor axis, where no other splits the sequence as well."""
        alone, ranks = self.mesh.size("context") == 1, self.mesh.size("tensor")
        rings = self.partitioner.rings
        return tuple(alone and rings(depth, width, ranks, nearest=True) for depth in depths)

    def _of_copies(self, block: Block, reader: Op, sums: Iterable[Comm]) -> Iterator[Comm]:
        """Sums for weights of which several ranks hold the same part.

        That of gradients by them is made whole, over the parts; those of what they make over the copies.
        """
        ranks, read = self.mesh.size("tensor"), self.graph.elements(block.tensor[reader.inputs[0]])
        made = [(block.tensor[n], copied_parts(self.graph, block.tensor[n], ranks)) for n in reader.outputs]
        for comm in (c for c in sums if c[:2] == ("reduce_scatter", ("tensor",))):
            for parts in sorted({parts for _, parts in made if parts}):
                elements = sum(self.graph.elements(tensor) for tensor, own in made if own == parts)
                yield self._among(comm, parts, 1.0)
                yield self._among(comm, ranks // parts, elements / read / parts)

    def _among(self, comm: Comm, ranks: int, share: float) -> Comm:
        """A ``share`` of what ``comm`` scatters, summed whole by fewer ``ranks``."""
        whole = self.comm("all_reduce", comm.axes, self._full_bytes(comm))
        share *= wire_bytes("all_reduce", 1.0, ranks) / wire_bytes(
            "all_reduce", 1.0, self.mesh.size("tensor")
        )
        return whole._replace(seconds=share * whole.seconds, sent_bytes=share * whole.sent_bytes)

    def _of_whole(
        self, block: Block, read: Tensor, reader: Op, sums: Iterable[Comm], kinds: Sequence[str]
    ) -> Iterator[Comm]:
        """Collectives for results that all tensor ranks have whole: each makes those of its part of the sequence.

        Of the gradients of two, one is summed whole.
        """
        whole = [
            name
            for name in reader.outputs
            if any(copied_whole(self.graph, d, self.mesh.size("tensor")) for d in block.tensor[name].dims)
        ]
        for comm in (c for c in sums if c[:2] == ("reduce_scatter", ("tensor",))):
            for name, kind in zip(whole, itertools.cycle(kinds)):
                share = self.graph.elements(block.tensor[name]) / self.graph.elements(read)
                yield self.comm(kind, comm.axes, share * self._full_bytes(comm))

    def _widened(self, comm: Comm, factor: float) -> Comm:
        sums = comm.collective in ("reduce_scatter", "all_reduce")
        return self.comm(comm.collective, comm.axes, factor * self._full_bytes(comm)) if sums else comm

    def _full_bytes(self, comm: Comm) -> float:
        return comm.sent_bytes / wire_bytes(comm.collective, 1.0, self.mesh.group(comm.axes).size)

    def _scattered(
        self,
        tensor: Tensor,
        comms: Iterable[Comm],
        rings: Sequence[bool] = (),
        zeros: bool = False,
        plain: int | None = None,
    ) -> tuple[Comm, ...]:
        plain = plain_sums(rings) if plain is None else plain
        padded = self.padded(tensor)
        return tuple(
            made for comm in comms for made in self._each_scattered(comm, rings, zeros, plain, padded)
        )

    def padded(self, tensor: Tensor, by_tokens: bool = False) -> Padded:
        """Of a sum over tensor ranks of which each keeps some tokens of one sequence, its rows if one dim follows.

        ``by_tokens``: that are its columns, as it was exchanged.
        """
        ranks = self.mesh.size("tensor")
        tokens = tensor.dims[-2] if len(tensor.dims) > 1 else ""
        if ranks == 1 or self.sequences > 1 or tokens not in TOKEN_DIMS:
            return Padded()
        kept = self.graph.dims[tokens] / self.mesh.size("context") / ranks
        others = self.graph.dims[tensor.dims[-1]]
        if by_tokens:
            return self.partitioner.in_columns(others, kept, ranks, self.element_bytes(tensor))
        return self.partitioner.scattered(kept, others, ranks, nearest=True)

    def _each_scattered(
        self, comm: Comm, rings: Sequence[bool], zeros: bool, plain: int, padded: Padded
    ) -> Iterator[Comm]:
        """A scatter for each product with a ring, and ``plain`` ones for all others; other collectives as they are.

        ``zeros`` were sent by another ring already, for those that can share them.
        """
        if comm.collective != "reduce_scatter":
            yield comm
            return
        group = self.mesh.group(comm.axes)
        rings, plain = (rings, plain) if comm.axes == ("tensor",) else ((), 1)
        yield from plain * self._plain(comm, group, padded if comm.axes == ("tensor",) else Padded())
        yield from sum(rings) * (comm,)
        beyond = self.partitioner.beyond(comm.collective, group.size)
        further = Comm("send", comm.axes, beyond * comm.seconds, beyond * comm.sent_bytes)
        once = not zeros if self.partitioner.shares_zeros(group.size) else len(rings)
        yield from min(sum(rings), once) * (further,)

    def _plain(self, comm: Comm, group: CommGroup, padded: Padded) -> tuple[Comm, ...]:
        """The scatter ``comm`` without a ring: a sum that is whole, or one in chunks."""
        full = self._full_bytes(comm)
        if self.partitioner.sums_whole(group):
            return (self.comm("all_reduce", comm.axes, full),)
        if padded.scattered == 1:
            return (comm,)
        share = padded.returned * full / group.size / comm.sent_bytes
        returned = Comm("send", comm.axes, share * comm.seconds, share * comm.sent_bytes)
        return (self.comm(comm.collective, comm.axes, padded.scattered * full), returned)


def edges_of(
    software: SoftwareSpec,
    sizes: Sizes,
    comm: Callable[[str, tuple[str, ...], float], Comm],
    element_bytes: Callable[[Tensor], float],
    tables: dict[tuple[object, ...], Any],
) -> Edges | None:
    """The `Edges` of a stack that has a partitioner, on the slices of ``sizes``; None elsewhere.

    ``tables`` are of pricers that differ only in how many ranks split the batch, and in the micro-batch.
    """
    if (partitioner := slice_partitioner(software, sizes.mesh.cluster)) is None:
        return None
    head = DTYPE_BYTES[software.head_reduce_dtype]
    sequences = sizes.batch / math.prod(sizes.mesh.size(axis) for axis in BATCH_AXES)
    return Edges(partitioner, sizes.graph, sizes.mesh, comm, element_bytes, head, sequences, tables)
