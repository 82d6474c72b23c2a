"""Tokens that ranks look up in each other's shards of an embedding table, by a partitioner, instead of gathering it.

Where each rank has some columns of the table, which is how programs are exported, ranks exchange the columns of their
tokens, there and back. Which is split first, the table's columns, its rows, or the tokens, the partitioner decides by
the largest array that it takes (`planner.sharding.lookups`):

- columns, where tensor ranks split rows: these sum what they found whole, or, each of some tokens of copies, gather it
  and the rows; gradients are added up for some tokens each, and scattered over rows, where tokens are many.
- rows: tensor ranks keep a part of the sum; ranks with columns of the same rows gather these where a data rank has more
  tokens than a tensor rank has rows.
- tokens: the table is gathered; beside tensor ranks this is not priced.

If there are copies of the shards, all data ranks gather all gradients, and what was found if that is whole; without
tensor ranks and of more tokens than the table has rows, they sum the table's whole gradient instead. If context ranks
split the tokens, both are gathered, or the table, which is gathered if it is smaller. As many context ranks as copies
are taken for these: each looks up a part of the tokens, gathers the rest, and exchanges them with the ranks of its
shards; ranks whose parts then are not their own swap them.

Where positions are added to what is found, programs pin that as tensor ranks split it: found by columns first it is
scattered before it is exchanged, by rows first summed whole, and ranks of both axes swap tokens. Positions of other
tokens are neither gathered nor summed.

Where the table lies whole and only its gradient is sharded, ranks look up what they need, and exchange no more than the
way back: gradients of what was found. So they do where a second look-up reads the table that a head shares (T5), which
is gathered for the head.

Where the columns do not divide, each has some rows: it looks up the tokens of all ranks and what is found is summed,
each rank keeping its own; the gradient of all of them is gathered, so that each rank adds up that of its rows. That is
done where what is looked up is smaller than the table.

A table that the head shares is gathered, and its gradient summed, for the head alone where tokens are looked up so.
Elsewhere, also where there are copies of its shards, it is gathered once for both, and what each makes of its gradient
is summed by itself.

Source: openxla/xla ``xla/service/spmd/gather_scatter_handler.cc`` (methods of gathers and scatters); programs compiled
for TPU topologies (jax 0.10.2, libtpu 0.0.52).
"""

import math
from typing import NamedTuple

from cluster_specs.topology import CommGroup
from cost_models.collectives import COLLECTIVES, wire_bytes
from planner.evaluation.blocks import BlockCost
from planner.evaluation.states import Shards, Sync, lie_whole, shards_of
from planner.evaluation.syncing import phase_of
from planner.evaluation.units import UnitCost
from planner.graph import Block, Tensor
from planner.plans import Parallelism
from planner.sharding.chunks import TILE_ROWS
from planner.sharding.costs import Comm
from planner.sharding.lookups import LookUp, first_split, splits_tokens_of_columns, splits_tokens_of_rows
from planner.sharding.partitioning import SlicePartitioner, slice_partitioner
from planner.sharding.pricing import Pricer
from planner.sharding.widths import DTYPE_BYTES

GATHERS = ("gather", "gather_bytes", "summed_bytes", "ring", "ring_bytes")
"""What `Sync` says of gathers."""


