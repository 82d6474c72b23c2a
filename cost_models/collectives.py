"""Seconds of collectives: latency and transfer, by the algorithm that the library would choose.

``full_bytes`` is the whole array, as in nccl-tests: what a rank holds after an all-gather or before a
reduce-scatter; what every rank holds in an all-reduce, broadcast or reduce; what the root holds in a scatter
or gather; what each rank sends in an all-to-all (its own share included). ``alone is free``: a group of one
rank, or no bytes, costs nothing.

Groups on NVLink, xGMI, PCIe, InfiniBand and Ethernet are timed as NCCL (and RCCL) runs them, with its three
protocols; groups on TPU links as XLA does, with none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.errors import InputError, UnknownName
from cluster_specs.topology import CommGroup
from cost_models import algorithms as by
from cost_models.algorithms import Steps
from cost_models.costs import CommTime
from cost_models.protocols import fill, in_switch_constants, launch_latency, protocols

Collective = Callable[[float, CommGroup], CommTime]

Stepping = Callable[[float, CommGroup], Steps]

NETWORKS = ("infiniband", "ethernet")
"""Kinds of links between nodes of GPUs."""


class Algorithm(NamedTuple):
    """One way to run a collective, and the groups on which the library uses it."""

    steps: Stepping
    applies: Callable[[CommGroup], bool]


class Choice(NamedTuple):
    """The fastest algorithm for one collective on one group."""

    algorithm: str
    time: CommTime


def _is_torus(group: CommGroup) -> bool:
    return any(level.kind == "ici" for level in group.active_levels)


def _anywhere(group: CommGroup) -> bool:
    return True


def _one_network(group: CommGroup) -> bool:
    """Rings: nodes of GPUs, or a single level of any kind."""
    return not _is_torus(group) or len(group.active_levels) == 1


def _only_torus(group: CommGroup) -> bool:
    levels = group.active_levels
    return len(levels) > 1 and all(level.kind == "ici" for level in levels)


def _torus_of_many(group: CommGroup) -> bool:
    return _is_torus(group) and len(group.active_levels) > 1


def _one_rank_per_node(group: CommGroup) -> bool:
    levels = group.active_levels
    return len(levels) == 1 and levels[0].kind in (*NETWORKS, "dcn")


def _gpus(group: CommGroup) -> bool:
    return all(level.kind not in ("ici", "dcn") for level in group.active_levels)


def _summing_switch(group: CommGroup) -> bool:
    return group.active_levels[0].in_switch_reduction


_PASSES: Mapping[str, Algorithm] = {
    "ring": Algorithm(by.ring, _one_network),
    "recursive_halving": Algorithm(by.recursive_halving, _one_rank_per_node),
    "torus": Algorithm(by.torus, _only_torus),
    "hierarchical": Algorithm(by.hierarchical, _torus_of_many),
}
_SPREADS: Mapping[str, Algorithm] = {
    "chain": Algorithm(by.chain, _anywhere),
    "spanning_tree": Algorithm(by.spanning_tree, _anywhere),
}
_ROOTED: Mapping[str, Algorithm] = {"direct": Algorithm(by.direct, _anywhere)}

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "all_gather": _PASSES,
        "reduce_scatter": _PASSES,
        "all_reduce": {
            **{name: Algorithm(by.twice(one.steps), one.applies) for name, one in _PASSES.items()},
            "double_tree": Algorithm(by.double_tree, _gpus),
            "in_switch": Algorithm(by.in_switch, _summing_switch),
        },
        "all_to_all": {"direct": Algorithm(by.direct_exchange, _anywhere)},
        "broadcast": _SPREADS,
        "reduce": _SPREADS,
        "scatter": _ROOTED,
        "gather": _ROOTED,
    }
)
"""Collective, then algorithm."""

_PIPELINED = frozenset({"ring", "recursive_halving", "double_tree", "chain"})
"""Algorithms that pass chunks on, and so pay for filling the pipeline of chunks between nodes."""


def algorithm_times(name: str, full_bytes: float, group: CommGroup) -> Mapping[str, CommTime]:
    """Every algorithm that applies to the group, with its time over the best protocol."""
    if name not in ALGORITHMS:
        raise UnknownName("collective", name, ALGORITHMS)
    return {
        algorithm: _timed(algorithm, steps(full_bytes, group), full_bytes, group)
        for algorithm, steps in _applicable(name, group)
    }


@lru_cache(maxsize=by.GROUPS)
def _applicable(name: str, group: CommGroup) -> tuple[tuple[str, Stepping], ...]:
    known = ALGORITHMS[name].items()
    return tuple((algorithm, steps) for algorithm, (steps, applies) in known if applies(group))


@lru_cache(maxsize=1 << 16)
def choice(name: str, full_bytes: float, group: CommGroup) -> Choice:
    """The fastest algorithm and its time.

    Raises ``UnknownName`` for the collective, ``InputError`` for negative bytes.
    """
    if full_bytes < 0:
        raise InputError(f"a collective moves bytes, found {full_bytes}")
    if group.size <= 1 or full_bytes == 0:
        return Choice("none", CommTime())
    times = algorithm_times(name, full_bytes, group)
    best = min(times, key=lambda algorithm: times[algorithm].seconds)
    return Choice(best, times[best])


def chosen(name: str, full_bytes: float, group: CommGroup) -> str:
    """Name of the algorithm that `choice` takes."""
    return choice(name, full_bytes, group).algorithm


def all_gather(full_bytes: float, group: CommGroup) -> CommTime:
    """Assemble a sharded array on every rank; a ring takes ``(n-1)/n V / B``."""
    return choice("all_gather", full_bytes, group).time


def reduce_scatter(full_bytes: float, group: CommGroup) -> CommTime:
    """Sum arrays and leave each rank its shard; a ring takes ``(n-1)/n V / B``."""
    return choice("reduce_scatter", full_bytes, group).time


def all_reduce(full_bytes: float, group: CommGroup) -> CommTime:
    """Sum arrays on every rank; a ring takes ``2 (n-1)/n V / B``."""
    return choice("all_reduce", full_bytes, group).time


def all_to_all(full_bytes: float, group: CommGroup) -> CommTime:
    """Each rank sends ``1/n`` of its buffer to each rank: ``(n-1)/n V / B`` behind one switch."""
    return choice("all_to_all", full_bytes, group).time


def broadcast(full_bytes: float, group: CommGroup) -> CommTime:
    """Copy one rank's array to all; a pipelined chain takes ``V / B``."""
    return choice("broadcast", full_bytes, group).time


