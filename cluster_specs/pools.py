"""Clusters of unlike parts: pools of equal nodes, and the link that joins them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.record import Record, validated
from cluster_specs.shipped import fabrics

MOST_POOLS = 4
"""More are not planned for: stages are tried in every order of the pools."""


class PooledFile(Record):
    """A cluster file with ``pools``: shipped names with their size, or tables of a cluster each."""

    name: str | None = None
    pools: tuple[str | Mapping[str, Any], ...]
    between: Mapping[str, Any] | None = None
    """Fields of a `LinkSpec` or the name of a ``fabric`` with a bandwidth; None: as the slowest pool's outer link."""
    sources: Mapping[str, str] = {}


def join(pools: Sequence[ClusterSpec], between: Mapping[str, Any] | None, where: str) -> ClusterSpec:
    """One cluster of all ``pools``; their ranks are numbered in turn.

    Raises ``InputError`` where the link is incomplete or there are too few or many pools.
    """
    if not 2 <= len(pools) <= MOST_POOLS:
        raise InputError(f"{where}: pools are 2 to {MOST_POOLS} clusters, got {len(pools)}")
    first, *others = pools
    total = sum(pool.num_devices for pool in pools)
    link = _slowest(pools, where) if between is None else _filled(between)
    fields = first.model_dump() | {
        "name": where,
        "others": [pool.model_dump() for pool in others],
        "between": link | {"devices": total},
    }
    return validated(ClusterSpec, fields, where)


def read_pools(
    fields: Mapping[str, Any],
    where: str,
    named: Callable[[str], ClusterSpec],
    inline: Callable[[Mapping[str, Any], str], ClusterSpec],
) -> ClusterSpec:
    """The cluster of a file with ``pools``, some ``named`` and some given ``inline``; errors as `join`."""
    file = validated(PooledFile, fields, where)
    pools = [
        _shipped(pool, f"{where}: pools.{n}", named)
        if isinstance(pool, str)
        else inline(pool, f"{where}: pools.{n}")
        for n, pool in enumerate(file.pools)
    ]
    joined = join(pools, file.between, where)
    return joined.model_copy(
        update={"name": file.name or where, "sources": dict(joined.sources) | dict(file.sources)}
    )


def _shipped(pool: str, where: str, named: Callable[[str], ClusterSpec]) -> ClusterSpec:
    """The pool of this name, which is refused with the place that it stands at."""
    try:
        return named(pool)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _filled(between: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the link, with the numbers of its fabric."""
    link = {"name": "between"} | dict(between)
    if (name := link.pop("fabric", None)) is None:
        return link
    if name not in fabrics():
        raise UnknownName("fabric", str(name), fabrics())
    return fabrics()[str(name)].model_dump(exclude={"words", "sources"}) | link


def _slowest(pools: Sequence[ClusterSpec], where: str) -> dict[str, Any]:
    outer = [pool.links[-1] for pool in pools if pool.links]
    if len(outer) < len(pools):
        raise InputError(f"{where}: a pool has no link of its own; say in `between` what joins the pools")
    return min(outer, key=lambda link: link.bandwidth * link.efficiency).model_dump()
