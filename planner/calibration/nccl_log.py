"""Logs of nccl-tests (and rccl-tests): the table that ``all_reduce_perf`` and its siblings print.

Source: NVIDIA/nccl-tests ``src/common.cu`` (header and columns) and ``doc/PERFORMANCE.md`` (sizes and factors).
"""

import re
from typing import NamedTuple, get_args

from planner.calibration.measurements import CollectiveMeasurement
from planner.errors import InputError

PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""``X`` of ``X_perf`` -> collective; longer names before those that they contain."""

OPS: tuple[str, ...] = get_args(CollectiveMeasurement.model_fields["op"].annotation)

_RANK = re.compile(r"^#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device", re.MULTILINE)
_DEVICE = re.compile(r"^#\s+Rank\s.*\bdevice\s+\d+\s+\[\S+\]\s+(.*\S)", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\[[\d,]+\]<std(?:out|err)>:|\d+:)[ \t]?", re.MULTILINE)
"""What mpirun and srun put before a line to say whose it is."""
_PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf\b")
_TABLE = re.compile(r"^#\s+(size\s.*?\btime\b)", re.MULTILINE)
"""Names of the columns up to the first time, which is out of place; old versions have no ``redop`` or ``root``."""
_AFTER_TIME = 2
"""``algbw`` and ``busbw`` stand behind the time."""


class _Layout(NamedTuple):
    """Who took part."""

    ranks: int
    nodes: int


def parse_nccl_log(text: str, name: str, op: str | None = None) -> tuple[CollectiveMeasurement, ...]:
    """Out-of-place times of every size in a log.

    The collective is the ``..._perf`` that the log or else its ``name`` mentions; ``op`` is for logs that say
    neither. Raises ``InputError`` where it is not known, the header is missing, or a row is cut off.
    """
    text = _PREFIX.sub("", text)
    layout, time = _layout(text, name), _time_column(text, name)
    collective = op or _collective(text, name)
    if collective not in OPS:
        raise InputError(f"{name}: unknown collective {collective!r}; known are {', '.join(OPS)}")
    found = [
        _measurement(line.split(), time, collective, layout, f"{name}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if (words := line.split()) and words[0].isdigit()
    ]
    measured = tuple(one for one in found if one is not None)
    if not measured:
        raise InputError(f"{name}: no rows of sizes and times; expected the output of nccl-tests")
    return measured


def logged_devices(text: str) -> tuple[str, ...]:
    """What the driver calls the devices that took part, each once."""
    return tuple(dict.fromkeys(_DEVICE.findall(text)))


def _layout(text: str, name: str) -> _Layout:
    hosts = _RANK.findall(text)
    if len(hosts) < 2:
        raise InputError(
            f"{name}: found {len(hosts)} '#  Rank' lines; keep the header that nccl-tests prints, of two ranks or more"
        )
    return _Layout(len(hosts), len(set(hosts)))


def _time_column(text: str, name: str) -> int:
    tables = _TABLE.findall(text)
    if len(tables) != 1:
        raise InputError(
            f"{name}: found {len(tables)} headers of tables ('# size ... time'); give each run of nccl-tests as a file"
        )
    return len(tables[0].split()) - 1


def _collective(text: str, name: str) -> str:
    for place in (text, name):
        if (program := _PROGRAM.search(place)) is not None:
            return PROGRAMS[program[1]]
    raise InputError(f"{name}: the log does not say which collective it is of; give --collective")


def _measurement(
    words: list[str], time: int, collective: str, layout: _Layout, where: str
) -> CollectiveMeasurement | None:
    """Of one row; None for a size that rounds to nothing."""
    if len(words) <= time + _AFTER_TIME:
        raise InputError(f"{where}: the row is cut off after {len(words)} columns")
    try:
        size, micros = float(words[0]), float(words[time])
    except ValueError as error:
        raise InputError(
            f"{where}: column {time + 1} should be a time in us, found {words[time]!r}"
        ) from error
    if size == 0:
        return None
    if not micros > 0:
        raise InputError(f"{where}: a time of {words[time]} us")
    return CollectiveMeasurement.model_validate(
        {
            "op": collective,
            "bytes": size,
            "ranks": layout.ranks,
            "nodes": layout.nodes,
            "seconds": micros * 1e-6,
        }
    )
