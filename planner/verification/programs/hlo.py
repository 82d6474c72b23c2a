"""Collectives of a compiled XLA program, counted from its text: how often each runs and what a device sends.

A loop's body counts as often as the compiler says that it runs. Asynchronous collectives count once, at their start.

Source: XLA, operation semantics (openxla.org/xla/operation_semantics) and the text form of HLO modules.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

BYTES: Mapping[str, float] = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8, "f8e4m3fn": 1, "f8e5m2": 1, "s4": 0.5, "u4": 0.5,
}  # fmt: skip

SENT: Mapping[str, Callable[[float, int], float]] = {
    "all_gather": lambda operand, n: (n - 1) * operand,
    "reduce_scatter": lambda operand, n: (n - 1) / n * operand,
    "all_reduce": lambda operand, n: 2 * (n - 1) / n * operand,
    "all_to_all": lambda operand, n: (n - 1) / n * operand,
    "p2p": lambda operand, n: operand,
}
"""Kind -> bytes that a device of a group of ``n`` sends, from those of its operands."""

KINDS: Mapping[str, str] = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "p2p",
}

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|body|to_apply|branch_computations)=\{?(%?[\w.-]+(?:, ?%?[\w.-]+)*)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_CONSTANT = re.compile(r" constant\((\d+)\)")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_OPERAND = re.compile(r"%([\w.-]+)")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_NAMED = re.compile(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")


class Total(NamedTuple):
    """What all collectives of a kind do in one run of the program, on one device."""

    times: float = 0.0
    sent_bytes: float = 0.0


class _Collective(NamedTuple):
    kind: str
    sent_bytes: float
    times: float


def shape_bytes(text: str) -> float:
    """Bytes of all arrays in a shape, a tuple or not."""
    return sum(
        BYTES.get(dtype, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _SHAPE.findall(text)
    )


def group_size(line: str, devices: int) -> int:
    """Devices of one group of a collective; all where it names none."""
    if iota := _IOTA.search(line):
        return int(iota.group(2))
    if named := _NAMED.search(line):
        sizes = dict(_AXIS.findall(named.group(1)))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named.group(2)))
    listed = _LISTED.search(line)
    return len(listed.group(1).split(",")) if listed and listed.group(1) else devices


def collectives(text: str, devices: int) -> dict[str, Total]:
    """Kind -> `Total` of a compiled module's ``text``.

    The compiler repeats a collective's channel where it cuts it into a start and steps beside computation: those
    are one.
    """
    bodies, entry = _computations(text)
    found: dict[str, _Collective] = {}

    def walk(name: str, times: float) -> None:
        sizes: dict[str, float] = {}
        for line in bodies.get(name, ()):
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            sizes[match.group(1)] = shape_bytes(match.group(2))
            kind = KINDS.get(match.group(3).removesuffix("-start"))
            if kind is not None:
                channel = _CHANNEL.search(line)
                key = channel.group(1) if channel else f"{name}.{match.group(1)}"
                sent = _sent(kind, match, sizes, group_size(line, devices))
                found[key] = max(found.get(key, _Collective(kind, sent, 0)), _Collective(kind, sent, times))
            for callee, trips in _calls(match.group(3), line, bodies):
                walk(callee, times * trips)

    walk(entry, 1)
    totals: dict[str, Total] = {}
    for kind, sent, times in found.values():
        before, total = totals.get(kind, Total())
        totals[kind] = Total(before + times, total + times * sent)
    return totals


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    bodies: dict[str, list[str]] = {}
    entry = current = ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            current = match.group(1)
            bodies[current] = []
            entry = current if line.startswith("ENTRY") else entry
        elif current:
            bodies[current].append(line)
    return bodies, entry


def _sent(kind: str, match: re.Match[str], sizes: dict[str, float], group: int) -> float:
    operands = match.group(4).partition(")")[0]
    given = shape_bytes(operands) or sum(sizes.get(n, 0) for n in _OPERAND.findall(operands))
    return SENT[kind](given, group)


def _calls(opcode: str, line: str, bodies: Mapping[str, list[str]]) -> list[tuple[str, float]]:
    """Computations that an instruction runs, and how often."""
    if opcode not in ("while", "fusion", "call", "conditional", "async-start"):
        return []
    times = _trips(line, bodies) if opcode == "while" else 1.0
    callees = (name for called in _CALLED.findall(line) for name in called.split(","))
    return [(callee.strip().lstrip("%"), times) for callee in callees]


def _trips(line: str, bodies: Mapping[str, list[str]]) -> float:
    """How often a loop runs: as noted, or the constant with which its condition compares a counter from 0."""
    if noted := _TRIPS.search(line):
        return float(noted.group(1))
    condition = _CONDITION.search(line)
    lines = bodies.get(condition.group(1), []) if condition else []
    constants = [int(n) for text in lines for n in _CONSTANT.findall(text)]
    return float(max(constants, default=1))
