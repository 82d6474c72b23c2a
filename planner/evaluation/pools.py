"""What PyTorch's allocator holds beside live tensors: a pool for each stream, and holes in that of the main one.

Memory that one stream freed is not given to another. FSDP2 gathers on a stream of its own and makes sharded gradients
on another, so that buffers of gathers and of these gradients are there even where the peak has neither. In the main
pool the largest arrays find no place between smaller ones that were put where they had been; these holes do not grow
with the number of layers whose inputs are kept.

Source: pytorch/pytorch ``c10/cuda/CUDACachingAllocator.cpp`` and ``torch/distributed/fsdp/_fully_shard``; replayed by
``benchmarks/replaying.py``.
"""

from collections.abc import Sequence

from planner.evaluation.rank import Moment, Rank
from planner.sharding.widths import DTYPE_BYTES


def held_by_pools(rank: Rank, moments: Sequence[Moment], unplaced_arrays: float) -> float:
    """Bytes over the live tensors of the fullest moment; ``unplaced_arrays`` of the largest that comes and goes."""
    streams = _held_by_streams(rank, moments) if rank.software.stream_pools else 0.0
    return streams + unplaced_arrays * largest_array(rank)


def _held_by_streams(rank: Rank, moments: Sequence[Moment]) -> float:
    """Bytes in the pools of gathers and reductions that are not alive at the fullest moment."""
    there = [sum(at.passing.values()) for at in moments]
    main, live = max(size - _reduced(rank, at) for size, at in zip(there, moments, strict=True)), max(there)
    reduced = rank.gradients if rank.frees_gradients else 0.0
    return main - live + reduced + gather_pool(rank)


def _reduced(rank: Rank, at: Moment) -> float:
    """Sharded gradients at a moment, which are of the reductions' pool [bytes]."""
    whole = rank.adds_up_whole and at.phase != "optimizer"
    return 0.0 if whole or not rank.frees_gradients else at.passing.get("gradients", 0.0)


def gather_pool(rank: Rank) -> float:
    """Buffers of the gathers of two units one after the other, and the cast shards of the second [bytes].

    What is gathered is copied out of them, so that they are beside weights that stay gathered for a whole step, too.
    """
    if not (rank.shards_weights or rank.keeps_gathered) or "weights" in rank.plan.offload:
        return 0.0
    casts = rank.job.master_weights and rank.weight < DTYPE_BYTES["fp32"]
    with_shards = 1 + casts / rank.plan.shard_degree
    layer, head = rank.layer, rank.gathered_head
    if rank.software.wraps_ends:
        return max(layer + with_shards * max(layer, head), rank.root - head + with_shards * layer)
    return rank.root + max(with_shards * layer, (with_shards - 1) * rank.root)


def largest_array(rank: Rank) -> float:
    """Logits, gradients of a unit, or of a weight, as they are reduced, or an activation [bytes].

    Where the loss makes no copies of logits it is compiled, and they are in the training type.
    """
    unit = max(rank.largest, rank.head if rank.software.wraps_ends else rank.ends)
    unit = unit if rank.software.stream_pools else rank.largest_weight
    narrow = rank.software.loss_copies == 0
    logits = rank.logits * (rank.weight / DTYPE_BYTES["fp32"] if narrow else 1.0)
    return max(logits, unit * rank.reduced if rank.frees_gradients else 0.0, rank.boundary)
