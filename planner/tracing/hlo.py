"""Collectives of a compiled XLA program, and how they differ from those that a plan priced."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from planner.tracing.jax_apply import SCOPE
from planner.tracing.sharded import ShardedProgram

COLLECTIVES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "send",
}

ITEM_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "s16": 2,
    "u16": 2,
    "f64": 8,
    "s64": 8,
    "u64": 8,
    "c64": 8,
}
"""Of XLA's types; 4 where not listed [B]."""

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_WHILE = re.compile(r" while\(.*?body=%?([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_OPERATOR = re.compile(re.escape(SCOPE) + r"([^\]]*)\]")
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}|replica_groups=\[(\d+),(\d+)\]")


class Compiled(NamedTuple):
    """One collective of the compiled program."""

    operator: str
    collective: str
    full_bytes: float
    """As `cost_models.collectives` counts [B]."""
    times: int


class Difference(NamedTuple):
    """What one operator exchanges: as priced, and as compiled [B per call and device, full arrays]."""

    operator: str
    priced: Mapping[str, float]
    compiled: Mapping[str, float]


def compiled_collectives(text: str) -> list[Compiled]:
    """Collectives of ``compiled.as_text()``, each with how often it runs.

    On a CPU, XLA keeps a reduce-scatter as an all-reduce followed by a slice.
    """
    bodies = _bodies(text)
    runs = _runs(bodies)
    found = []
    for name, lines in bodies.items():
        for line in lines:
            match = _COLLECTIVE.search(line)
            if match and runs.get(name):
                found.append(_collective(line, match, runs[name]))
    return found


def differences(sharded: ShardedProgram, text: str) -> list[Difference]:
    """Operators whose collectives were compiled otherwise than priced; a reduce-scatter counts as a sum.

    Sums that are scattered are told from those that are not by neither side: XLA decides that on the device.
    """
    priced: dict[str, dict[str, float]] = {}
    for use in sharded.collectives:
        _add(priced, use.operator, use.collective, use.full_bytes * use.times)
    compiled: dict[str, dict[str, float]] = {}
    for made in compiled_collectives(text):
        _add(compiled, made.operator, made.collective, made.full_bytes * made.times)
    found = []
    for operator in dict.fromkeys((*priced, *compiled)):
        ours, theirs = priced.get(operator, {}), compiled.get(operator, {})
        if any(abs(ours.get(k, 0.0) - theirs.get(k, 0.0)) > 0.5 for k in {*ours, *theirs}):
            found.append(Difference(operator, ours, theirs))
    return found


def _add(table: dict[str, dict[str, float]], operator: str, collective: str, amount: float) -> None:
    kind = "sum" if collective in ("all_reduce", "reduce_scatter") else collective
    of = table.setdefault(operator, {})
    of[kind] = of.get(kind, 0.0) + amount


def _bodies(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        match = _COMPUTATION.match(line)
        if match:
            name = "ENTRY" if line.startswith("ENTRY") else match.group(1)
            lines = found.setdefault(name, [])
        else:
            lines.append(line)
    return found


def _runs(bodies: Mapping[str, list[str]]) -> dict[str, int]:
    """How often each computation runs."""
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for callee, trips in _callees(bodies.get(name, [])):
            visit(callee, times * trips)

    visit("ENTRY", 1)
    return runs


def _callees(lines: list[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        loop = _WHILE.search(line)
        if loop:
            trips = _TRIPS.search(line)
            yield loop.group(1), int(trips.group(1)) if trips else 1
        elif " call(" in line or " conditional(" in line or "async-start(" in line:
            yield from ((name, 1) for name in _CALLED.findall(line))


def _collective(line: str, match: re.Match[str], times: int) -> Compiled:
    kind = COLLECTIVES[match.group(2)]
    arrays = _ARRAY.findall(match.group(1))
    size = sum(_bytes(dtype, dims) for dtype, dims in arrays)
    if kind == "reduce_scatter":
        size *= _group_size(line)
    operator = _OPERATOR.findall(line)
    return Compiled(operator[-1].replace(">", "/") if operator else "", kind, size, times)


def _bytes(dtype: str, dims: str) -> float:
    total = float(ITEM_BYTES.get(dtype, 4))
    for n in filter(None, dims.split(",")):
        total *= int(n)
    return total


def _group_size(line: str) -> int:
    match = _GROUPS.search(line)
    if match is None:
        return 1
    return int(match.group(3)) if match.group(3) else len(match.group(1).split(","))
