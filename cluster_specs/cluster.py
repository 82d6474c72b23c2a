"""Records of hardware: devices, links, clusters.

Values are SI inside (bytes, bytes/s, seconds, FLOP/s); the files that they are read from carry units.
Every number of a shipped file has an entry in ``sources``.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from cluster_specs.record import Given, Record
from cluster_specs.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Watts

LinkKind = Literal["nvlink", "pcie", "xgmi", "infiniband", "ethernet", "ici", "dcn"]


class Efficiency(Record):
    """Sustained fractions of a device's peaks, per architecture and never per model."""

    matmul: float = Field(gt=0, le=1)
    """Fraction of peak FLOP/s that a large, well-shaped matrix product sustains."""
    attention_forward: float = Field(gt=0, le=1)
    """Fraction of peak FLOP/s that a fused attention forward sustains on long sequences."""
    attention_backward: float = Field(gt=0, le=1)
    """Fraction of peak FLOP/s that a fused attention backward sustains."""
    memory: float = Field(gt=0, le=1)
    """Fraction of memory bandwidth that a streaming kernel sustains."""
    unaligned: float | None = Field(default=None, gt=0, le=1)
    """Share of ``matmul`` that is left where rows of an operand are not multiples of 16 bytes and the generation's own
    kernels do not take them; None: it has kernels for any row (``unaligned_share`` of the cost models)."""
    fp8: float = Field(default=1, gt=0, le=1)
    """Share of ``matmul`` that fp8 products keep."""
    fp4: float = Field(default=1, gt=0, le=1)
    """Share of ``matmul`` that fp4 products keep."""
    fp32: float = Field(default=1, gt=0, le=2)
    """Share of ``matmul`` that fp32 products keep, which other units multiply: these may come nearer their peak."""
    sustained: float = Field(default=1, gt=0, le=1)
    """Share of the arithmetic rates that whole training steps keep: clocks under the power limit, real operands."""


class DeviceSpec(Given):
    """One accelerator as a framework sees it (a TPU v3 core, an MI250X die, a whole H100)."""

    name: str
    kind: Literal["gpu", "tpu"]
    vendor: str
    peak_flops_per_second: Mapping[str, Annotated[FlopsPerSecond, Field(gt=0)]] = Field(min_length=1)
    """Dense peak by data type: bf16, fp16, fp8, tf32, fp32, ..."""
    memory: Bytes = Field(gt=0)
    """Device memory that the driver reports as total [bytes]."""
    memory_bandwidth: BytesPerSecond = Field(gt=0)
    host_bandwidth: BytesPerSecond | None = Field(default=None, gt=0)
    """Device to host, one direction [bytes/s]; None if unknown."""
    compute_units: int = Field(gt=0)
    """Streaming multiprocessors, compute units or matrix units: one output tile each at a time."""
    tile: tuple[PositiveInt, PositiveInt] = (128, 256)
    """Rows and columns of the output tile that the usual matrix kernels compute per unit."""
    tile_fill: Seconds | None = Field(default=None, ge=0)
    """Time of each output tile in which its unit multiplies nothing, as operands arrive and results leave [s]; None:
    not told apart from the rate."""
    lanes: int = Field(default=1, gt=0)
    """Elements to a multiple of which the innermost dim of an array is padded in memory."""
    channels: int = Field(default=24, gt=0)
    """Channels of a communicator over its links, each with buffers of its own; those of A100 and H100 unless said."""
    exponentials: float | None = Field(default=None, gt=0)
    """Exponentials of all units [1/s], which a fused attention computes beside its products; None: not told apart."""
    kernel_launch: Seconds = Field(ge=0)
    """Least time between the starts of two dependent kernels [s]."""
    power: Watts | None = Field(default=None, gt=0)
    """Board power limit [W]."""
    efficiency: Efficiency


FASTEST = 1e15
"""Bytes per second that no link has: a thousand times those of NVLink 5 (0.9e12 in one direction), so that a sweep may
still ask for any multiple that makes sense."""