def with_lookup(unit: UnitCost, pricer: Pricer, block: Block, plan: Parallelism) -> UnitCost:
    """``unit`` of ``block`` as it is, or with exchanges in place of its table's gather and of its gradient's sum."""
    partitioner = slice_partitioner(pricer.software, pricer.mesh.cluster)
    lookups = [op for op in block.ops if op.kind == "embedding"]
    if partitioner is None or plan.zero_stage < 2 or len(lookups) != 1:
        return unit
    table, found = block.tensor[lookups[0].weights[0]], block.tensor[lookups[0].outputs[0]]
    shards = shards_of(unit.block.weights[0], pricer.mesh, plan.shard_degree)
    share = pricer.graph.elements(table) / plan.tensor / unit.block.elements
    whole, later = lie_whole(plan, pricer.software), block.name != pricer.graph.first
    there_already = whole or (later and bool(pricer.graph.tied))
    if later and not whole:
        unit = unit._replace(sync=_gathered_before(unit.sync, share))
    if pricer.graph.tied and shards.outer.size > 1:
        return unit
    size = _sizes(pricer, table, found, shards)
    by_row, split = plan.tensor == 1 and size.by_row, plan.context > 1
    gathers_all = by_row or (plan.tensor == 1 and split)
    if shards.inner.size == 1 or (gathers_all and size.found > size.table):
        return unit
    lookup = LookUp(size.rows, size.tokens, shards.inner.size, plan.tensor, shards.outer.size)
    if not (whole or split or by_row) and _gathered(lookup):
        return unit
    copies = shards.outer.size > 1
    adds_up = plan.tensor == 1 and copies and not gathers_all and size.found * shards.outer.size > size.table
    rest = _without(unit.sync, share, kept=not adds_up)
    if whole:
        rest = rest._replace(**{name: getattr(unit.sync, name) for name in GATHERS})
    part = 0.0 if whole or by_row else _in_rows(size, shards.inner.size, plan.tensor, pricer)
    unit = unit._replace(sync=rest, looked_up=True, in_rows=part)
    if by_row:
        there, back = _by_row(size.found, shards.inner, partitioner)
        return unit.exchanging(() if there_already else there, back)
    columns_first = plan.tensor > 1 and first_split(lookup) == "columns"
    everyone = shards_of(unit.block.weights[0], pricer.mesh, 1).outer
    alike = split and plan.context == shards.outer.size and plan.tensor == 1 and not whole
    there, back = _by_column(size.found, shards, everyone, columns_first and not whole, split, alike)
    if adds_up:
        back = (_of_data("all_reduce", size.table, everyone),)
    if not (whole or split) and shards.outer.size == 1 and _adds_to_tokens(unit, block, found):
        unit = _with_positions(unit, pricer, shards, (1 - share) * unit.block.elements)
        return _pinned(unit, pricer, found, shards, size.found, columns_first)
    laid_out, read, made = _of_rows(unit.block, pricer, found, lookup, size.table)
    unit = unit if whole else unit._replace(block=laid_out)
    there, back = (*there, *read), (*back, *made)
    return unit.exchanging(() if there_already else there, back)


def _gathered(lookup: LookUp) -> bool:
    """Whether ranks that have columns of the same rows gather them."""
    first = first_split(lookup)
    return splits_tokens_of_rows(lookup) if first == "rows" else first == "tokens" and lookup.tensor == 1


class _Sizes(NamedTuple):
    """Of one look-up, in the type that it is computed in [bytes]."""

    table: float
    found: float
    """By all ranks of a shard group."""
    rows: float
    columns: float
    tokens: float
    """Of all ranks."""
    by_row: bool
    """Whether the group's ranks have rows of the table: where they divide, and its columns do not."""


def _sizes(pricer: Pricer, table: Tensor, found: Tensor, shards: Shards) -> _Sizes:
    width, dims, ranks = pricer.element_bytes(found), pricer.graph.dims, shards.inner.size
    columns = math.prod(dims[d] for d in table.dims if d in found.dims)
    rows = math.prod(dims[d] for d in table.dims if d not in found.dims)
    made = math.prod(pricer.sizes.full(d) for d in found.dims)
    return _Sizes(
        width * pricer.graph.elements(table),
        width * made / shards.outer.size,
        rows,
        columns,
        made / columns,
        rows % ranks == 0 and columns % ranks > 0,
    )


def _in_rows(size: _Sizes, shards: int, tensor: int, pricer: Pricer) -> float:
    """Elements that a rank's part of a table takes by rows, with padding; 0 where it lies so, or stays by columns.

    States lie in the layout whose tiles they fill best, which is by columns where these do not fill whole lanes. What
    adds up gradients of tokens makes rows of them, so that the update has all of the table's states by rows as well,
    unless that takes twice as much.

    Source: openxla/xla ``xla/service/transfer_manager.h`` (``ChooseCompactLayoutForShape``); programs compiled for
    TPU v5e and v6e: copies of parts of 112, 160, 192, 284 and 320 columns, none of 32 and 64.
    """
    lanes = pricer.mesh.cluster.device.lanes
    rows, columns = size.rows / tensor, size.columns / shards
    by_rows, by_columns = (_tiled(*shape, lanes) for shape in ((rows, columns), (columns, rows)))
    return by_rows if by_columns < by_rows < 2 * rows * columns else 0.0


def _tiled(outer: float, inner: float, lanes: int) -> float:
    """Elements of tiles of ``lanes`` of the inner dim and `TILE_ROWS` of the outer one that hold so many."""
    return math.ceil(outer / TILE_ROWS) * TILE_ROWS * math.ceil(inner / lanes) * lanes


