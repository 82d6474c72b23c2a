"""How a library moves the bytes of a collective: protocols that trade bandwidth for latency.

The constants are data, with their sources: ``cost_models/data/protocols.toml``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log2

from cluster_specs.errors import UnknownName
from cluster_specs.topology import Level
from cost_models.constants import constants

LINK_CLASSES: Mapping[str, str] = {
    "nvlink": "nvlink",
    "xgmi": "nvlink",
    "pcie": "pcie",
    "infiniband": "infiniband",
    "ethernet": "ethernet",
}
"""Link kind to the class of links that the constants distinguish; xGMI is taken as NVLink."""

TREE_FIRST_BYTES = 64
"""Array size of the first entry of ``Protocol.tree``."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to move chunks: shares of a level's latency and bandwidth, and a fixed start."""

    name: str
    kernel_latency: float
    """Once per collective [s]."""
    bandwidth: float
    """Share of the links' bandwidth."""
    hop: Mapping[str, float]
    """Share of a level's hop latency in a ring, by class of link."""
    tree_hop: Mapping[str, float]
    """The same, in a tree."""
    slices: float
    """Parts in which a chunk is handed on: a ring pays its hops once for each in the last round of chunks."""
    round_bytes: float
    """What all channels carry of one rank's share in one round of a ring [bytes]."""

    tree: tuple[float, ...]
    """Share of the bandwidth that a double tree keeps, for 64 bytes and each doubling of them."""

    def tree_share(self, full_bytes: float) -> float:
        """Share kept by a double tree for an array of this size, between its neighbours in the table."""
        place = min(max(log2(full_bytes / TREE_FIRST_BYTES), 0.0), len(self.tree) - 1)
        below = min(int(place), len(self.tree) - 2)
        return self.tree[below] + (place - below) * (self.tree[below + 1] - self.tree[below])

    def hop_latency(self, level: Level, tree: bool = False) -> float:
        """Of one hop at a level [s]; raises ``UnknownName`` for a kind of link without constants."""
        if level.kind not in LINK_CLASSES:
            raise UnknownName("link kind", level.kind, LINK_CLASSES)
        shares = self.tree_hop if tree else self.hop
        return level.latency * shares[LINK_CLASSES[level.kind]]

    def ring_rounds(self, full_bytes: float, ranks: int) -> float:
        """Times that each hop of a ring is paid: once per round of chunks, and for the slices of the last."""
        return self.slices - 1 + max(1.0, full_bytes / (ranks * self.round_bytes))


@dataclass(frozen=True, slots=True)
class Fill:
    """What a pipeline of chunks takes longer than its bytes, until its first chunks are through.

    Chunks grow with the array up to a largest size; so does the time in which one part of the way waits for
    another.
    """

    share: float
    """Of the time of the bytes, while chunks grow."""
    num_bytes: float
    """Array from which on chunks are as large as they get [bytes]."""

    def factor(self, full_bytes: float, ports: int = 1) -> float:
        """Time over that of the bytes alone; ``ports`` of a node carry as many chunks at once."""
        return 1.0 + self.share * min(1.0, ports * self.num_bytes / full_bytes)


@dataclass(frozen=True, slots=True)
class InSwitch:
    """Sums made by a switch: hops' worth of latency, and share of the bandwidth where the link says nothing."""

    hops: float
    bandwidth: float


@cache
def protocols() -> tuple[Protocol, ...]:
    """The protocols of NCCL, which RCCL shares: simple, ll128, ll."""
    return tuple(Protocol(**row | {"tree": tuple(row["tree"])}) for row in constants("protocols")["protocol"])


@cache
def launch_latency() -> float:
    """Before any protocol starts: enqueueing, and waiting for the last rank [s]."""
    seconds: float = constants("protocols")["launch"]["latency"]
    return seconds


@cache
def fill(where: str) -> Fill:
    """Of chunks between nodes (``network``), or through a summing switch (``switch``)."""
    return Fill(**constants("protocols")[f"{where}_fill"])


@cache
def in_switch_constants() -> InSwitch:
    """Of reductions in NVLink switches."""
    return InSwitch(**constants("protocols")["in_switch"])
