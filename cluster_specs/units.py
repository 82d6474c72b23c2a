"""Quantities: text with units to SI floats, and back.

Inside Meshwright every number is a plain float in SI units (bytes, bytes/s, FLOP, FLOP/s, seconds, watts).
Units exist only here, at the edge: in files, on the command line and in reports.
Decimal prefixes are powers of 1000 and binary ones of 1024: GB = 1e9 bytes, GiB = 2**30 bytes (IEC 80000-13).
"""

import math
import re
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from cluster_specs.errors import InputError

Unit = Literal["B", "B/s", "FLOP", "FLOP/s", "s", "W"]
"""The SI units that a quantity can have."""

DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}
"""Prefixes that are powers of 1000; K is taken as k."""
BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
"""Prefixes that are powers of 1024."""
GIB = 2.0**30
"""Of printed memory [B]."""
SUBMULTIPLES = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}
"""Prefixes of seconds."""


class _Base(NamedTuple):
    """A unit symbol: the SI unit it measures, its size in that unit, and the prefixes it takes."""

    unit: Unit
    factor: float
    prefixes: dict[str, float]


_BASES = {
    **dict.fromkeys(("B", "byte", "bytes"), _Base("B", 1.0, DECIMAL | BINARY)),
    **dict.fromkeys(("B/s", "byte/s", "bytes/s"), _Base("B/s", 1.0, DECIMAL | BINARY)),
    **dict.fromkeys(("bit", "bits"), _Base("B", 1 / 8, DECIMAL | BINARY)),
    **dict.fromkeys(("bit/s", "bits/s"), _Base("B/s", 1 / 8, DECIMAL | BINARY)),
    "FLOP": _Base("FLOP", 1.0, DECIMAL),
    **dict.fromkeys(("FLOP/s", "FLOPS", "OP/s"), _Base("FLOP/s", 1.0, DECIMAL)),
    "s": _Base("s", 1.0, SUBMULTIPLES),
    "min": _Base("s", 60.0, {"": 1.0}),
    "h": _Base("s", 3600.0, {"": 1.0}),
    "W": _Base("W", 1.0, DECIMAL),
}

_UNITS = {
    prefix + symbol: (base.unit, base.factor * scale)
    for symbol, base in _BASES.items()
    for prefix, scale in base.prefixes.items()
}
"""Every spelling of every unit, with the SI unit and the factor to it."""

_EXAMPLES: dict[Unit, str] = {
    "B": "80 GiB",
    "B/s": "400 Gbit/s or 3.35 TB/s",
    "FLOP": "1 PFLOP",
    "FLOP/s": "989 TFLOP/s",
    "s": "2.5 us",
    "W": "700 W",
}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_LOWER_BIT = re.compile(r"([kKMGTPE]i?)b(/s|ps)?")


def parse_quantity(text: str, unit: Unit | None = None) -> float:
    """Value of ``text`` in SI units: ``parse_quantity("3.35 TB/s") == 3.35e12``.

    Raises ``InputError`` where the text is no number with a unit, where the unit is unknown or ambiguous
    (``Gb``), or where it measures something else than the ``unit`` asked for.
    """
    match = _QUANTITY.fullmatch(text)
    example = _EXAMPLES[unit or "B/s"]
    if match is None:
        raise InputError(f"{text!r} is not a quantity: write a number and a unit, such as {example}")
    number, symbol = match.groups()
    if not symbol:
        raise InputError(f"{text!r} has no unit: write it as in {example}")
    if lower := _LOWER_BIT.fullmatch(symbol):
        prefix, rate = lower[1], "/s" if lower[2] else ""
        raise InputError(f"{text!r} is ambiguous: write {prefix}bit{rate} or {prefix}B{rate}")
    if symbol not in _UNITS:
        raise InputError(f"{text!r} has the unknown unit {symbol!r}: write it as in {example}")
    found, factor = _UNITS[symbol]
    if unit is not None and found != unit:
        raise InputError(f"{text!r} is in {found}, expected {unit}: write it as in {example}")
    return float(Decimal(number) * Decimal(repr(factor)))  # exact: 3.4 us is 3.4e-6 and no neighbour of it


DURATIONS: dict[str, float] = {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31557600.0}
"""Longer times [s]; a year has 365.25 days."""


def parse_duration(text: str) -> float:
    """Seconds of ``"90d"``, ``"1.5 h"``, ``"10min"``, or whatever `parse_quantity` reads as seconds.

    Raises ``InputError``.
    """
    stripped = text.strip()
    for unit, seconds in DURATIONS.items():
        number = stripped.removesuffix(unit)
        if number != stripped:
            try:
                return float(number) * seconds
            except ValueError:
                break
    try:
        return parse_quantity(stripped, "s")
    except InputError:
        raise InputError(
            f"{text!r} is not a quantity of time: write it as in 90d, 6w, 36h, 15min or 30s"
        ) from None


