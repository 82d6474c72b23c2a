"""The last step of the search over equal stages: boundaries moved by a layer while the simulated step gets shorter.

Layers are cut by what the slowest stage takes, which is what counts for many micro-batches; how much of a stage's time
the pipeline hides depends on where it is, and only the simulator knows.
"""

from planner.evaluation.evaluator import Evaluator, Shardings
from planner.plans import Estimate, Parallelism
from planner.search.stages import LESS, Cuts, Steps, moved_by_one

MOST_ACTIONS = 200_000
"""Of pipelines that are simulated for it, altogether."""


def polished(
    evaluator: Evaluator,
    plan: Parallelism,
    shardings: Shardings,
    start: tuple[Cuts, Estimate],
    limit: float,
) -> tuple[Cuts, Estimate]:
    """Cuts that are no slower than those of ``start`` within ``limit`` bytes on each device, and their estimate.

    Only what may be shorter along the paths that the pipeline waited for is simulated.
    """
    (cuts, estimate), left = start, _simulations(plan)
    steps = Steps(evaluator, plan, shardings)
    best = estimate.step_time_s
    improving = plan.pipeline > 1 and left >= 2 * len(cuts)
    while improving and left:
        improving = False
        steps.look_along(cuts)
        for moved in moved_by_one(cuts):
            if left == 0:
                break
            left -= 1
            if any(floor(moved) >= LESS * best for floor in (steps.floor, steps.along_paths)):
                continue
            seconds = steps.seconds(moved)
            if seconds < LESS * best and evaluator.memory(plan, shardings, moved, limit) <= limit:
                cuts, best, improving = moved, seconds, True
    return cuts, estimate if cuts == start[0] else evaluator.estimate(plan, shardings, cuts)


def _simulations(plan: Parallelism) -> int:
    actions = 2 * plan.num_microbatches * plan.pipeline * plan.virtual_stages
    return MOST_ACTIONS // actions