class LinkBehaviour(Record):
    """How a kind of link behaves, whatever its width and whoever it joins."""

    kind: LinkKind
    latency: Seconds = Field(ge=0)
    """Of one hop of a collective's algorithm, software included [s]."""
    efficiency: float = Field(gt=0, le=1)
    """Fraction of the bandwidth that large collectives reach."""
    contention: float = Field(default=0, ge=0, le=1)
    """Exponent ``c`` of colliding routes: over ``n`` nodes trees and halving keep ``(n / 2)^-c`` of the bandwidth."""
    ring_step: Seconds = Field(default=0, ge=0)
    """Time that each step of a ring takes more where the ring crosses this network, whatever its size [s]."""
    exchange_message: Bytes = Field(default=0, ge=0)
    """Least message to each peer with which all-to-alls have all of the bandwidth [bytes]; 0: any."""
    exchange_halving: float = Field(default=0, ge=0, le=1)
    """Share of the bandwidth that every halving of their messages below that takes, until half is left."""
    in_switch_reduction: bool = False
    """The switch can sum (NVLink SHARP), so that all-reduce moves half the bytes."""
    in_switch_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the bandwidth that its sums reach; None: as in the first switches that could."""
    dispatch_efficiency: float | None = Field(default=None, gt=0, le=1)
    """Share of the bandwidth that kernels reach that send tokens to experts, each once to a rank; None: as others."""
    deepep_efficiency: float | None = Field(default=None, gt=0, le=1)
    """The same of DeepEP's on the multiprocessors that it takes by itself; None: as ``dispatch_efficiency``."""
    full_mesh: bool = False
    """Every pair has its own cable, so ``k`` peers have (k - 1) / (devices - 1) of the bandwidth."""


class LinkSpec(LinkBehaviour):
    """One level of the network, as one device sees it."""

    name: str
    devices: int = Field(gt=0)
    """Devices joined by this level, counting everything inside it."""
    bandwidth: BytesPerSecond = Field(gt=0, le=FASTEST)
    """Per device, one direction, while all devices do the same [bytes/s]."""
    devices_per_card: int = Field(default=1, gt=0)
    """Devices that share one network card: while the others are silent, one has the bandwidth of all."""


class TorusSpec(Record):
    """A torus or mesh of point-to-point links, with a chip of one or more devices at each point."""

    shape: tuple[int, ...] = Field(min_length=1)
    """Points (chips) along each torus dimension, outermost first."""
    wrap: tuple[bool, ...]
    """Which dimensions close into a ring."""
    bandwidth: BytesPerSecond = Field(gt=0, le=FASTEST)
    """Of one link, one direction [bytes/s]."""
    latency: Seconds = Field(ge=0)
    """Of one hop [s]."""
    efficiency: float = Field(gt=0, le=1)
    joint_efficiency: float = Field(default=1.0, gt=0, le=1)
    """Share of that which is left where a collective uses rings along several dimensions at once."""
    devices_per_point: int = Field(default=1, gt=0)
    """Devices that a framework sees per chip; they share its links and are the innermost ranks."""
    point_bandwidth: BytesPerSecond | None = Field(default=None, gt=0, le=FASTEST)
    """Between the devices of one chip, one direction [bytes/s]; None: as ``bandwidth``."""

    @property
    def num_devices(self) -> int:
        """All devices of one torus."""
        return math.prod(self.shape) * self.devices_per_point


class HostSpec(Record):
    """The machine that a node's devices hang on."""

    memory: Bytes | None = Field(default=None, gt=0)
    """Host memory of one node [bytes]."""
    memory_bandwidth: BytesPerSecond | None = Field(default=None, gt=0)
    """Peak of all its memory channels, of one node [bytes/s]; None if unknown."""


PriceKind = Literal["on-demand", "reserved", "spot"]


