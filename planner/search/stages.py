"""Cutting the layers of a candidate into stages, by dynamic programming on the evaluator's own costs."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise

from planner.errors import Infeasible
from planner.evaluation.cuts import even_cuts
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.memory import device_memory, steady_microbatches
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.step import StepFloor, critical_path
from planner.inter_op.partition import partition_homogeneous
from planner.pipeline.dependencies import peak_in_flight, programs
from planner.pipeline.simulator import Path
from planner.plans import Parallelism

RESOLUTION = 8
"""Costs are compared in this fraction of the commonest layer's: finer differences move no boundary."""


MOST_STAGES, MOST_TURNS = 8, 4
"""Cuts into up to so many stages, with up to so many micro-batches for each rank, are moved for the step's end."""

LESS = 1 - 1e-9
"""What counts as shorter."""

Cuts = tuple[int, ...]
"""Where stages begin, and where the last one ends, in layers."""


def cut_layers(evaluator: Evaluator, plan: Parallelism, shardings: Shardings) -> Cuts:
    """Boundaries of the stages that make the slowest fast, embedding and head counted where they are.

    With few micro-batches what each rank does once a step counts as well, such as reducing the gradients of its layers:
    boundaries are then moved while that makes the simulated step shorter.
    """
    cuts = _cut(evaluator, plan, shardings, None)
    return _shortened(evaluator, plan, shardings, cuts) if is_short(plan) else cuts


def is_short(plan: Parallelism) -> bool:
    """Whether boundaries are moved for the step's end, which takes longer than any bound."""
    stages = plan.pipeline * plan.virtual_stages
    return plan.pipeline > 1 and stages <= MOST_STAGES and plan.num_microbatches <= MOST_TURNS * plan.pipeline


def _shortened(evaluator: Evaluator, plan: Parallelism, shardings: Shardings, cuts: Cuts) -> Cuts:
    """By one layer at a time, the best of all moves."""
    steps = Steps(evaluator, plan, shardings)
    least = steps.seconds(cuts)
    while True:
        best, moved = _best_move(steps, cuts, least)
        if best >= LESS * least:
            return cuts
        least, cuts = best, moved


def _best_move(steps: "Steps", cuts: Cuts, least: float) -> tuple[float, Cuts]:
    """The move that makes the step shortest, and that step [s]; only what may be under ``least`` is simulated.

    A move that comes to the front is bounded along the paths that are known, too, and put back.
    """
    steps.look_along(cuts)
    best = (least, cuts)
    heap = [(steps.floor(moved), False, moved) for moved in moved_by_one(cuts)]
    heapq.heapify(heap)
    while heap and heap[0][0] <= best[0]:
        floor, along_paths, moved = heapq.heappop(heap)
        if along_paths:
            best = min(best, (steps.seconds(moved), moved))
        else:
            heapq.heappush(heap, (max(floor, steps.along_paths(moved)), True, moved))
    return best


class Steps:
    """The step of one plan by its cuts; what took longest under some of these takes its time under others, too."""

    def __init__(self, evaluator: Evaluator, plan: Parallelism, shardings: Shardings) -> None:
        """Nothing is simulated yet."""
        self._given = evaluator.setting, plan, evaluator.mesh(plan)
        self._around = evaluator.around
        self._paths: list[Path] = []
        self._stages = cache(partial(evaluator.stages, plan, shardings))
        self._least = StepFloor(*self._given, self._around)
        self.seconds: Callable[[Cuts], float] = cache(partial(evaluator.seconds, plan, shardings))
        self.floor: Callable[[Cuts], float] = cache(self._floor)
        """Less than `seconds` will say [s]; cuts come again, as neighbours have moves in common."""

    def look_along(self, cuts: Cuts) -> None:
        """Let floors know what these cuts have to wait for."""
        self._paths.append(critical_path(*self._given, self._stages(cuts), self._around))

    def _floor(self, cuts: Cuts) -> float:
        return self._least(self._stages(cuts))

    def along_paths(self, cuts: Cuts) -> float:
        """The same, and no less than what was waited for under other cuts takes [s]."""
        return self._least(self._stages(cuts), self._paths)


