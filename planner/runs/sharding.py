"""How a run's data-parallel ranks share states, as its source says or as its program does."""

import re
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from planner.runs import vocabulary
from planner.runs.assumptions import Assumptions
from planner.runs.record import ParallelSection, RunFile
from planner.runs.vocabulary import Habits


class Degrees(NamedTuple):
    """Sizes of the mesh axes."""

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    experts_over_tensor: bool = False


class Shards(NamedTuple):
    """How the data-parallel ranks share the states."""

    zero_stage: int
    sharding: str
    shard_degree: int
    replicate_degree: int
    secondary_degree: int | None = None


def shards_of(
    run: RunFile, degrees: Degrees, habits: Habits, cluster: ClusterSpec, assume: Assumptions
) -> Shards:
    """As the run's ``zero_stage`` and ``sharding`` say, or as its stack usually does.

    Raises ``InputError`` where the two contradict each other, or shards do not divide the ranks.
    """
    parallel = run.parallel
    ranks = degrees.data * degrees.context
    copies = _copies(parallel, parallel.dp or degrees.data)
    stage, hybrid = parallel.zero_stage, copies > 1
    if parallel.sharding is not None:
        meaning = vocabulary.mean_sharding(parallel.sharding)
        _check_sharding(parallel, meaning)
        if stage is None or meaning.exact:
            stage = meaning.zero_stage if meaning.zero_stage is not None else stage
        hybrid = hybrid or meaning.hybrid
        if not meaning.exact:
            assume.made.append(f"sharding by zero_stage ({parallel.sharding})")
    stage = assume.default("zero_stage", stage, habits.zero_stage if degrees.data > 1 else 0)
    if stage == 0 and habits.shards_bf16 and degrees.pipeline > 1 and parallel.precision == "bf16":
        stage = assume.default("zero_stage", None, 1)
    if stage == 0:
        return Shards(0, vocabulary.SHARDING_NAMES[0], 1, ranks)
    shard = _shard_degree(run, degrees, copies, cluster, assume) if hybrid else ranks
    name = "HYBRID_SHARD" if shard < ranks and stage == 3 else vocabulary.SHARDING_NAMES[stage]
    return Shards(stage, name, shard, ranks // shard, _secondary_degree(run, stage, shard))


def _copies(parallel: ParallelSection, data: int) -> int:
    """Groups of the ``data`` ranks that have states of their own, as said or as shards leave them."""
    shard, copies = parallel.dp_shard, parallel.dp_replicate
    found = copies or data // (shard or data)
    if found * (shard or data // found) != data:
        said = " x ".join(f"{n} {d}" for n, d in (("dp_shard", shard), ("dp_replicate", copies)) if d)
        raise InputError(f"{said}: the {data} data-parallel ranks are dp_shard x dp_replicate")
    return found


def _check_sharding(parallel: ParallelSection, meaning: vocabulary.ShardingMeaning) -> None:
    said, meant = parallel.zero_stage, meaning.zero_stage
    if meaning.exact and None not in (said, meant) and said != meant:
        raise InputError(
            f"parallel.sharding {parallel.sharding} is ZeRO {meant}, and parallel.zero_stage says {said}: "
            "leave out one of them"
        )


def _secondary_degree(run: RunFile, stage: int, shard: int) -> int | None:
    """Ranks that share weights after the forward, of ``shard``: a number other than all of them, and than one."""
    reshard = run.parallel.reshard_after_forward
    number = isinstance(reshard, int) and not isinstance(reshard, bool)
    return reshard if number and stage == 3 and 1 < reshard < shard else None


def _shard_degree(
    run: RunFile, degrees: Degrees, copies: int, cluster: ClusterSpec, assume: Assumptions
) -> int:
    """Ranks over which a hybrid sharding shards: as printed, as ``copies`` leave them, else those of one node."""
    parallel = run.parallel
    ranks = degrees.data * degrees.context
    printed = re.search(r"FSDP=(\d+)|groups of (\d+)", parallel.sharding or "")
    shard = parallel.fsdp_degree or (ranks // copies if copies > 1 else None)
    if parallel.dp_shard is not None:
        shard = parallel.dp_shard * degrees.context
    elif printed is not None:
        shard = int(printed[1] or printed[2])
    in_node = max(1, min(ranks, cluster.devices_per_node // degrees.tensor))
    shard = min(ranks, assume.default("shard_degree", shard, in_node))
    if ranks % shard:
        raise InputError(f"shards over {shard} ranks do not divide the {ranks} data-parallel ranks")
    return shard