class PriceSpec(Given):
    """What one device costs for an hour, in each way in which it is sold."""

    per_device_hour: float = Field(ge=0)
    """By the ``kind``; on demand, unless the file says otherwise."""
    currency: str = "USD"
    kind: PriceKind = "on-demand"
    reserved_per_device_hour: float | None = Field(default=None, ge=0)
    """Booked in advance; None: not known."""
    spot_per_device_hour: float | None = Field(default=None, ge=0)
    """Can be taken away at any time; None: not known."""
    date: str | None = None
    """Day on which the list was read or published (ISO 8601)."""

    def of(self, kind: PriceKind) -> float | None:
        """Price of one device for an hour in this way of buying; None: not known."""
        if kind == self.kind:
            return self.per_device_hour
        return {
            "on-demand": None,
            "reserved": self.reserved_per_device_hour,
            "spot": self.spot_per_device_hour,
        }[kind]


MOST_DEVICES = 10**8
"""Of a cluster: larger numbers are taken for mistakes, as to find what divides them takes for ever."""


class ClusterSpec(Record):
    """A cluster of equal nodes: ``links`` are tiers, innermost first; a TPU slice has a ``torus`` as well.

    Ranks are numbered innermost first: ranks of one node are neighbours, then nodes, then slices.
    """

    name: str
    device: DeviceSpec
    nodes: int = Field(gt=0)
    """Nodes (GPU boxes, NVL72 racks) or TPU slices."""
    devices_per_node: int = Field(gt=0)
    links: tuple[LinkSpec, ...] = ()
    """Tiers, innermost first; the last joins all devices. Empty for one device or one torus."""
    torus: TorusSpec | None = None
    """The network inside a node of a TPU slice; its size equals ``devices_per_node``."""
    host: HostSpec = HostSpec()
    price: PriceSpec | None = None
    others: tuple["ClusterSpec", ...] = ()
    """More pools of nodes beside this one, each equal in itself; their ranks follow this one's."""
    between: LinkSpec | None = None
    """What joins the pools, where there are others."""
    sources: Mapping[str, str] = {}
    """Dotted field path, or a pattern of one, to where its number comes from."""

    @property
    def num_devices(self) -> int:
        """All devices of the cluster, other pools included."""
        return self.nodes * self.devices_per_node + sum(pool.num_devices for pool in self.others)

    @property
    def pools(self) -> "tuple[ClusterSpec, ...]":
        """The parts of equal nodes, in the order of their ranks; the cluster itself where it is one."""
        if not self.others:
            return (self,)
        return (self.model_copy(update={"others": (), "between": None}), *self.others)

    @model_validator(mode="after")
    def _consistent(self) -> "ClusterSpec":
        if self.num_devices > MOST_DEVICES:
            raise ValueError(f"a cluster has at most {MOST_DEVICES:,} devices, got {self.num_devices:,}")
        if self.torus is not None:
            self._check_torus(self.torus)
        self._check_links()
        self._check_pools()
        return self

    def _check_torus(self, torus: TorusSpec) -> None:
        if torus.num_devices != self.devices_per_node:
            shape = "x".join(map(str, torus.shape))
            raise ValueError(f"torus {shape} has {torus.num_devices} devices, not {self.devices_per_node}")
        if len(torus.wrap) != len(torus.shape):
            raise ValueError("torus.wrap needs one entry per dimension of torus.shape")

    def _check_links(self) -> None:
        reach = self.devices_per_node if self.torus is not None else 1
        for link in self.links:
            if link.devices % reach:
                raise ValueError(
                    f"links.{link.name} joins {link.devices} devices, not a multiple of the {reach} "
                    "of the tier inside it; order links innermost first"
                )
            reach = link.devices
        own = self.nodes * self.devices_per_node
        if reach < own:
            raise ValueError(f"links join {reach} of {own} devices: add the outermost tier")

    def _check_pools(self) -> None:
        if bool(self.others) != (self.between is not None):
            raise ValueError("`others` and `between` go together: pools, and the link that joins them")
        if any(pool.others for pool in self.others):
            raise ValueError("a pool cannot have pools of its own: list all of them in one cluster")
