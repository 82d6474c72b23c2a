"""Where a model's layers are cut into stages, and which ranks hold which of them."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from planner.pipeline.generators import schedule_entry, stage_to_rank
from planner.plans import Parallelism, StagePlan

ENDS = 2
"""Embedding and head, which may have a stage each to themselves, as if they were layers.

Source: NVIDIA/Megatron-LM ``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``.
"""


def ranks_of(plan: Parallelism) -> tuple[tuple[int, ...], ...]:
    """Stages of each pipeline rank, in the order in which a micro-batch passes them; copies included."""
    return _ranks(plan.schedule, plan.pipeline, plan.virtual_stages)


def places_of(plan: Parallelism) -> tuple[tuple[int, int], ...]:
    """Half-open range of devices of each stage, where all ranks have as many; of copies, that of the last."""
    each = plan.num_devices // plan.pipeline
    rank_of = {stage: rank for rank, own in enumerate(ranks_of(plan)) for stage in own}
    return tuple((rank_of[s] * each, (rank_of[s] + 1) * each) for s in range(len(rank_of)))


def stage_plans(plan: Parallelism, cuts: Sequence[int]) -> tuple[StagePlan, ...]:
    """Stages with the named layout, in the order in which a micro-batch passes them, cut at ``cuts``."""
    layers = zip(cuts, cuts[1:], strict=False)
    return tuple(
        StagePlan(blocks=blocks, devices=devices, mesh=plan.axes)
        for blocks, devices in zip(layers, places_of(plan), strict=True)
    )


@lru_cache(maxsize=1024)
def _ranks(schedule: str, p: int, v: int) -> tuple[tuple[int, ...], ...]:
    if p == 1:
        return (tuple(range(v)),)
    stages: list[set[int]] = [set() for _ in range(p)]
    for stage, rank in enumerate(stage_to_rank(schedule, p, v)):
        stages[rank].add(stage)
        if schedule_entry(schedule).copies > 1:
            stages[p - 1 - rank].add(stage)
    return tuple(tuple(sorted(held)) for held in stages)


def copies_of(plan: Parallelism) -> int:
    """How often the plan's schedule holds every stage; each copy sees an equal share of the micro-batches."""
    return schedule_entry(plan.schedule).copies if plan.pipeline > 1 else 1


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Boundaries of an even split; what is left over goes to the middle stages, away from embedding and head."""
    base, extra = divmod(num_layers, num_stages)
    start = (num_stages - extra) // 2
    cuts = [0]
    for s in range(num_stages):
        cuts.append(cuts[-1] + base + (start <= s < start + extra))
    return tuple(cuts)


def sizes_of(cuts: Sequence[int]) -> tuple[int, ...]:
    """Layers of each stage."""
    return tuple(end - start for start, end in zip(cuts, cuts[1:], strict=False))


def stages_of(counts: Sequence[int], plan: Parallelism) -> tuple[StagePlan, ...]:
    """Stages with so many layers each, in the order in which a micro-batch passes them."""
    return stage_plans(plan, (0, *accumulate(counts)))


def with_cuts(plan: Parallelism, layers: int, cuts: Sequence[int]) -> Parallelism:
    """The plan in Megatron's layout, cut at ``cuts``; stages are written only where they differ from an even cut."""
    even = even_cuts(layers, plan.pipeline * plan.virtual_stages)
    stages = () if tuple(cuts) == even else stage_plans(plan, cuts)
    return plan.model_copy(update={"stages": stages})