def format_duration(seconds: float, digits: int = 3) -> str:
    """Minutes, hours or days, whichever reads best: ``"37.5 d"``; seconds below two minutes."""
    for unit in ("d", "h", "min"):
        if seconds >= 2 * DURATIONS[unit]:
            return f"{_plain(seconds / DURATIONS[unit], digits)} {unit}"
    return format_seconds(seconds, digits)


def format_quantity(value: float, unit: Unit, digits: int = 3, binary: bool = False) -> str:
    """Text of ``value`` (SI) with the prefix that leaves 1 to 1000 before the unit: ``"3.35 TB/s"``.

    ``binary`` uses powers of 1024 (bytes only). ``parse_quantity`` reads it back, to ``digits`` digits.
    """
    prefixes = _scale(unit, binary)
    symbol, scale = prefixes[0] if value else ("", 1.0)
    for candidate, size in prefixes:
        # Compare what will be printed: 999.96 with 3 digits is 1000, which belongs to the next prefix.
        if abs(float(f"{value / size:.{digits}g}")) >= 1:
            symbol, scale = candidate, size
    return f"{_plain(value / scale, digits)} {symbol}{unit}"


def format_bytes(value: float, digits: int = 3) -> str:
    """Bytes with a binary prefix, as drivers and frameworks print them: ``"79.1 GiB"``."""
    return format_quantity(value, "B", digits, binary=True)


def format_bandwidth(value: float, digits: int = 3) -> str:
    """Bytes per second with a decimal prefix: ``"3.35 TB/s"``."""
    return format_quantity(value, "B/s", digits)


def format_rate(value: float, digits: int = 3) -> str:
    """FLOP per second with a decimal prefix: ``"989 TFLOP/s"``."""
    return format_quantity(value, "FLOP/s", digits)


def format_seconds(value: float, digits: int = 3) -> str:
    """Seconds with a prefix from n to none: ``"2.5 us"``."""
    return format_quantity(value, "s", digits)


def format_count(number: int, noun: str) -> str:
    """``"1 device"``, ``"16 devices"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


SMALLEST_CHANGE = 0.001
"""Changes below this share are not told apart: no prediction is that good."""


def format_change(share: float) -> str:
    """``"+1.5%"``, or ``"<0.1%"`` of what is too little to tell."""
    return f"{share:+.1%}" if abs(share) >= SMALLEST_CHANGE else f"<{SMALLEST_CHANGE:.1%}"


def _scale(unit: Unit, binary: bool) -> list[tuple[str, float]]:
    """Prefixes that suit a unit, smallest first."""
    if unit == "s":
        table = {prefix: SUBMULTIPLES[prefix] for prefix in ("n", "u", "m", "")}
    elif binary:
        table = {"": 1.0} | BINARY
    else:
        table = {prefix: size for prefix, size in DECIMAL.items() if prefix != "K"}
    return list(table.items())


def _plain(value: float, digits: int) -> str:
    """Number without an exponent where it is short enough to read, never more digits than asked for."""
    text = f"{value:.{digits}g}"
    if "e" in text and math.isfinite(value) and 1 <= abs(value) < 1e7:
        return f"{float(text):.0f}"
    return text


def _reader(unit: Unit) -> BeforeValidator:
    """Validator that reads text with units and passes numbers (already SI) through."""

    def read(value: object) -> object:
        if isinstance(value, str):
            return parse_quantity(value, unit)
        if isinstance(value, bool):
            raise InputError(f"{value} is not a quantity: write it as in {_EXAMPLES[unit]}")
        return value

    return BeforeValidator(read)


Bytes = Annotated[float, _reader("B"), Field(allow_inf_nan=False)]
"""Bytes; read from a number or from text such as ``"80 GiB"``."""
BytesPerSecond = Annotated[float, _reader("B/s"), Field(allow_inf_nan=False)]
"""Bytes per second; read from a number or from text such as ``"400 Gbit/s"``."""
FlopsPerSecond = Annotated[float, _reader("FLOP/s"), Field(allow_inf_nan=False)]
"""FLOP per second; read from a number or from text such as ``"989 TFLOP/s"``."""
Seconds = Annotated[float, _reader("s"), Field(allow_inf_nan=False)]
"""Seconds; read from a number or from text such as ``"2.5 us"``."""
Watts = Annotated[float, _reader("W"), Field(allow_inf_nan=False)]
"""Watts; read from a number or from text such as ``"700 W"``."""