def reduce(full_bytes: float, group: CommGroup) -> CommTime:
    """Sum arrays on one rank; a pipelined chain takes ``V / B``."""
    return choice("reduce", full_bytes, group).time


def scatter(full_bytes: float, group: CommGroup) -> CommTime:
    """One rank sends each its shard: ``(n-1)/n V / B``."""
    return choice("scatter", full_bytes, group).time


def gather(full_bytes: float, group: CommGroup) -> CommTime:
    """One rank receives every shard: ``(n-1)/n V / B``."""
    return choice("gather", full_bytes, group).time


def send(full_bytes: float, group: CommGroup) -> CommTime:
    """Point to point between two ranks of the group that are farthest apart: one outermost hop, ``V / B``."""
    levels = group.active_levels
    if not levels or full_bytes == 0:
        return CommTime()
    return CommTime(levels[-1].latency, full_bytes / levels[-1].bandwidth)


COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_reduce": all_reduce,
        "all_to_all": all_to_all,
        "broadcast": broadcast,
        "reduce": reduce,
        "scatter": scatter,
        "gather": gather,
        "send": send,
    }
)
"""By name."""

_WIRE_SHARE: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_gather": lambda n: (n - 1) / n,
        "reduce_scatter": lambda n: (n - 1) / n,
        "all_reduce": lambda n: 2 * (n - 1) / n,
        "all_to_all": lambda n: (n - 1) / n,
        "broadcast": lambda n: 1.0,
        "reduce": lambda n: 1.0,
        "scatter": lambda n: (n - 1) / n,
        "gather": lambda n: (n - 1) / n,
        "send": lambda n: 1.0,
    }
)


