"""Collectives of a compiled XLA program, counted from its text: how often each runs and what a device sends.

A loop's body counts as often as the compiler says that it runs. Asynchronous collectives count once, at their start.
TPU compilers write a reduce-scatter as a fusion of an all-reduce with the slice that a device keeps of it, and gathers
and scatters beside products as `rings`.

Source: XLA, operation semantics (openxla.org/xla/operation_semantics) and the text form of HLO modules.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from planner.errors import InputError
from planner.verification.programs.rings import Send, counted, does, ring_devices
from planner.verification.programs.rounding import flow_of, is_rounded

BYTES: Mapping[str, float] = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8, "c64": 8, "c128": 16, "f8e4m3fn": 1, "f8e5m2": 1, "s4": 0.5, "u4": 0.5,
    "f8e4m3": 1, "f8e3m4": 1, "f8e4m3fnuz": 1, "f8e5m2fnuz": 1, "f8e4m3b11fnuz": 1, "f8e8m0fnu": 1, "f4e2m1fn": 0.5,
    "s2": 0.25, "u2": 0.25, "token": 0, "opaque": 0,
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

WRITTEN = "/shard_map/"
"""In the scope of collectives that the program writes itself."""

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"(?:calls|body|to_apply|(?:branch|true|false)_computations?)=\{?(%?[\w.-]+(?:, ?%?[\w.-]+)*)"
)
COUNTS = frozenset({"bitcast", "compare", "constant", "copy", "fusion", "get-tuple-element", "parameter"})
"""What the condition of a loop does that compares a counter with a constant, and nothing else."""

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_BODY = re.compile(r"body=%?([\w.-]+)")
_CONSTANT = re.compile(r" constant\((\d+)\)")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_OPERAND = re.compile(r"%([\w.-]+)")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_NAMED = re.compile(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*?)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_COUNTER = re.compile(r" get-tuple-element\(.*\), index=(\d+)")
_SUM = re.compile(r" add\((.*?)\)")
_SCOPE = re.compile(r'op_name="([^"]*)"')


class Total(NamedTuple):
    """What all collectives of a kind do in one run of the program, on one device."""

    times: float = 0.0
    sent_bytes: float = 0.0


class Collective(NamedTuple):
    """One collective of the program, on one device."""

    kind: str
    sent_bytes: float
    """Each time."""
    times: float
    full_bytes: float = 0.0
    """The array that it gathers, sums or exchanges: what all parts make for a gather, else the operand."""
    scope: str = ""
    """Names of the functions around it, or around the fusion that it is in, as ``jax.named_scope`` gives them."""
    ring: Send | None = None
    """The same, as part of a ring of sends."""
    types: tuple[str, ...] = ()
    """Of the elements of what it makes."""
    rounded: bool = False
    """What it makes has no more than 16 bits, though it was sent wider."""


def shape_bytes(text: str) -> float:
    """Bytes of all arrays in a shape, a tuple or not; raises ``InputError`` for a type that is not known."""
    return sum(
        _entry_bytes(dtype) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _SHAPE.findall(text)
    )


def _entry_bytes(dtype: str) -> float:
    if dtype not in BYTES:
        raise InputError(f"the compiled program has arrays of {dtype}; known are {', '.join(BYTES)}")
    return BYTES[dtype]


def group_size(line: str, devices: int) -> int:
    """Devices of one group of a collective; all where it names none."""
    if iota := _IOTA.search(line):
        return int(iota.group(2))
    if named := _NAMED.search(line):
        sizes = dict(_AXIS.findall(named.group(1)))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named.group(2)))
    listed = _LISTED.search(line)
    return len(listed.group(1).split(",")) if listed and listed.group(1) else devices


def collectives(text: str, devices: int, scope: str = "") -> dict[str, Total]:
    """Kind -> `Total` of a compiled module's ``text``; rings count as the gathers and scatters that they are.

    Only of what has names of functions around it in which ``scope``, a regular expression, is found.
    """
    totals: dict[str, Total] = {}
    listed = [made for made in listed_collectives(text, devices) if re.search(scope, made.scope)]
    plain = [(made.kind, made.times, made.times * made.sent_bytes) for made in listed if made.ring is None]
    for kind, times, sent_bytes in (*plain, *counted(made.ring for made in listed if made.ring)):
        before, total = totals.get(kind, Total())
        totals[kind] = Total(before + times, total + sent_bytes)
    return totals


def listed_collectives(text: str, devices: int, trips: float = 1.0) -> list[Collective]:
    """Every collective of a compiled module's ``text``, in which loops that end on a condition run ``trips`` times.

    The compiler repeats a collective's channel where it cuts it into a start and steps beside computation: those
    are one, which runs as often as what runs least, as steps may be in a loop within the loop of the start. A sum that
    keeps a part and one that does not are two, even so, and so are sums of unlike sizes. Those that the program writes
    itself, in a ``shard_map``, have one channel for all, and so have sends to a neighbour that are no ring (rows beyond
    a rank's own): each counts.
    """
    bodies, entry = _computations(text)
    flow = flow_of(bodies)
    found: dict[str, Collective] = {}

    def walk(name: str, times: float, fused: bool = False, around: str = "") -> None:
        sizes: dict[str, float] = {}
        scattered = _scattered(bodies.get(name, ())) if fused else ""
        for line in bodies.get(name, ()):
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            sizes[match.group(1)] = shape_bytes(match.group(2))
            kind = KINDS.get(match.group(3).removesuffix("-start"))
            if kind is not None:
                kind = "reduce_scatter" if match.group(1) == scattered else kind
                channel = _CHANNEL.search(line)
                made = _collective(kind, match, sizes, group_size(line, devices), times)
                rounded = is_rounded(flow, name, match.group(1))
                made = made._replace(scope=_inner(made.scope, around), rounded=rounded)
                made = made._replace(ring=_send(made, match, name, bodies[name]))
                key = f"{name}.{match.group(1)}"
                passed_on = kind == "p2p" and made.ring is None
                if channel is not None and WRITTEN not in made.scope and not passed_on:
                    key = f"{kind} {channel.group(1)} {made.full_bytes}"
                found[key] = min(found.get(key, made), made, key=lambda c: (c.times, -c.sent_bytes))
            for callee, often, part in _calls(match.group(3), line, bodies, trips):
                within = _inner(_scope(line), around) + part
                walk(callee, times * often, match.group(3) == "fusion", within)

    walk(entry, 1)
    return list(found.values())


def _scattered(lines: Iterable[str]) -> str:
    """What a fusion keeps only a slice of, or of each array of it; "" if it keeps all."""
    made: dict[str, re.Match[str]] = {}
    root = ""
    for line in lines:
        if match := _INSTRUCTION.match(line):
            made[match.group(1)] = match
            root = match.group(1) if line.lstrip().startswith("ROOT") else root

    def source(name: str, opcode: str) -> str:
        """The first operand of an instruction of this kind; "" of another."""
        match = made.get(name)
        found = _OPERAND.findall(match.group(4)) if match and match.group(3) == opcode else []
        return found[0] if found else ""

    together = root in made and made[root].group(3) == "tuple"
    results = _OPERAND.findall(made[root].group(4).partition(")")[0]) if together else [root]
    sliced = [source(name, "dynamic-slice") for name in results]
    summed = {source(name, "get-tuple-element") or name for name in sliced}
    return summed.pop() if len(summed) == 1 else ""


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


def _collective(
    kind: str, match: re.Match[str], sizes: Mapping[str, float], group: int, times: float
) -> Collective:
    operands = match.group(4).partition(")")[0]
    given = shape_bytes(operands) or sum(sizes.get(n, 0) for n in _OPERAND.findall(operands))
    full = given * (group if kind == "all_gather" else 1)
    full *= group > 1  # a device alone exchanges nothing
    types = tuple(sorted({dtype for dtype, _ in _SHAPE.findall(match.group(2))}))
    return Collective(kind, SENT[kind](given, group), times, full, _scope(match.group(4)), types=types)


def _scope(line: str) -> str:
    found = _SCOPE.search(line)
    return found.group(1) if found else ""


def _inner(scope: str, around: str) -> str:
    """The scope of an instruction, or that of its caller where the compiler has left no more than a name."""
    return scope if "/" in scope else around


def _send(made: Collective, match: re.Match[str], computation: str, lines: Iterable[str]) -> Send | None:
    """A permute as part of a ring; None for other collectives, and permutes that are no ring."""
    devices = ring_devices(match.group(4)) if made.kind == "p2p" else 0
    if not devices:
        return None
    operand = next(iter(_OPERAND.findall(match.group(4))), "")
    kind = does(computation, lines, operand, made.scope)
    part = _SHAPE.search(match.group(2))
    return Send(made.scope, part.group(0) if part else "", made.sent_bytes, made.times, devices, kind)


def _calls(
    opcode: str, line: str, bodies: Mapping[str, list[str]], trips: float
) -> list[tuple[str, float, str]]:
    """Computations that an instruction runs, how often, and what JAX adds to their scope.

    A loop's condition runs once more than its body.
    """
    if opcode not in ("while", "fusion", "call", "conditional", "async-start"):
        return []
    times = _trips(line, bodies, trips) if opcode == "while" else 1.0
    callees = (name for called in _CALLED.findall(line) for name in called.split(","))
    asked = [(name, times + 1, "/cond") for name in _CONDITION.findall(line)]
    part = "/body" if opcode == "while" else ""
    return [*((callee.strip().lstrip("%"), times, part) for callee in callees), *asked]


def _trips(line: str, bodies: Mapping[str, list[str]], otherwise: float) -> float:
    """How often a loop runs: as noted, or as its condition compares a counter from 0 with a constant, and no more."""
    if noted := _TRIPS.search(line):
        return float(noted.group(1))
    condition, body = _CONDITION.search(line), _BODY.search(line)
    if condition is None or body is None:
        return otherwise
    asked, done = bodies.get(condition.group(1), []), bodies.get(body.group(1), [])
    constants = [int(n) for text in asked for n in _CONSTANT.findall(text)]
    does = [match.group(3) for text in asked if (match := _INSTRUCTION.match(text))]
    if not constants or not COUNTS.issuperset(does) or does.count("fusion") > 1:
        return otherwise
    counters = [int(n) for text in asked for n in _COUNTER.findall(text)]
    step = _step(done, counters[0]) if counters else 1
    return float(math.ceil(max(constants) / step))


def _step(body: Iterable[str], counter: int) -> int:
    """What a loop adds to the element ``counter`` of what it carries: more than 1 where its body was unrolled."""
    made: dict[str, str] = {}
    carried: list[str] = []
    for line in body:
        if match := _INSTRUCTION.match(line):
            made[match.group(1)] = line
            if line.lstrip().startswith("ROOT"):
                carried = _OPERAND.findall(match.group(4).partition(")")[0])
    added = _SUM.search(made.get(carried[counter], "")) if counter < len(carried) else None
    names = _OPERAND.findall(added.group(1)) if added else []
    steps = [int(n) for name in names for n in _CONSTANT.findall(made.get(name, ""))]
    return max(1, *steps) if steps else 1
