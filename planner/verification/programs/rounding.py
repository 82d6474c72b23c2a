"""Whether what a collective brings is rounded to 16 bits by all that read it: then it had no more where it was sent.

XLA's CPU backend moves most bf16 in fp32, between a conversion there and one back. What the program, or the compiler,
has made fp32 before it moves is not rounded afterwards.

Source: openxla/xla ``xla/hlo/transforms/simplifiers/float_normalization.cc``, which puts the two conversions there.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

NARROW = "bf16"
ORDERS = frozenset(
    {"bitcast", "concatenate", "copy", "dynamic-slice", "get-tuple-element", "reshape", "slice", "transpose"}
)
"""Instructions that show what they read in another order, or parts of it."""

_MADE = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = \(?([a-z]\w*)?.*? ([a-z][\w-]*)\(([^)]*)\)")
_OPERAND = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(r"calls=%?([\w.-]+)")

Named = tuple[str, str]
"""A computation, and what is in it."""


class Reader(NamedTuple):
    """An instruction that reads something."""

    name: str
    dtype: str
    opcode: str
    operands: Sequence[str]
    called: str
    """What a fusion does."""


class Flow(NamedTuple):
    """Who reads what in a compiled module."""

    readers: Mapping[Named, Sequence[Reader]]
    parameters: Mapping[Named, str]
    """Computation and place -> what it calls its operand there."""
    results: frozenset[Named]


def flow_of(bodies: Mapping[str, Iterable[str]]) -> Flow:
    """Of computations, line by line."""
    readers, parameters, results = defaultdict[Named, list[Reader]](list), dict[Named, str](), set[Named]()
    for computation, lines in bodies.items():
        for line in lines:
            if (match := _MADE.match(line)) is None:
                continue
            root, name, dtype, opcode, given = match.groups()
            if root:
                results.add((computation, name))
            if opcode == "parameter":
                parameters[computation, given] = name
            called = _CALLED.search(line) if opcode == "fusion" else None
            reader = Reader(
                name, dtype or "", opcode, _OPERAND.findall(given), called.group(1) if called else ""
            )
            for operand in dict.fromkeys(reader.operands):
                readers[computation, operand].append(reader)
    return Flow(dict(readers), parameters, frozenset(results))


def is_rounded(flow: Flow, computation: str, name: str) -> bool:
    """Whether every reader of ``name`` rounds it, or hands it on to what does."""
    readers = flow.readers.get((computation, name), ())
    handed_out = (computation, name) in flow.results
    return bool(readers) and not handed_out and all(_rounds(flow, computation, name, r) for r in readers)


def _rounds(flow: Flow, computation: str, name: str, reader: Reader) -> bool:
    if reader.opcode == "convert":
        return reader.dtype == NARROW
    if reader.opcode in ORDERS:
        return is_rounded(flow, computation, reader.name)
    places = [str(place) for place, operand in enumerate(reader.operands) if operand == name]
    return reader.called != "" and all(
        is_rounded(flow, reader.called, flow.parameters.get((reader.called, place), "")) for place in places
    )
