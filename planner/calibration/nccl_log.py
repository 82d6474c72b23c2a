"""Logs of nccl-tests (and rccl-tests): the table that ``all_reduce_perf`` and its siblings print.

Source: NVIDIA/nccl-tests@0fdb00a ``src/util.cu`` (ranks, header, columns, footer) and ``doc/PERFORMANCE.md`` (sizes
and factors).
"""

import re
from collections import defaultdict
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

_RANK = re.compile(r"^#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s)?.*?\bon\s+(\S+)\s+device", re.MULTILINE)
"""Group and host of a rank; ``NCCL_TESTS_SPLIT`` makes groups, each with a communicator of its own."""
_DEVICE = re.compile(r"^#\s+Rank\s.*\bdevice\s+\d+\s+\[\S+\]\s+(.*\S)", re.MULTILINE)
_PREFIX = re.compile(r"^(?:\[\S*\d,\d+\]<std(?:out|err)>:|\d+:)[ \t]?", re.MULTILINE)
"""What mpirun and srun put before a line to say whose it is."""
_PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf\b")
_STARTED = re.compile(r"^# Collective test starting: (\w+)_perf\b", re.MULTILINE)
_FAILED = re.compile(r"^# Out of bounds values\s*:\s*(\d+) FAILED", re.MULTILINE)
"""Of all sizes, out of place and in place; printed by versions that have no column ``#wrong``, too."""
_TABLE = re.compile(r"^#\s+(size\s.*?\btime\b.*)", re.MULTILINE)
"""Names of the columns; the first time is out of place, and old versions have no ``redop`` or ``root``."""
_AFTER_TIME = 2
"""``algbw`` and ``busbw`` stand behind the time."""
_UNCHECKED = "N/A"
"""In a column ``#wrong`` of a run whose results nobody looked at (``-c 0``)."""


class _Layout(NamedTuple):
    """Who took part in one communicator."""

    ranks: int
    nodes: int


class _Columns(NamedTuple):
    """Where a row has what is read."""

    time: int
    wrong: tuple[int, ...]
    """Elements of the result that are not what they should be, out of place and in place."""


def parse_nccl_log(text: str, name: str, op: str | None = None) -> tuple[CollectiveMeasurement, ...]:
    """Out-of-place times of every size in a log.

    The collective is the ``..._perf`` that the log or else its ``name`` mentions; ``op`` is for logs that say
    neither. Raises ``InputError`` where it is not known or contradicts ``op``, the header is missing, a row is cut
    off, or results were wrong.
    """
    text = _PREFIX.sub("", text)
    layout, columns = _layout(text, name), _columns(text, name)
    if op is not None and op not in OPS:
        raise InputError(f"{name}: unknown collective {op!r}; known are {', '.join(OPS)}")
    collective = _collective(text, name, op)
    if (failed := _FAILED.search(text)) is not None:
        raise InputError(
            f"{name}: {failed[1]} elements of its results were wrong, so that its times say nothing"
        )
    found = [
        _measurement(line.split(), columns, collective, layout, f"{name}, line {number}")
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
    groups: dict[str, list[str]] = defaultdict(list)
    for group, host in _RANK.findall(text):
        groups[group].append(host)
    layouts = {_Layout(len(hosts), len(set(hosts))) for hosts in groups.values()} or {_Layout(0, 0)}
    if len(layouts) > 1:
        raise InputError(f"{name}: its groups of ranks are of unlike sizes or hosts")
    (layout,) = layouts
    if layout.ranks < 2:
        raise InputError(
            f"{name}: found {layout.ranks} '#  Rank' lines; keep nccl-tests' header, of two ranks or more"
        )
    return layout


def _columns(text: str, name: str) -> _Columns:
    tables = _TABLE.findall(text)
    if len(tables) != 1:
        raise InputError(
            f"{name}: found {len(tables)} headers of tables ('# size ... time'); give each run of nccl-tests as a file"
        )
    names = tables[0].split()
    return _Columns(names.index("time"), tuple(i for i, column in enumerate(names) if column == "#wrong"))


def _collective(text: str, name: str, given: str | None) -> str:
    for place in (text, name):
        if (program := _PROGRAM.search(place)) is not None:
            said = PROGRAMS[program[1]]
            if given not in (None, said):
                raise InputError(
                    f"{name} is of {program[0]}, which contradicts --collective {given}, for logs that do not say it; "
                    f"leave it out, and name those as their program ({given}_perf.log)"
                )
            return said
    if given is not None:
        return given
    if (started := _STARTED.search(text)) is not None:
        raise InputError(f"{name}: {started[1]}_perf is not among those fitted: {', '.join(PROGRAMS)}")
    raise InputError(f"{name}: the log does not say which collective it is of; give --collective")


def _measurement(
    words: list[str], columns: _Columns, collective: str, layout: _Layout, where: str
) -> CollectiveMeasurement | None:
    """Of one row; None for a size that rounds to nothing."""
    time = columns.time
    if len(words) <= time + _AFTER_TIME:
        raise InputError(f"{where}: the row is cut off after {len(words)} columns")
    for index in columns.wrong:
        if index < len(words) and words[index] not in ("0", _UNCHECKED):
            raise InputError(f"{where}: {words[index]} elements were wrong, so that the time says nothing")
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
