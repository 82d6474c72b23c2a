"""The shipped data files: devices, fabrics and clusters, read once and kept."""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from cluster_specs.cluster import DeviceSpec, LinkBehaviour
from cluster_specs.errors import UnknownName
from cluster_specs.record import Record, RecordT, validated
from cluster_specs.units import BytesPerSecond, Seconds

DATA = Path(__file__).parent / "data"


class DeviceFile(Record):
    """One file of ``data/devices``: a device, its other names, and the cluster it usually sits in."""

    device: DeviceSpec
    aliases: tuple[str, ...] = ()
    usual_cluster: str
    """The cluster that it usually sits in, or, where none is shipped, that of another device on such links."""
    sources: Mapping[str, str]
    """Field of the device, or a pattern of fields, to where its number comes from."""


class Fabric(LinkBehaviour):
    """A kind of link that is shipped by name."""

    words: tuple[str, ...] = ()
    """Words by which published descriptions name it."""
    sources: Mapping[str, str]


class SliceRule(Record):
    """Which slices of a torus exist, and which of their dimensions wrap."""

    dimensions: int = Field(gt=0)
    wrap_multiple: int | None = None
    """All dimensions wrap where all are multiples of this (whole cubes joined by optical switches)."""
    wrap_length: int | None = None
    """A dimension wraps where it has exactly this length (that of the whole pod)."""
    usual: tuple[str, ...]
    """Shapes on offer, smallest first."""
    named_per_chip: int | None = None
    """What names of slices count of each chip: ``v5p-512`` has 512 cores on 256 chips, ``v6e-256`` 256 chips; None:
    not known."""

    def wrap(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which dimensions of a slice of this shape close into rings."""
        if self.wrap_multiple is not None:
            whole = all(extent % self.wrap_multiple == 0 for extent in shape)
            return (whole,) * len(shape)
        return tuple(extent == self.wrap_length for extent in shape)

    def of_size(self, chips: int) -> Iterator[str]:
        """Shapes of so many chips: those on offer, then of whole cubes and no larger, the most compact first.

        Source: cloud.google.com/tpu/docs/v5p, "TensorCores and topology": from 64 chips on 4a x 4b x 4c, a <= b <= c.
        """
        on_offer = {shape: math.prod(map(int, shape.split("x"))) for shape in self.usual}
        yield from (shape for shape, size in on_offer.items() if size == chips)
        side = self.wrap_multiple
        if (
            side is not None
            and self.dimensions == 3
            and chips % side**3 == 0
            and chips < max(on_offer.values())
        ):
            cubes = chips // side**3
            sides = [
                (cubes // (a * b), b, a)
                for a in range(1, cubes + 1)
                for b in range(1, a + 1)
                if cubes % (a * b) == 0 and cubes // (a * b) <= b
            ]
            yield from ("x".join(str(side * extent) for extent in shape) for shape in sides)


class ClusterFile(Record):
    """A cluster as written in a file: the fields of `ClusterSpec`, with shorthands.

    ``device`` and a link's ``fabric`` may be names of shipped ones; the last link's ``devices`` follows from
    the node count; ``host.memory_per_device`` stands for ``host.memory``.
    """

    name: str | None = None
    summary: str = ""
    aliases: tuple[str, ...] = ()
    """Words by which published descriptions name it."""
    device: str | Mapping[str, Any]
    nodes: int | None = None
    devices_per_node: int | None = None
    devices_per_host: int | None = None
    """Where a node here is an NVLink domain of several hosts: the devices of one of them."""
    links: tuple[Mapping[str, Any], ...] = ()
    torus: Mapping[str, Any] | None = None
    slices: SliceRule | None = None
    host: Mapping[str, Any] = {}
    price: Mapping[str, Any] | None = None
    others: tuple[Mapping[str, Any], ...] = ()
    between: Mapping[str, Any] | None = None
    sources: Mapping[str, str] = {}


class FittedValue(Record):
    """How well a constant that was fitted to measurements explains them."""

    samples: int = Field(gt=0)
    median_residual: float = Field(ge=0)
    """Median of ``|predicted / measured - 1|``."""
    worst_residual: float = Field(ge=0)
    at_limit: bool = False
    """The constant is as large as it can get, or next to nothing: the base is not what was measured."""


class MeasuredLine(Record):
    """One collective by one algorithm as ``latency + bytes / bandwidth``: to read, not used by estimates."""

    collective: str
    algorithm: str
    """The algorithm that the model takes for these sizes."""
    ranks: int = Field(gt=1)
    nodes: int = Field(gt=0)
    latency: Seconds = Field(ge=0)
    bus_bandwidth: BytesPerSecond = Field(gt=0)
    samples: int = Field(gt=0)
    median_residual: float = Field(ge=0)


class ChangedCluster(Record):
    """A cluster as written by ``meshwright calibrate``: another one, with constants of one's own."""

    name: str | None = None
    base: str
    """A shipped cluster, without its size."""
    nodes: int = Field(default=1, gt=0)
    changes: Mapping[str, float | str]
    """Dotted path of a field -> its value, as in ``what_if``."""
    fitted: Mapping[str, FittedValue] = {}
    """The same paths -> how well the value explains the measurements."""
    lines: tuple[MeasuredLine, ...] = ()
    sources: Mapping[str, str] = {}


class _Files(Mapping[str, RecordT]):
    """Shipped files of one folder by name, each read when it is first asked for."""

    def __init__(self, folder: str, read: Callable[[Path], RecordT]) -> None:
        self._paths = {path.stem: path for path in sorted((DATA / folder).glob("*.toml"))}
        self._read, self._known = read, dict[str, RecordT]()

    def __getitem__(self, name: str) -> RecordT:
        if name not in self._known:
            self._known[name] = self._read(self._paths[name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@cache
def device_files() -> Mapping[str, DeviceFile]:
    """Shipped devices by name."""
    return _Files("devices", lambda path: validated(DeviceFile, _toml(path), path.name))


@cache
def fabrics() -> Mapping[str, Fabric]:
    """Shipped fabrics by name."""
    tables = _toml(DATA / "fabrics.toml")
    return {name: validated(Fabric, fields, f"fabric {name}") for name, fields in tables.items()}


@cache
def cluster_files() -> Mapping[str, ClusterFile]:
    """Shipped clusters by name."""
    return _Files(
        "clusters", lambda path: validated(ClusterFile, _toml(path) | {"name": path.stem}, path.name)
    )


@cache
def _device_names() -> Mapping[str, str]:
    """Every spelling of a device's name, reduced, to its name."""
    names = {}
    for name, file in device_files().items():
        for alias in (name, *file.aliases):
            names[_reduced(alias)] = names[_reordered(alias)] = name
    return names


_VENDOR = re.compile(r"^(nvidia|amd|instinct|tesla|google|aws|[\s-])+", re.IGNORECASE)
"""What drivers print before a device's name: ``NVIDIA H100 80GB HBM3``."""

_CHIPS = re.compile(r"(?<=[a-z\d])-\d+$", re.IGNORECASE)
"""Cores or chips in the name of a TPU slice: ``v5litepod-256``."""


def count_in_name(name: str) -> int | None:
    """The number at the end of a TPU slice's name, if there is one."""
    found = _CHIPS.search(name)
    return None if found is None else int(found[0][1:])


def find_device(name: str) -> DeviceFile:
    """Shipped device of this name or alias, whatever its case and punctuation; raises ``UnknownName``."""
    if name in device_files():
        return device_files()[name]
    names = _device_names()  # which needs all files
    own = _VENDOR.sub("", name)
    if re.match(r"(tpu[\s-]?)?v\d", own, re.IGNORECASE):
        own = _CHIPS.sub("", own)
    known = names.get(_reduced(name)) or names.get(_reduced(own)) or names.get(_reordered(own))
    if known is None:
        raise UnknownName("device", name, device_files())
    return device_files()[known]


def also_called(name: str) -> tuple[str, ...]:
    """Other shipped devices that ``name`` fits, as it leaves memory or board open: ``A100``, ``A100-40GB``."""
    if name in device_files():
        return ()
    words = set(_reordered(_VENDOR.sub("", name)).split())
    fitting = tuple(known for known in device_files() if words <= set(_reordered(known).split()))
    return tuple(known for known in fitting if known != find_device(name).device.name)


def _reduced(name: str) -> str:
    """Letters and digits alone, in lower case, so that ``A100-SXM4-80GB`` and ``a100 sxm4 80gb`` are one."""
    return "".join(filter(str.isalnum, name.lower()))


def _reordered(name: str) -> str:
    """Words in one order and form, so that ``A100 80G SXM`` and ``A100-SXM4-80GB`` are one."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return " ".join(sorted(re.sub(r"^(\d+)g(i?b)?$|^(sxm)\d$", r"\1\3", word) for word in words))


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
