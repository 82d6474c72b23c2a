"""How a collective runs: the hops and the bandwidth-limited seconds of every algorithm.

Symbols: ``V`` full bytes, ``n`` ranks; of level ``i``, innermost first: size ``s_i``, bandwidth of one rank
``B_i`` (times 2 where a wrapped ring is used both ways), ranks inside one of its sub-groups ``k_i``. Every
rank drives its own port, so that a sub-group leaves by ``k_i B_i``.

Sources: Thakur et al., "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005;
Chan et al., "Collective communication: theory, practice, and experience", CCPE 19(13), 2007;
Sanders et al., "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009;
NVIDIA/nccl@5067397 ``src/graph/tuning.cc`` (hops of rings, trees and switches on nodes);
jax-ml/scaling-book@0819a7d ``sharding.md`` (tori).
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from math import ceil, log2, prod
from typing import NamedTuple

from cluster_specs.topology import CommGroup, Level

GROUPS = 1 << 12
"""Of which is kept what does not depend on bytes."""


class Steps(NamedTuple):
    """What a collective costs before latencies and protocols are known."""

    hops: tuple[float, ...]
    """One after the other, at each of the group's `CommGroup.active_levels`."""
    transfer: float
    """Seconds of the bytes at full bandwidth."""
    lockstep: float = 0.0
    """What the steps of a ring take beside their hops, at the slowest network that it crosses [s]."""

    def times(self, count: int) -> "Steps":
        """The same, ``count`` times over."""
        return Steps(tuple(count * hops for hops in self.hops), count * self.transfer, count * self.lockstep)


def ring(full_bytes: float, group: CommGroup) -> Steps:
    """All-gather or reduce-scatter around a ring: ``(n-1)/n V / min_i k_i B_i``.

    Of a rank's ``n - 1`` hops ``s - 1`` cross the outermost level, ``(s_i - 1) n / (k_i s_i)`` level ``i``.
    """
    around = _around(group)
    transfer = (group.size - 1) / group.size * full_bytes / around.bandwidth
    return Steps(around.hops, transfer, around.lockstep)


def chain(full_bytes: float, group: CommGroup) -> Steps:
    """Broadcast or reduce along a ring, in a pipeline of chunks: ``V / min_i k_i B_i``."""
    around = _around(group)
    return Steps(around.hops, full_bytes / around.bandwidth)


def recursive_halving(full_bytes: float, group: CommGroup) -> Steps:
    """All-gather by recursive doubling, reduce-scatter by halving: ``log2 n`` hops, ``(n-1)/n V / B``."""
    crossing = min(level.crossing for level in group.active_levels)
    return Steps(_log_hops(group), ring(full_bytes, group).transfer / crossing)


def spanning_tree(full_bytes: float, group: CommGroup) -> Steps:
    """Broadcast or reduce along a minimum spanning tree: ``sum_i log2(s_i) V / B_i``."""
    hops = _log_hops(group)
    per_level = zip(hops, group.active_levels, strict=True)
    return Steps(hops, sum(count * full_bytes / _crossed(level) for count, level in per_level))


def double_tree(full_bytes: float, group: CommGroup) -> Steps:
    """All-reduce over two complementary trees of sub-groups, with chains inside the innermost.

    ``2 (s_0 - 1)`` hops inside and ``2 log2 s_i`` outside; the slowest of ``2 V / B_0`` and
    ``2 V / (k_i B_i)``.
    """
    inner = group.active_levels[0]
    hops = (2.0 * (inner.size - 1), *(2 * count for count in _log_hops(group)[1:]))
    return Steps(hops, max(2 * full_bytes / _crossed(inner), _between(full_bytes, group)))


def in_switch(full_bytes: float, group: CommGroup) -> Steps:
    """All-reduce summed by the innermost switch, with trees between switches.

    A rank sends its array once, and once the share that it read summed: ``(s_0 + 1)/s_0 V / B_0``.
    """
    inner = group.active_levels[0]
    hops = (1.0, *(2 * count for count in _log_hops(group)[1:]))
    summed = (inner.size + 1) / inner.size * full_bytes / inner.bandwidth
    return Steps(hops, max(summed, _between(full_bytes, group)))


def torus(full_bytes: float, group: CommGroup) -> Steps:
    """All-gather or reduce-scatter over all torus dimensions at once.

    The array is cut in one part per dimension; part ``j`` gathers along ``j``, then ``j + 1``, and so on
    around, so that every dimension is always busy; a phase lasts as long as its slowest part. A torus of
    ``d`` equal dimensions needs ``(n-1)/n V / (d B)``. Uncut, one dimension after the other, where faster.
    """
    levels = group.active_levels
    count = len(levels)
    turns = [[levels[(part + phase) % count] for phase in range(count)] for part in range(count)]
    uncut = [_phases(full_bytes, group.size, [turn]) for turn in turns]
    hops = tuple((level.size - 1) / level.ring_directions for level in levels)
    return Steps(hops, min(_phases(full_bytes, group.size, turns), *uncut))