def cut_layers_to_fit(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, limit: float
) -> tuple[int, ...] | None:
    """The same with as many layers on each stage as fit in ``limit`` bytes; None where that is too few.

    A stage holds what it has in flight under the schedule: early ones more micro-batches than late ones. With
    several stages on each rank the ranks hold much the same, and nothing is gained by uneven ones, unless boundaries
    were moved.
    """
    if plan.pipeline == 1:
        return None
    if plan.virtual_stages > 1:
        return _cut(evaluator, plan, shardings, None) if is_short(plan) else None
    most = _most_by_stage(evaluator, plan, shardings, limit)
    try:
        return _cut(evaluator, plan, shardings, most) if most else None
    except Infeasible:
        return None


def _most_by_stage(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, limit: float
) -> tuple[int, ...] | None:
    """Most layers on each stage; None where one has room for none, or all together for too few.

    Ends come first, then the stages between by what they have in flight: those that follow have no more room.
    """
    order = programs(plan.schedule, plan.pipeline, 1, steady_microbatches(plan))
    in_flight, last = peak_in_flight(order), plan.pipeline - 1
    most = [0] * plan.pipeline
    between = sorted(range(1, last), key=in_flight.__getitem__)
    for done, stage in enumerate((0, last, *between), start=1):
        most[stage] = _most_layers(evaluator, plan, shardings, stage, in_flight[stage], limit)
        others = (plan.pipeline - done) * (most[stage] if done > 2 else evaluator.graph.num_layers)
        if most[stage] < 1 or sum(most) + others < evaluator.graph.num_layers:
            return None
    return tuple(most)


def _most_layers(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, stage: int, in_flight: int, limit: float
) -> int:
    """Layers of the largest kind that fit on a stage; memory grows by the same bytes with every layer."""
    first, last = stage == 0, stage == plan.pipeline - 1

    @cache
    def total(name: str, count: int) -> float:
        shape = StageShape(((name, count),), first, last)
        cost: StageCost = evaluator.stage(plan, shape, plan.recompute, shardings)
        mesh = evaluator.mesh(plan)
        held = in_flight * cost.saved_bytes
        return device_memory([cost], held, evaluator.job, plan, mesh, evaluator.software).total

    name = max({run.block for run in evaluator.graph.layers}, key=lambda block: (total(block, 1), block))
    one, two = total(name, 1), total(name, 2)
    if one > limit:
        return 0
    return min(evaluator.graph.num_layers, 1 + int((limit - one) / (two - one))) if two > one else 1


def _cut(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, most: Sequence[int] | None
) -> tuple[int, ...]:
    graph = evaluator.graph
    num_stages = plan.pipeline * plan.virtual_stages
    if plan.pipeline == 1:
        return even_cuts(graph.num_layers, num_stages)

    def seconds(layers: tuple[tuple[str, int], ...], first: bool, last: bool) -> float:
        return evaluator.stage(plan, StageShape(layers, first, last), plan.recompute, shardings).seconds

    by_block = {run.block: seconds(((run.block, 1),), False, False) for run in graph.layers}
    unit = max(by_block.values())
    first = seconds((), True, False) / unit if graph.first else 0.0
    last = seconds((), False, True) / unit if graph.last else 0.0
    steps = tuple(round(by_block[name] / unit * RESOLUTION) for name in graph.sequence)
    return _boundaries(steps, num_stages, round(first * RESOLUTION), round(last * RESOLUTION), most)


@lru_cache(maxsize=4096)
def _boundaries(
    steps: tuple[int, ...], num_stages: int, first: int, last: int, most: tuple[int, ...] | None
) -> tuple[int, ...]:
    # The sum over stages is the same for every cut, so any two micro-batches ask for the slowest to be fast.
    found = partition_homogeneous(steps, num_stages, 2, first, last, most)
    return (0, *(end for _, end in found.stages))


def moved_by_one(cuts: Cuts) -> Iterator[Cuts]:
    """The cuts with one layer moved from a stage to any other, all boundaries between them shifted; ends first."""
    sizes = [end - start for start, end in pairwise(cuts)]
    for giver in range(len(sizes)):
        for taker in range(len(sizes)):
            if giver == taker or sizes[giver] == 1:
                continue
            changed = list(sizes)
            changed[giver] -= 1
            changed[taker] += 1
            ends = [0]
            for size in changed:
                ends.append(ends[-1] + size)
            yield tuple(ends)
