"""Rings of sends that XLA makes of a gather or a scatter beside a product (windowed einsum), counted as what they do.

In a ring each device passes parts to its neighbours, both ways at once, while it multiplies those that it has. Of ``n``
devices a gather or a scatter needs ``n - 1`` parts sent; XLA's loops send ``n + 1``, as a ring of sums starts with two
parts that are zero and one of gathers passes two on that nobody reads.

Source: Wang et al., Overlap communication with dependent computation via decomposition, ASPLOS 2023; programs compiled
for TPU topologies, whose loops are named after what they do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

LOOPS: Mapping[str, str] = {
    "windowed_dot_general_body_ag": "all_gather",
    "windowed_dot_general_body_rs": "reduce_scatter",
}
"""Name of the loop around a ring -> what the ring does."""

_PAIRS = re.compile(r"source_target_pairs=\{(\{.*?\})\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_MADE = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = .*? ([a-z][\w-]*)\(([^)]*)\)")
_OPERAND = re.compile(r"%([\w.-]+)")

SENT = ("collective-permute", "collective-permute-done")
"""Instructions whose result is what a neighbour sent."""
HANDED_ON = ("get-tuple-element", "bitcast", "copy", "copy-start", "copy-done")
"""Instructions whose result is their operand."""


class Send(NamedTuple):
    """One instruction by which every device of a ring sends a part to its neighbour."""

    scope: str
    """Names of the functions around it: sends of one ring share them."""
    part: str
    """Type and shape."""
    part_bytes: float
    times: float
    devices: int
    """Of the ring."""
    does: str
    """``all_gather``, ``reduce_scatter``, or "" where the instruction alone does not say."""


class Counted(NamedTuple):
    """What rings of one product come to."""

    kind: str
    times: float
    sent_bytes: float
    """In all."""


def ring_devices(line: str) -> int:
    """Devices that a permute passes its operand around; 0 where some have no one to send to."""
    found = _PAIRS.search(line)
    target = dict(_PAIR.findall(found.group(1))) if found else {}
    if not target:
        return 0
    first = at = next(iter(target))
    for count in range(1, len(target) + 1):
        at = target.get(at, "")
        if at == first:
            return count if len(target) % count == 0 and count > 1 else 0
    return 0


def does(computation: str, lines: Iterable[str], operand: str, scope: str) -> str:
    """What a ring's send is part of: by the loop it is in; else a scatter, if it sends a sum with what came before."""
    for name, kind in LOOPS.items():
        if name in computation:
            return kind
    if not scope.endswith("dot_general"):
        return ""
    made = {m.group(1): (m.group(2), _OPERAND.findall(m.group(3))) for m in map(_MADE.match, lines) if m}

    def source(name: str) -> tuple[str, list[str]]:
        opcode, operands = made.get(name, ("", []))
        return source(operands[0]) if opcode in HANDED_ON and operands else (opcode, operands)

    opcode, operands = source(operand)
    summed = opcode in ("fusion", "add") and any(source(o)[0] in SENT for o in operands)
    return "reduce_scatter" if summed else ""


def counted(sends: Iterable[Send]) -> Iterator[Counted]:
    """Gathers and scatters that the sends come to; what is sent beyond them is ``p2p``."""
    rings: dict[tuple[str, str, int], list[Send]] = {}
    for send in sends:
        rings.setdefault((send.scope, send.part, send.devices), []).append(send)
    for (scope, _, devices), own in rings.items():
        part = own[0].part_bytes
        total = sum(send.times for send in own)
        once = min(send.times for send in own)
        needed = devices - 1
        number = once * (total / once // needed) if devices and scope.endswith("dot_general") else 0.0
        kind = "reduce_scatter" if any(s.does == "reduce_scatter" for s in own) else "all_gather"
        if number:
            yield Counted(kind, number, number * needed * part)
        if total > number * needed:
            beyond = total - number * needed
            yield Counted("p2p", beyond, beyond * part)
