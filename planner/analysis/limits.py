"""How far a plan can be stretched before its memory is full: the largest micro-batch, the longest sequence."""

import math
from collections.abc import Callable

from cluster_specs.errors import InputError
from planner.errors import PlannerError
from planner.evaluation.evaluator import Evaluator
from planner.plans import Parallelism, Plan

SEQUENCE_STEP = 128
"""Sequences are lengthened in whole tiles of an attention kernel."""

LONGEST = 1 << 24
"""Tokens beyond which nobody asks."""


def usable_bytes(plan: Plan) -> float:
    """Device memory less the headroom of the job."""
    return plan.cluster.device.memory * (1 - plan.job.memory_headroom)


def largest_micro_batch(plan: Plan) -> int | None:
    """Most sequences per micro-batch with which the plan, otherwise unchanged, fits; None if not even one does."""
    evaluator = Evaluator(plan.model, plan.cluster, plan.job)
    share = plan.job.global_batch // plan.plan.data

    def fits(micro_batch: int) -> bool:
        changed = {"micro_batch": micro_batch, "num_microbatches": share // micro_batch}
        return _memory(evaluator, plan.plan.model_copy(update=changed)) <= usable_bytes(plan)

    return max((b for b in range(1, share + 1) if share % b == 0 and fits(b)), default=None)


def longest_sequence(plan: Plan) -> int | None:
    """Most tokens per sequence with which the plan, otherwise unchanged, fits; None if no length does.

    A multiple of `SEQUENCE_STEP` that context parallelism can deal out.
    """
    step = math.lcm(SEQUENCE_STEP, 2 * plan.plan.context)

    def fits(steps: int) -> bool:
        try:
            evaluator = Evaluator(
                plan.model, plan.cluster, plan.job.model_copy(update={"seq_len": steps * step})
            )
        except InputError:
            return False  # longer than the positions that the model knows
        return _memory(evaluator, plan.plan) <= usable_bytes(plan)

    most = _largest(fits, LONGEST // step)
    return most * step if most else None


def _memory(evaluator: Evaluator, choice: Parallelism) -> float:
    """Bytes of the fullest device; infinite where the schedule does not take so few micro-batches."""
    try:
        return evaluator.estimate(choice).memory_bytes
    except (InputError, PlannerError):
        return math.inf


def _largest(holds: Callable[[int], bool], limit: int) -> int:
    """Largest number up to ``limit`` for which ``holds``, which is true up to some number; 0 if for none."""
    high = 1
    while high <= limit and holds(high):
        high *= 2
    low, high = high // 2, min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
