"""Seconds of linear recurrences over a sequence: gated delta rule and state-space dual, as kernels in chunks.

A head has a state of keys x values. Each token decays it, adds to it, and reads it; kernels do so for a chunk of tokens
at once, with products of matrices. No run with such layers was measured: rates are those of a roofline.

Source: ``data/scans.toml``; Dao and Gu, arXiv:2405.21060; Yang et al., arXiv:2412.06464.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, Literal

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import UnknownName
from cost_models.constants import constants
from cost_models.costs import ComputeTime, kernel_time
from cost_models.roofline import element_bytes, memory_seconds, product_peak

RULES = ("delta", "ssd")

Way = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class ScanShape:
    """One call on one device: what it holds of sequences and heads."""

    tokens: float
    groups: float
    """Heads of keys and queries."""
    heads: float
    """Of values, each with a state."""
    key_dim: float
    value_dim: float
    chunk: float
    sequences: float = 1.0


PRODUCTS: Mapping[str, Callable[[ScanShape], float]] = MappingProxyType(
    {
        "states": lambda s: 2 * s.heads * s.key_dim * s.value_dim,
        "key_pairs": lambda s: 2 * s.heads * s.chunk * s.key_dim,
        "value_pairs": lambda s: 2 * s.heads * s.chunk * s.value_dim,
        "group_pairs": lambda s: 2 * s.groups * s.chunk * s.key_dim,
        "pairs": lambda s: 2 * s.heads * s.chunk * s.chunk,
    }
)
"""FLOPs for a token of one product: with states; of all pairs of a chunk; of the pairs' matrices themselves."""

ARRAYS: Mapping[str, Callable[[ScanShape], float]] = MappingProxyType(
    {
        "keys": lambda s: s.groups * s.key_dim,
        "head_keys": lambda s: s.heads * s.key_dim,
        "values": lambda s: s.heads * s.value_dim,
        "states": lambda s: s.heads * s.key_dim * s.value_dim / s.chunk,
        "pairs": lambda s: s.heads * s.chunk,
        "group_pairs": lambda s: s.groups * s.chunk,
        "scalars": lambda s: s.heads,
    }
)
"""Elements for a token of one array; one state is kept for a chunk."""

UPDATES: Mapping[str, int] = MappingProxyType({"delta": 3, "ssd": 2})
"""Products with the state that the recurrence itself has for a token: what it adds and what it reads; the delta rule
reads first what is there of the key.

Source: arXiv:2412.06464, equation 10; arXiv:2405.21060, equation 1.
"""


def scan_flops(rule: str, shape: ScanShape, way: Way = "forward") -> float:
    """Of the kernels' products, in chunks. Raises ``UnknownName`` for the rule."""
    return shape.tokens * sum(_flops(kernel, shape) for kernel in _facts(rule)[way])


def recurrence_flops(rule: str, shape: ScanShape) -> float:
    """Of the recurrence as it is defined, forward: what a model asks for, whatever the chunk."""
    if rule not in UPDATES:
        raise UnknownName("scan", rule, RULES)
    return shape.tokens * UPDATES[rule] * PRODUCTS["states"](shape)


def scan_seconds(
    rule: str, shape: ScanShape, device: DeviceSpec, dtype: str, way: Way = "forward"
) -> ComputeTime:
    """Kernels of one direction, one after the other [s]: each a roofline of its products and its traffic.

    Where chunks go in order there is work for a unit for each head and block of values only; others idle.
    Raises ``UnknownName`` for the rule, ``InputError`` where the device has no rate for ``dtype``.
    """
    facts, rate = _facts(rule), product_peak(device, dtype) * device.efficiency.matmul
    units = shape.sequences * shape.heads * ceil(shape.value_dim / facts["value_block"])
    busy = min(1.0, units / device.compute_units)
    total = ComputeTime()
    for kernel in facts[way]:
        share = busy if kernel.get("in_order") else 1.0
        arithmetic = shape.tokens * _flops(kernel, shape) / (rate * share)
        traffic = shape.tokens * _bytes(kernel, shape, dtype)
        total += kernel_time(arithmetic, memory_seconds(traffic, device), device.kernel_launch)
    return total


def held_bytes(rule: str, shape: ScanShape, dtype: str) -> float:
    """What the backward has made at its fullest, gradients of what it read included [bytes]."""
    return shape.tokens * _bytes(_facts(rule)["held"], shape, dtype)


def _facts(rule: str) -> Mapping[str, Any]:
    if rule not in RULES:
        raise UnknownName("scan", rule, RULES)
    facts: Mapping[str, Any] = constants("scans")[rule]
    return facts


def _flops(kernel: Mapping[str, Any], shape: ScanShape) -> float:
    return _sum(kernel.get("products", {}).items(), PRODUCTS, shape)


def _bytes(kernel: Mapping[str, Any], shape: ScanShape, dtype: str) -> float:
    moved = _sum(kernel.get("moved", {}).items(), ARRAYS, shape) * element_bytes(dtype)
    return moved + _sum(kernel.get("wide", {}).items(), ARRAYS, shape) * element_bytes("fp32")


def _sum(
    times: Iterable[tuple[str, float]], sizes: Mapping[str, Callable[[ScanShape], float]], shape: ScanShape
) -> float:
    return sum(count * sizes[name](shape) for name, count in times)