def beside_end(unit: UnitCost, end: UnitCost, apart: Sync, pricer: Pricer, plan: Parallelism) -> Sync:
    """What keeps the weights of ``unit`` in step, where the ``end`` has its table; ``apart`` without that.

    A partitioner gathers a table once for both, but sums what each makes of its gradient by itself.
    """
    if end.looked_up and not lie_whole(plan, pricer.software):
        return unit.sync
    if pricer.partitioned is None:
        return apart
    return unit.sync._replace(**{name: getattr(apart, name) for name in GATHERS})


def _gathered_before(sync: Sync, share: float) -> Sync:
    """``sync`` less gathers of a ``share`` of the weights: of a table that the first block has gathered for all."""
    return sync._replace(**{name: (1 - share) * getattr(sync, name) for name in GATHERS})


def _without(sync: Sync, share: float, kept: bool) -> Sync:
    """``sync`` less what a ``share`` of the weights is gathered and summed; sums over copies may be ``kept``."""
    rest = sync.times(1 - share)
    if not kept:
        return rest
    return rest._replace(
        replicate=sync.replicate,
        replicate_alone=sync.replicate_alone,
        replicate_bytes=sync.replicate_bytes,
        copy=sync.copy,
        copy_bytes=sync.copy_bytes,
    )


def _of_data(collective: str, full_bytes: float, group: CommGroup) -> Comm:
    seconds = COLLECTIVES[collective](full_bytes, group).seconds
    return Comm(collective, ("data",), seconds, wire_bytes(collective, full_bytes, group.size))


def _by_row(
    found_bytes: float, group: CommGroup, partitioner: SlicePartitioner
) -> tuple[tuple[Comm, ...], tuple[Comm, ...]]:
    summed = "all_reduce" if partitioner.sums_whole(group) else "reduce_scatter"
    by_sum = partitioner.sums_gathers(group) and found_bytes <= partitioner.most_summed
    gathered = "all_reduce" if by_sum else "all_gather"
    return (_of_data(summed, found_bytes, group),), (_of_data(gathered, found_bytes, group),)


def _by_column(
    found_bytes: float, shards: Shards, everyone: CommGroup, summed: bool, split: bool, alike: bool
) -> tuple[tuple[Comm, ...], tuple[Comm, ...]]:
    """Forward and backward: ``summed`` says that tensor ranks sum what they found whole, ``split`` that tokens are.

    By ranks that are ``alike`` to copies, these are split as if by those.
    """
    if alike:
        return _by_copies(found_bytes, shards)
    exchange = _of_data("all_to_all", found_bytes / shards.inner.size, shards.inner)
    copied = _of_data("all_gather", found_bytes * shards.outer.size, everyone)
    copies = shards.outer.size > 1
    there = copied if split or (copies and summed) else exchange
    return (there,), (copied if split or copies else exchange,)


def _by_copies(found_bytes: float, shards: Shards) -> tuple[tuple[Comm, ...], tuple[Comm, ...]]:
    """Forward and backward where context ranks, as many as copies of the shards, are taken for these."""
    own = found_bytes / shards.inner.size  # by each rank, of all columns
    all_copies = shards.outer.size * own
    gathered = _of_data("all_gather", all_copies, shards.outer)
    there = (
        gathered,
        _of_data("all_to_all", own, shards.outer),
        _of_data("all_to_all", own, shards.inner),
        _of_data("send", own, shards.inner),
    )
    back = (
        gathered,
        _of_data("all_to_all", all_copies, shards.inner),
        _of_data("send", all_copies, shards.inner),
    )
    return there, back


def _of_rows(
    block: BlockCost, pricer: Pricer, found: Tensor, lookup: LookUp, table_bytes: float
) -> tuple[BlockCost, tuple[Comm, ...], tuple[Comm, ...]]:
    """``block`` with what was found as it lies then, and what ranks with rows of the same columns send, there and back.

    Of some tokens each they need all rows, and make gradients of all. Where rows are split first they send none.
    """
    if lookup.tensor == 1:
        return block, (), ()
    if first_split(lookup) != "columns":
        return _by_tokens(block, pricer, found), (), ()
    of_some, makes_all = (splits_tokens_of_columns(lookup, backward) for backward in (False, True))
    summed = "all_reduce" if lookup.copies > 1 else "reduce_scatter"
    shard = table_bytes / lookup.columns
    there = (pricer.comm("all_gather", ("tensor",), shard),) if of_some else ()
    back = (pricer.comm(summed, ("tensor",), shard),) if makes_all else ()
    return _whole(block, pricer, found, of_some), there, back


