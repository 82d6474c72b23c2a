"""PyTorch's caching allocator for CUDA, as far as it decides how much is reserved: what replaying.py feeds.

Each stream has a pool of small and one of large blocks. A request takes the smallest free block of its pool that holds
it and leaves the rest free, where that is worth a block; else a segment is reserved, or, where segments expand, the one
of the pool grows. Blocks that are freed merge with free neighbours of their segment. Nothing is returned to the device.

Source: pytorch/pytorch ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13 (round_size, get_allocation_size,
should_split, try_merge_blocks, try_allocate_expandable_block).
"""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

MIB = 2**20
SMALL, MEDIUM = MIB, 10 * MIB
"""Largest request of a pool of small blocks, and the smallest that gets a segment of its own size [bytes]."""

Pool = tuple[int, bool]
"""Stream, and whether blocks are small."""


@dataclass(eq=False)
class Block:
    """Part of a segment."""

    size: int
    pool: Pool
    number: int
    before: "Block | None" = None
    after: "Block | None" = None
    free: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """By which free blocks are sorted."""
        return self.size, self.number


def rounded(size: int, unit: int) -> int:
    """``size`` up to a multiple of ``unit`` [bytes]."""
    return -(-size // unit) * unit


class Allocator:
    """Blocks of all pools; ``reserved`` and ``live`` are their bytes, and never more than ``peak_live``."""

    def __init__(self, expandable: bool) -> None:
        self.expandable = expandable
        self.reserved = self.live = self.peak_live = self._made = 0
        self._free: dict[Pool, list[Block]] = defaultdict(list)
        self._last: dict[Pool, Block] = {}

    def take(self, size: int, stream: int) -> Block:
        """A block for ``size`` bytes on ``stream``."""
        size = max(512, rounded(size, 512))
        pool = stream, size <= SMALL
        free = self._free[pool]
        found = bisect_left(free, (size, -1), key=lambda block: block.order)
        block = free.pop(found) if found < len(free) else self._reserve(size, pool)
        block.free = False
        rest = block.size - size
        if rest >= 512 if pool[1] else rest > SMALL:
            self._split(block, size)
        self.live += block.size
        self.peak_live = max(self.peak_live, self.live)
        return block

    def give(self, block: Block) -> None:
        """Free ``block``."""
        self.live -= block.size
        block.free = True
        if block.after is not None and block.after.free:
            self._free[block.pool].remove(block.after)
            self._join(block, block.after)
        if block.before is not None and block.before.free:
            self._free[block.pool].remove(block.before)
            block = self._join(block.before, block)
        insort(self._free[block.pool], block, key=lambda b: b.order)

    def _reserve(self, size: int, pool: Pool) -> Block:
        unit = 2 * MIB if pool[1] or size >= MEDIUM else 20 * MIB
        if not self.expandable:
            self.reserved += rounded(size, unit)
            return self._new(rounded(size, unit), pool)
        last = self._last.get(pool)
        missing = size - last.size if last is not None and last.free else size
        grown = rounded(missing, 2 * MIB if pool[1] else 20 * MIB)
        self.reserved += grown
        if last is not None and last.free:
            self._free[pool].remove(last)
            last.size += grown
            return last
        block = self._new(grown, pool, before=last)
        self._last[pool] = block
        return block

    def _new(self, size: int, pool: Pool, before: Block | None = None, after: Block | None = None) -> Block:
        self._made += 1
        block = Block(size, pool, self._made, before, after)
        for neighbour, side in ((before, "after"), (after, "before")):
            if neighbour is not None:
                setattr(neighbour, side, block)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = self._new(block.size - size, block.pool, before=block, after=block.after)
        rest.free, block.size = True, size
        if self._last.get(block.pool) is block:
            self._last[block.pool] = rest
        insort(self._free[block.pool], rest, key=lambda b: b.order)

    def _join(self, first: Block, second: Block) -> Block:
        first.size, first.after = first.size + second.size, second.after
        if second.after is not None:
            second.after.before = first
        if self._last.get(first.pool) is second:
            self._last[first.pool] = first
        return first
