"""Numbers without a unit that only make sense in another unit than SI's: ``bandwidth = 450`` meant GB/s."""

import math
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.errors import InputError


class Plain(NamedTuple):
    """A number without a unit where text has one."""

    unit: str
    least: float
    """What is less was meant to have a unit; slow Ethernet has more bytes per second."""
    most: float
    """What is more, too."""
    written: str


SECONDS = Plain("seconds", 0.0, 0.1, "2.5 us")
BYTES = Plain("bytes", 1e6, math.inf, "80 GiB")
BYTES_PER_SECOND = Plain("bytes per second", 1e6, math.inf, "400 Gbit/s")
FLOPS_PER_SECOND = Plain("FLOP per second", 1e6, math.inf, "989 TFLOP/s")

PLAIN: Mapping[str, Plain] = MappingProxyType(
    {
        "memory": BYTES,
        "memory_per_device": BYTES,
        "bandwidth": BYTES_PER_SECOND,
        "memory_bandwidth": BYTES_PER_SECOND._replace(written="3.35 TB/s"),
        "host_bandwidth": BYTES_PER_SECOND,
        "kernel_launch": SECONDS,
        "latency": SECONDS,
    }
)
"""By field of a device, a link or a host."""

RATES, SHARES = "peak_flops_per_second", "efficiency"
"""Tables of a device whose values are all rates of arithmetic, and all shares of others."""


def check_units(fields: object, where: str) -> None:
    """``InputError`` for the first number of a table, or of a table of rates in it, whose unit is missing."""
    if not isinstance(fields, Mapping):
        return
    for name, value in fields.items():
        if name == RATES and isinstance(value, Mapping):
            for dtype, rate in value.items():
                check_unit(f"{RATES}.{dtype}", rate, f"{where}.{RATES}.{dtype}")
        else:
            check_unit(name, value, f"{where}.{name}")


def check_unit(path: str, value: object, where: str) -> None:
    """``InputError`` where the field at a dotted path is given a number, or text of one, whose unit is missing."""
    *parents, last = path.split(".")
    table = parents[-1] if parents else ""
    plain = {RATES: FLOPS_PER_SECOND, SHARES: None}.get(table, PLAIN.get(last))
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    if plain is None or not isinstance(number, int | float) or not number > 0:
        return
    if not plain.least <= number <= plain.most:
        raise InputError(
            f"{where}: {number:g} without a unit is so many {plain.unit}: write it as in {plain.written}"
        )
