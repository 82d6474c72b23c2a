"""The last step of the search over equal stages: boundaries moved by a layer while the simulated step gets shorter.

Layers are cut by what the slowest stage takes, which is what counts for many micro-batches; how much of a stage's time
the pipeline hides depends on where it is, and only the simulator knows.
"""

from collections.abc import Iterator
from itertools import pairwise

from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.step import step_time
from planner.plans import Estimate, Parallelism

MOST_ACTIONS = 200_000
"""Of pipelines that are simulated for it, altogether."""

LESS = 1 - 1e-9
"""What counts as faster."""

Cuts = tuple[int, ...]


def polished(
    evaluator: Evaluator,
    plan: Parallelism,
    shardings: Shardings,
    start: tuple[Cuts, Estimate],
    limit: float,
) -> tuple[Cuts, Estimate]:
    """Cuts that are no slower than those of ``start`` within ``limit`` bytes on each device, and their estimate."""
    (cuts, estimate), left = start, _simulations(plan)
    best = estimate.step_time_s
    improving = plan.pipeline > 1 and left >= 2 * len(cuts)
    while improving and left:
        improving = False
        for moved in _moved(cuts):
            if left == 0:
                break
            left -= 1
            if evaluator.floor(plan, shardings, moved) >= LESS * best:
                continue
            seconds = _seconds(evaluator, plan, shardings, moved)
            if seconds < LESS * best and evaluator.memory(plan, shardings, moved) <= limit:
                cuts, best, improving = moved, seconds, True
    return cuts, estimate if cuts == start[0] else evaluator.estimate(plan, shardings, cuts)


def _seconds(evaluator: Evaluator, plan: Parallelism, shardings: Shardings, cuts: Cuts) -> float:
    """What `Evaluator.estimate` says of the step [s], without all else that it says."""
    stages = evaluator.stages(plan, shardings, cuts)
    return step_time(evaluator.setting, plan, evaluator.mesh(plan), stages).total


def _simulations(plan: Parallelism) -> int:
    actions = 2 * plan.num_microbatches * plan.pipeline * plan.virtual_stages
    return MOST_ACTIONS // actions


def _moved(cuts: Cuts) -> Iterator[Cuts]:
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
