"""The last step of the search over equal stages: boundaries moved by a layer while the simulated step gets shorter.

Layers are cut by what the slowest stage takes, which is what counts for many micro-batches; how much of a stage's time
the pipeline hides depends on where it is, and only the simulator knows.
"""

from collections.abc import Iterator
from itertools import pairwise

from planner.evaluation.evaluator import Evaluator, Shardings
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
    (cuts, best), left = start, _simulations(plan)
    improving = plan.pipeline > 1 and left >= 2 * len(cuts)
    while improving:
        improving = False
        for moved in _moved(cuts):
            if left == 0:
                return cuts, best
            left -= 1
            if evaluator.floor(plan, shardings, moved) >= LESS * best.step_time_s:
                continue
            estimate = evaluator.estimate(plan, shardings, moved)
            if estimate.memory_bytes <= limit and estimate.step_time_s < LESS * best.step_time_s:
                cuts, best, improving = moved, estimate, True
    return cuts, best


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
