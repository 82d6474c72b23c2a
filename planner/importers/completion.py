"""From `Settings` to a `Plan`: gaps are filled with what is usual, and every such choice is reported."""

from collections.abc import Sequence
from typing import Any

from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import validated
from planner.errors import InputError
from planner.evaluation.cuts import with_cuts
from planner.exporters.limits import SHARDINGS
from planner.importers.settings import Given, Settings
from planner.models.catalog import build_graph, sequence_length, usual_length
from planner.models.dropout import Shares, shares_of, with_dropout
from planner.models.model import Model
from planner.plans import Job, Parallelism, Plan

ASSUMED_SEQ_LEN = 4096
"""Tokens per sequence where nobody says; reported as an assumption."""

OPTIONS = {"seq_len": "--seq-len", "micro_batch": "--micro-batch", "num_microbatches": "--global-batch"}
"""What settles an assumption."""


def complete(
    settings: Settings, model: Model, cluster: ClusterSpec, given: Given, source: str
) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and what was assumed for it as ``field=value``.

    Raises ``InputError`` where the configuration contradicts itself, the caller, the model or the cluster.
    """
    assumed = list(settings.assumed)
    model = _dropping(model, settings.dropout)
    seq_len = _seq_len(settings, model, given, source, assumed)
    _check_sizes(settings, model, seq_len, source)
    data = _data(settings, cluster, source, assumed)
    micro, count = _batches(settings, data, given, source, assumed)
    fields = {
        "global_batch": data * micro * count,
        "seq_len": seq_len,
        "stack": settings.stack,
        **settings.job,
    }
    job = validated(Job, fields, source)
    fields = {
        "data": data,
        **{name: getattr(settings, name) for name in ("tensor", "pipeline", "context", "expert")},
        "virtual_stages": settings.virtual_stages,
        "micro_batch": micro,
        "num_microbatches": count,
        **_states(settings, data, source),
        "experts_over_tensor": settings.experts_over_tensor,
        "sequence_parallel": settings.sequence_parallel or settings.tensor == 1,
        "recompute": settings.recompute,
        "recompute_every": settings.recompute_every,
        "schedule": settings.schedule,
        "offload": settings.offload,
    }
    plan = validated(Parallelism, fields, source)
    plan = _cut(plan, settings.cuts, build_graph(model, seq_len).num_layers, source)
    return Plan(model=model, cluster=cluster, job=job, plan=plan), tuple(assumed)


def _dropping(model: Model, said: Shares | None) -> Model:
    """``model`` as it drops where a configuration says so, whatever its own; as it is where both say the same."""
    return model if said is None or said == shares_of(model) else with_dropout(model, *said)


def _agreed(name: str, written: int | None, given: int | None, source: str) -> int | None:
    """What the file or the caller says; ``InputError`` where they differ."""
    if written is not None and given is not None and written != given:
        raise InputError(f"{source} says {name} {written}, which contradicts the given {given}")
    return given if written is None else written


def _usual(name: str, otherwise: int, settings: Settings, assumed: list[str]) -> int:
    """The framework's default, or ``otherwise``; reported."""
    value = settings.defaults.get(name, otherwise)
    why = "the framework's default" if name in settings.defaults else "not in the file"
    assumed.append(f"{name}={value} ({why}; give {OPTIONS[name]})")
    return value


def _seq_len(settings: Settings, model: Model, given: Given, source: str, assumed: list[str]) -> int:
    agreed = _agreed("seq_len", settings.seq_len, given.seq_len, source)
    if agreed is not None:
        return agreed
    return sequence_length(model) or _usual(
        "seq_len", usual_length(model, ASSUMED_SEQ_LEN), settings, assumed
    )


def _check_sizes(settings: Settings, model: Model, seq_len: int, source: str) -> None:
    graph = build_graph(model, seq_len)
    sizes = {**graph.dims, "layers": graph.num_layers}
    for name, size in settings.sizes.items():
        if name in sizes and sizes[name] != size:
            raise InputError(f"{source} describes a model with {name} {size}; {model.name} has {sizes[name]}")


