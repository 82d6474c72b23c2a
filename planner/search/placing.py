"""From the stages of a search to a plan that says where each of them runs."""

from collections import Counter
from collections.abc import Sequence

from planner.evaluation.evaluator import Evaluator, Shardings
from planner.graph import Graph
from planner.plans import Parallelism, StagePlan
from planner.search.assignments import splits_sequence
from planner.search.submeshes import Choice, Share


def placed(
    evaluator: Evaluator,
    share: Share,
    layers: Sequence[tuple[int, int]],
    choices: Sequence[Choice],
    pools: Sequence[int],
) -> Parallelism:
    """The plan of stages that hold ``layers`` on the devices of ``pools``, as each has chosen."""
    graph = evaluator.graph
    sizes = [choice.local.data * choice.local.tensor * choice.local.context for choice in choices]
    devices = device_ranges(evaluator, sizes, pools)
    first, policies = choices[0].local, Counter(choice.local.recompute for choice in choices)
    common = policies.most_common(1)[0][0]
    stages = []
    for s, ((start, end), choice) in enumerate(zip(layers, choices, strict=True)):
        stages.append(
            StagePlan(
                blocks=(start, end),
                devices=devices[s],
                mesh=choice.local.axes,
                sharding=sharding_of(graph, choice.shardings, (start, end)),
                recompute=None if choice.local.recompute == common else choice.local.recompute,
            )
        )
    return first.model_copy(
        update={
            "pipeline": len(stages),
            "num_microbatches": share.num_microbatches,
            "recompute": common,
            "sequence_parallel": any(splits_sequence(choice.shardings) for choice in choices),
            "stages": tuple(stages),
        }
    )


def sharding_of(
    graph: Graph, shardings: Shardings, layers: tuple[int, int]
) -> dict[str, dict[str, dict[str, str]]]:
    """Assignments of all blocks of a stage with these layers, as a plan has them."""
    names = set(graph.sequence[slice(*layers)])
    names |= {graph.first} if layers[0] == 0 and graph.first else set()
    names |= {graph.last} if layers[1] == graph.num_layers and graph.last else set()
    return {name: {op: dict(split) for op, split in shardings[name].items()} for name in sorted(names)}


def device_ranges(
    evaluator: Evaluator, sizes: Sequence[int], pools: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Ranks of every stage: in each pool the larger ones first, so that none reaches over the edge of a node."""
    start, next_free = 0, []
    for pool in evaluator.pools:
        next_free.append(start)
        start += pool.cluster.num_devices
    ranges: dict[int, tuple[int, int]] = {}
    for stage in sorted(range(len(sizes)), key=lambda s: (-sizes[s], s)):
        free = next_free[pools[stage]]
        ranges[stage] = (free, free + sizes[stage])
        next_free[pools[stage]] += sizes[stage]
    return tuple(ranges[stage] for stage in range(len(sizes)))