def wire_bytes(name: str, full_bytes: float, group_size: int) -> float:
    """Bytes that the busiest rank sends or receives, each way, whatever the network [bytes].

    Divided by the time it is the "bus bandwidth" of nccl-tests. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.
    """
    if name not in _WIRE_SHARE:
        raise UnknownName("collective", name, _WIRE_SHARE)
    return 0.0 if group_size <= 1 else _WIRE_SHARE[name](group_size) * full_bytes


def _timed(algorithm: str, steps: Steps, full_bytes: float, group: CommGroup) -> CommTime:
    """By the fastest protocol."""
    levels = group.active_levels
    if not _gpus(group):
        return CommTime(_dot(steps.hops, [level.latency for level in levels]), steps.transfer)
    if algorithm == "in_switch":
        return _in_switch_time(steps, full_bytes, group)
    return min(_by_protocol(algorithm, steps, full_bytes, group), key=lambda time: time.seconds)


def _by_protocol(algorithm: str, steps: Steps, full_bytes: float, group: CommGroup) -> Iterator[CommTime]:
    """Latencies added, and the bytes at what each protocol, the tree and the filling pipeline leave."""
    ring, tree = algorithm == "ring", algorithm == "double_tree"
    filling = _network_fill(full_bytes, group) if algorithm in _PIPELINED else 1.0
    for protocol, hops in zip(protocols(), _hop_latencies(steps.hops, tree, group), strict=True):
        rounds = protocol.ring_rounds(full_bytes, group.size) if ring else 1.0
        share = protocol.tree_share(full_bytes) if tree else 1.0
        yield CommTime(
            launch_latency() + protocol.kernel_latency + hops * rounds + steps.lockstep,
            steps.transfer / (protocol.bandwidth * share) * filling,
        )


@lru_cache(maxsize=by.GROUPS)
def _hop_latencies(hops: tuple[float, ...], tree: bool, group: CommGroup) -> tuple[float, ...]:
    """Of all hops, by protocol [s]."""
    levels = group.active_levels
    return tuple(
        _dot(hops, [protocol.hop_latency(level, tree) for level in levels]) for protocol in protocols()
    )


def _in_switch_time(steps: Steps, full_bytes: float, group: CommGroup) -> CommTime:
    """Only with the Simple protocol; between switches as a tree (the tuner says so of Blackwell alone)."""
    switch, simple = in_switch_constants(), protocols()[0]
    levels = group.active_levels
    hops = (switch.hops * steps.hops[0], *steps.hops[1:])
    between = len(levels) > 1
    share = levels[0].in_switch_efficiency or switch.bandwidth
    bandwidth = share * (simple.tree_share(full_bytes) if between else 1.0)
    filling = _network_fill(full_bytes, group) if between else fill("switch").factor(full_bytes)
    latency = launch_latency() + _dot(hops, [level.latency for level in levels])
    return CommTime(latency, steps.transfer / bandwidth * filling)


def _network_fill(full_bytes: float, group: CommGroup) -> float:
    """Factor on the time of the bytes where the group crosses a network between nodes."""
    levels = group.active_levels
    if levels[-1].kind not in NETWORKS:
        return 1.0
    inside = prod(level.size for level in levels if level.kind not in NETWORKS)
    return fill("network").factor(full_bytes, inside)


def _dot(counts: Sequence[float], seconds: Sequence[float]) -> float:
    return sum(count * each for count, each in zip(counts, seconds, strict=True))
