"""What the rules of the space leave out, where it would have been faster."""

from cluster_specs.units import format_seconds
from planner.evaluation.evaluator import Evaluator
from planner.plans import Pins, Plan
from planner.search.best_first import Search
from planner.search.recommend import recommended
from planner.search.space import scale_up_size, searches_pipelines

WORTH_NAMING = 0.03
"""Share of a step that a pipeline must save to be named."""


def faster_pipeline(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan with a pipeline, where ``answer`` has none for want of looking and it would be clearly faster.

    Only clusters are looked at whose scale-up domains are joined by slower links: inside one, a pipeline saves
    little. Where stages may differ pipelines are always searched. ``answer`` has an estimate; ``pins`` are those that
    it was found under.
    """
    pins = pins or Pins()
    if answer.cluster.others or pins.unequal_stages:
        return None
    evaluator = Evaluator(answer.model, answer.cluster, answer.job)
    near = answer.plan.num_devices <= scale_up_size(answer.cluster)
    if near or answer.plan.pipeline > 1 or searches_pipelines(evaluator, pins):
        return None
    assert answer.estimate is not None  # the caller's promise
    below = answer.estimate.step_time_s * (1 - WORTH_NAMING)
    found = Search(evaluator, pins, "time").pipelined(below)
    if found is None:
        return None
    return recommended(evaluator, pins.model_copy(update={"pipeline": found.plan.pipeline}), "time", top=1)


def naming_pipeline(answer: Plan, pins: Pins | None = None) -> Plan:
    """``answer`` with a warning where `faster_pipeline` finds one."""
    faster = faster_pipeline(answer, pins)
    if faster is None:
        return answer
    assert faster.estimate is not None  # just planned, as its answer was
    assert answer.estimate is not None
    seconds = faster.estimate.step_time_s
    warning = (
        f"pipelines were not searched, as the model is small for a node; by these numbers --pipeline "
        f"{faster.plan.pipeline} would take {format_seconds(seconds)} a step, "
        f"{1 - seconds / answer.estimate.step_time_s:.0%} less"
    )
    return answer.model_copy(update={"warnings": (*answer.warnings, warning)})