def _adds_to_tokens(unit: UnitCost, block: Block, found: Tensor) -> bool:
    """Whether tensor ranks each add positions to some tokens of what was found."""
    return found.name not in block.outputs and "reduce_scatter" in unit.block.sent_bytes


def _with_positions(unit: UnitCost, pricer: Pricer, shards: Shards, elements: float) -> UnitCost:
    """``unit`` whose tensor ranks have whole tables of positions, but read those of their own tokens.

    Data ranks gather and sum no others; tensor ranks gather what data ranks keep of the gradients. Of all its weights
    but the table, ``elements``, those that are split stay as they are.
    """
    copied = sum(group.elements for group in unit.block.weights if "tensor" in group.sync_axes)
    if not copied:
        return unit
    positions = copied * DTYPE_BYTES[pricer.job.weight_dtype]
    own = positions / pricer.mesh.size("tensor")
    gathered = phase_of("all_gather", own, shards.inner, "gather")
    summed = phase_of("all_reduce", own, shards.inner, "reduce", bool(pricer.software.sums_alone))
    split = unit.sync.times(max(0.0, 1 - copied / elements))
    others = pricer.comm("all_gather", ("tensor",), positions / shards.inner.size)
    return unit._replace(sync=split.plus(gathered).plus(summed)).exchanging((), (others,))


def _pinned(
    unit: UnitCost, pricer: Pricer, found: Tensor, shards: Shards, found_bytes: float, columns_first: bool
) -> UnitCost:
    """``unit`` whose tensor ranks each add positions to some tokens, as the program pins what was found.

    Of columns split first, tokens are scattered before they are exchanged, and ranks of both axes swap them.
    """
    ranks, own = pricer.mesh.size("tensor"), found_bytes / shards.inner.size
    part = own / ranks
    of_some, of_all = (_of_data("all_to_all", size, shards.inner) for size in (part, own))
    swapped = _of_data("send", part, shards.inner)
    there, back = [of_all, swapped], [of_all, swapped]
    if not columns_first:
        unit = unit._replace(block=_whole(unit.block, pricer, found, of_some=False))
    elif ranks == shards.inner.size:
        there, back = [of_some, swapped], [of_all, _of_data("send", own, shards.inner)]
    else:
        there, back = [of_some, pricer.comm("all_to_all", ("tensor",), part)], [of_all]
    return unit.exchanging(there, back)


def _by_tokens(block: BlockCost, pricer: Pricer, found: Tensor) -> BlockCost:
    """``block`` whose tensor ranks scatter what they found once it was exchanged, which lays it out by tokens.

    So it needs no chunks of rows, but tokens that are whole tiles (`planner.sharding.chunks`).
    """
    sent, split = dict(block.sent_bytes), pricer.mesh.size("context") > 1
    if pricer.partitioned is None or split or "reduce_scatter" not in sent:
        return block
    if pricer.partitioned.padded(found, by_tokens=True).whole:
        return _whole(block, pricer, found, of_some=False)
    sent.pop("send", None)
    sent["reduce_scatter"] /= pricer.partitioned.padded(found).scattered
    return block._replace(sent_bytes=sent)


def _whole(block: BlockCost, pricer: Pricer, found: Tensor, of_some: bool) -> BlockCost:
    """``block`` with what its tensor ranks found whole on each, where they would keep a part.

    It is summed, or gathered where each looked up all ``of_some`` tokens.
    """
    sent = dict(block.sent_bytes)
    parts, _ = sent.pop("reduce_scatter", 0.0), sent.pop("send", 0.0)
    if not parts or pricer.partitioned is None:
        return block
    ranks = pricer.mesh.size("tensor")
    parts /= pricer.partitioned.padded(found).scattered
    name = "all_gather" if of_some else "all_reduce"
    whole = pricer.comm(name, ("tensor",), parts / wire_bytes("reduce_scatter", 1.0, ranks))
    sent[name] = sent.get(name, 0.0) + whole.sent_bytes
    return block._replace(comm_forward={**block.comm_forward, "tensor": whole.seconds}, sent_bytes=sent)