def hierarchical(full_bytes: float, group: CommGroup) -> Steps:
    """All-gather or reduce-scatter network by network, outermost first: ``sum_i (s_i-1)/s_i V / (k_i B_i)``.

    The dimensions of a torus count as one network.
    """
    hops: tuple[float, ...] = ()
    transfer, inside = 0.0, 1
    for is_torus, levels in groupby(group.active_levels, key=lambda level: level.kind == "ici"):
        for network in [tuple(levels)] if is_torus else [(level,) for level in levels]:
            part = CommGroup(prod(level.size for level in network), network)
            steps = (torus if is_torus else ring)(full_bytes / inside, part)
            hops, transfer, inside = hops + steps.hops, transfer + steps.transfer, inside * part.size
    return Steps(hops, transfer)


def direct(full_bytes: float, group: CommGroup) -> Steps:
    """Scatter or gather by one message per peer: ``(n - k_i)/n V`` over the root's port of level ``i``."""
    return _direct(full_bytes, group, lambda inside, level: (group.size - inside) / group.size)


def direct_exchange(full_bytes: float, group: CommGroup) -> Steps:
    """All-to-all by one message per peer; ``V`` is the buffer of one rank.

    ``(n - k_i)/n V`` leaves a rank over level ``i``. On a ring of a torus a byte travels ``s/4`` links on
    average, in either of two directions: ``s_i/8`` of ``V`` per link; ``s_i/4`` cross the middle of a line.
    Messages of ``V / n`` leave a level idle where they are small for it (`_kept`).
    """

    def share(inside: int, level: Level) -> float:
        if level.kind == "ici" and level.size > 2:
            return level.size / (4 * level.ring_directions)
        return (group.size - inside) / group.size / _kept(full_bytes / group.size, level)

    return _direct(full_bytes, group, share)


def twice(pass_: Callable[[float, CommGroup], Steps]) -> Callable[[float, CommGroup], Steps]:
    """All-reduce from its halves: reduce-scatter, then all-gather, which cost the same."""

    def all_reduce(full_bytes: float, group: CommGroup) -> Steps:
        return pass_(full_bytes, group).times(2)

    return all_reduce


@lru_cache(maxsize=GROUPS)
def _inside(group: CommGroup) -> tuple[tuple[int, Level], ...]:
    """(k_i, level i) of the active levels."""
    sizes = [level.size for level in group.active_levels]
    return tuple((prod(sizes[:i]), level) for i, level in enumerate(group.active_levels))


class _Ring(NamedTuple):
    """What a ring of a group is like, whatever goes around it; hops and lockstep as in `Steps`."""

    hops: tuple[float, ...]
    bandwidth: float
    """[bytes/s]"""
    lockstep: float


@lru_cache(maxsize=GROUPS)
def _around(group: CommGroup) -> _Ring:
    return _Ring(
        tuple(
            (level.size - 1) * (group.size / (inside * level.size)) / level.ring_directions
            for inside, level in _inside(group)
        ),
        min(inside * level.bandwidth * level.ring_directions for inside, level in _inside(group)),
        (group.size - 1) * max(level.ring_step for level in group.active_levels),
    )


def _crossed(level: Level) -> float:
    """Bandwidth of routes between pairs that are no neighbours, one peer at a time [bytes/s]."""
    return level.bandwidth * level.crossing


@lru_cache(maxsize=GROUPS)
def _log_hops(group: CommGroup) -> tuple[float, ...]:
    return tuple(float(ceil(log2(level.size))) for level in group.active_levels)


def _between(full_bytes: float, group: CommGroup) -> float:
    """Seconds of two trees between sub-groups: ``2 V / (k_i B_i)``, the slowest outer level.

    The busiest sub-group has two children and a parent in one tree, of half the array each way, and a parent
    in the other. Two sub-groups only exchange: ``V / (k_i B_i)``.
    """
    seconds = [
        (1 if level.size == 2 else 2) * full_bytes / (inside * _crossed(level))
        for inside, level in _inside(group)
    ]
    return max(seconds[1:], default=0.0)


def _phases(full_bytes: float, ranks: int, turns: list[list[Level]]) -> float:
    """Seconds of parts that gather at once, each along its own order of dimensions."""
    held = [full_bytes / len(turns) / ranks for _ in turns]
    seconds = 0.0
    for phase in range(len(turns[0])):
        levels = [turn[phase] for turn in turns]
        seconds += max(
            share * (level.size - 1) / (level.bandwidth * level.ring_directions)
            for share, level in zip(held, levels, strict=True)
        )
        held = [share * level.size for share, level in zip(held, levels, strict=True)]
    return seconds


LEAST_KEPT = 0.5
"""Share of the bandwidth of all-to-alls that the smallest messages have which anybody measured."""


def _kept(message: float, level: Level) -> float:
    """Share of its bandwidth that ``level`` has for messages of so many bytes to every peer: ``1 - h log2(M / m)``."""
    if not 0 < message < level.exchange_message:
        return 1.0
    return max(LEAST_KEPT, 1 - level.exchange_halving * log2(level.exchange_message / message))


def _direct(full_bytes: float, group: CommGroup, share: Callable[[int, Level], float]) -> Steps:
    # Messages to every peer take every route, so that none is left idle beside one that is crowded.
    seconds = [share(inside, level) * full_bytes / level.bandwidth for inside, level in _inside(group)]
    return Steps((1.0,) * len(seconds), max(seconds))
