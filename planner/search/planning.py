"""The door to the search: stages that are alike, or that differ where the cluster does or the user asks."""

from cluster_specs.cluster import ClusterSpec
from planner.evaluation.evaluator import Evaluator
from planner.garbage import uncollected
from planner.models.model import Model
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Job, Objective, Pins, Plan
from planner.search.best_first import USUAL_TOP, Progress
from planner.search.pooled import plan_pools
from planner.search.recommend import recommended
from planner.search.scheduling import with_schedule


def plan(
    model: Model,
    cluster: ClusterSpec,
    job: Job,
    pins: Pins | None = None,
    objective: Objective = "time",
    top: int = USUAL_TOP,
    progress: Progress | None = None,
) -> Plan:
    """The best plan for training ``model`` on ``cluster``, with its estimate and the next best.

    Raises:
        InputError: pins that contradict model, cluster or job.
        Infeasible: nothing fits; says the least memory and what would make it fit.
    """
    asked = pins or Pins()
    evaluator = Evaluator(model, cluster, job)
    with uncollected():
        if not (cluster.others or asked.unequal_stages):
            return _noted(recommended(evaluator, asked, objective, top, progress))
        answer = plan_pools(evaluator, asked, objective, top, progress)
        found = asked.schedule == AUTOMATIC and answer.plan.pipeline > 1
        return _noted(rescheduled(answer) if found else answer)


def _noted(answer: Plan) -> Plan:
    """The answer with what was to be said of the model's file."""
    return answer.model_copy(update={"warnings": (*answer.warnings, *answer.model.notes)})


def rescheduled(answer: Plan, schedule: str = AUTOMATIC) -> Plan:
    """The answer under another schedule (see `with_schedule`), with its estimate; errors as there."""
    evaluator = Evaluator(answer.model, answer.cluster, answer.job)
    moved = with_schedule(evaluator, answer.plan, schedule)
    return answer.model_copy(update={"plan": moved, "estimate": evaluator.estimate(moved)})