def _data(settings: Settings, cluster: ClusterSpec, source: str, assumed: list[str]) -> int:
    split = settings.tensor * settings.pipeline * settings.context
    data = settings.data
    if data is None and settings.shard is not None and settings.replicate is not None:
        data = settings.shard * settings.replicate
    if data is None:
        devices = settings.devices or cluster.num_devices
        if devices % split:
            raise InputError(
                f"{source}: tensor {settings.tensor} x pipeline {settings.pipeline} x context {settings.context} "
                f"= {split} does not divide {devices} devices"
            )
        data = devices // split
        if settings.devices is None:
            assumed.append(f"data={data} (all {devices} devices of {cluster.name})")
    if settings.devices is not None and data * split != settings.devices:
        raise InputError(
            f"{source}: degrees that make {data * split} devices, for {settings.devices} processes"
        )
    if data * split > cluster.num_devices:
        raise InputError(
            f"{source} needs {data * split} devices; cluster {cluster.name} has {cluster.num_devices}"
        )
    return data


def _batches(settings: Settings, data: int, given: Given, source: str, assumed: list[str]) -> tuple[int, int]:
    """Micro-batch and number of micro-batches."""
    micro = _agreed("micro_batch", settings.micro_batch, given.micro_batch, source)
    batch = _agreed("global_batch", settings.global_batch, given.global_batch, source)
    count = settings.num_microbatches
    if micro is None and batch is not None and count is not None and batch % (data * count) == 0:
        micro = batch // (data * count)
    if micro is None:
        micro = _usual("micro_batch", 1, settings, assumed)
    if batch is None:
        if count is None:
            count = _usual("num_microbatches", settings.pipeline, settings, assumed)
        return micro, count
    if batch % (data * micro) or (count is not None and batch != data * micro * count):
        times = "" if count is None else f" x {count} micro-batches"
        raise InputError(f"{source}: global batch {batch} is not data {data} x micro_batch {micro}{times}")
    return micro, batch // (data * micro)


def _states(settings: Settings, data: int, source: str) -> dict[str, Any]:
    """ZeRO stage and the ranks that share states."""
    ranks = data * settings.context
    if settings.zero_stage == 0:
        return {"zero_stage": 0, "sharding": "NO_SHARD", "shard_degree": 1, "replicate_degree": ranks}
    copies = settings.replicate or (data // settings.shard if settings.shard else 1)
    if settings.shard is not None and settings.shard * copies != data:
        raise InputError(
            f"{source}: {settings.shard} ranks that share states x {copies} copies are not data {data}"
        )
    if ranks % copies:
        raise InputError(f"{source}: {copies} copies of the states do not divide {ranks} data-parallel ranks")
    stage, shard = settings.zero_stage, ranks // copies
    if shard == 1:
        return {"zero_stage": 0, "sharding": "NO_SHARD", "shard_degree": 1, "replicate_degree": ranks}
    hybrid = stage == 3 and copies > 1
    sharding = "HYBRID_SHARD" if hybrid else SHARDINGS[stage]
    return {"zero_stage": stage, "sharding": sharding, "shard_degree": shard, "replicate_degree": copies}


def _cut(plan: Parallelism, cuts: Sequence[int] | None, layers: int, source: str) -> Parallelism:
    if cuts is None:
        return plan
    stages = plan.pipeline * plan.virtual_stages
    if len(cuts) != stages + 1 or cuts[-1] != layers:
        raise InputError(
            f"{source} cuts {cuts[-1]} layers into {len(cuts) - 1} stages; the model has {layers} layers and "
            f"the degrees make {stages} stages"
        )
    if min(end - start for start, end in zip(cuts, cuts[1:], strict=False)) < 1:
        raise InputError(f"{source} has a stage without layers, which is not modelled")
    return with_cuts(plan, layers, cuts)
