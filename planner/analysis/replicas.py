"""How a plan scales: the same split with more or fewer replicas, the same batch for all of them."""

from collections.abc import Iterator, Mapping

from cluster_specs.catalog import what_if
from cluster_specs.record import Record
from planner.errors import InputError
from planner.evaluation import evaluate
from planner.graph import BATCH
from planner.plans import Parallelism, Plan, StagePlan

Shardings = Mapping[str, Mapping[str, Mapping[str, str]]]
"""block -> operator -> {mesh axis: dim}, as in `StagePlan`."""

FACTORS = tuple(2.0**power for power in range(-4, 5))
"""Sizes that are tried, over that of the plan."""


class Scaled(Record):
    """The plan on another number of nodes."""

    devices: int
    tokens_per_s: float
    efficiency: float
    """Tokens/s per device over those of the smallest number of devices on which it fits (of all, where none)."""
    memory_bytes: float
    fits: bool


def scaling(plan: Plan) -> tuple[Scaled, ...]:
    """The plan on half, twice, ... as many nodes, the smallest first, where batch and degrees allow it.

    Nothing where the nodes are not all alike. Tensor, pipeline and context degrees, micro-batch and schedule stay;
    only replicas come and go, so a search at each size could do better.
    """
    found = []
    for larger in _resized(plan):
        try:
            estimate = evaluate(larger)
        except InputError:
            continue  # the schedule does not take so few micro-batches
        found.append((larger.cluster.num_devices, estimate))
    base = next((entry for entry in found if entry[1].fits), found[0] if found else None)
    least = base[1].tokens_per_s / base[0] if base else 1.0
    return tuple(
        Scaled(
            devices=devices,
            tokens_per_s=estimate.tokens_per_s,
            efficiency=estimate.tokens_per_s / devices / least,
            memory_bytes=estimate.memory_bytes,
            fits=estimate.fits,
        )
        for devices, estimate in found
    )


def _resized(plan: Plan) -> Iterator[Plan]:
    if plan.cluster.num_devices != plan.cluster.nodes * plan.cluster.devices_per_node:
        return  # of nodes that are not all alike, twice as many could be of any kind
    for factor in FACTORS:
        nodes, choice = plan.cluster.nodes * factor, replicated(plan.plan, plan.job.global_batch, factor)
        if nodes.is_integer() and choice is not None:
            cluster = what_if(plan.cluster, {"nodes": int(nodes)})
            yield plan.model_copy(update={"cluster": cluster, "plan": choice})


def replicated(choice: Parallelism, batch: int, factor: float) -> Parallelism | None:
    """The same split with ``factor`` times as many data-parallel ranks; None where that is no whole plan."""
    hybrid = choice.replicate_degree > 1
    counts = {
        "data": choice.data * factor,
        "num_microbatches": batch / (choice.data * choice.micro_batch * factor),
        "shard_degree": choice.shard_degree * (1 if hybrid or not choice.zero_stage else factor),
        "replicate_degree": choice.replicate_degree * (factor if hybrid else 1),
    }
    whole = all(count >= 1 and float(count).is_integer() for count in counts.values())
    if not whole:
        return None
    stages = tuple(_stage(stage, factor) for stage in choice.stages)
    scaled = choice.model_copy(update={**{name: int(n) for name, n in counts.items()}, "stages": stages})
    return scaled if scaled.context_experts == choice.context_experts else None


def _stage(stage: StagePlan, factor: float) -> StagePlan:
    first, last = (int(rank * factor) for rank in stage.devices)
    before = stage.mesh.get("data", 1)
    mesh = {**stage.mesh, "data": int(before * factor)}
    sharding = _dealt_out(stage.sharding) if before == 1 else stage.sharding
    return stage.model_copy(update={"devices": (first, last), "mesh": mesh, "sharding": sharding})


def _dealt_out(sharding: Shardings) -> Shardings:
    """With the batch over a data axis that had one rank, so that nothing was said of it."""
    return {
        block: {op: {**split, "data": split.get("data", BATCH)} for op, split in ops.items()}
        for block, ops in sharding.items()
    }
