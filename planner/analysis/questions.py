"""One question to the search, and its answer whether or not anything fits."""

from collections.abc import Callable
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator
from planner.models.model import Model
from planner.plans import Estimate, Job, Parallelism, Pins, Plan
from planner.search.best_first import USUAL_TOP, Search
from planner.search.finishing import finished_plans, with_stages
from planner.search.pins import check_pins
from planner.search.pooled import plan_pools
from planner.search.recommend import doubts

Progress = Callable[[int, int], None]


class Question(NamedTuple):
    """What the search is asked; a what-if is a copy with one field replaced."""

    model: Model
    cluster: ClusterSpec
    job: Job
    pins: Pins

    @property
    def usable_bytes(self) -> float:
        """Device memory less the headroom that the job keeps free."""
        return self.cluster.device.memory * (1 - self.job.memory_headroom)

    def pinned(self, **pins: object) -> "Question":
        """A copy with some pins set, or released by None."""
        return self._replace(pins=Pins.model_validate({**self.pins.model_dump(), **pins}))

    def working(self, **job: object) -> "Question":
        """A copy with some fields of the job changed."""
        return self._replace(job=Job.model_validate({**self.job.model_dump(), **job}))


def answer(question: Question, progress: Progress | None = None) -> Plan:
    """The fastest plan that fits, or the one with the least memory where none does, with its estimate.

    Raises ``InputError`` for contradictory pins, ``Infeasible`` where no plan has the pinned degrees at all.
    """
    if _differs(question):
        return _on_pools(question, progress)
    search = _search(question)
    try:
        choice = finished_plans(search, search.run(USUAL_TOP, progress))[0].plan
    except Infeasible:
        if search.nearest is None:
            raise
        choice = with_stages(search, search.nearest.candidate, search.nearest.plan, search.nearest.cuts)
    return _planned(question, search, choice)


def fitting(question: Question, progress: Progress | None = None) -> Plan | None:
    """The same; None where none fits, sooner than the one with the least memory is found.

    On unlike pools that is ``Infeasible``.
    """
    if _differs(question):
        return _on_pools(question, progress)
    search = _search(question)
    outcome = search.if_any(USUAL_TOP, progress)
    return _planned(question, search, finished_plans(search, outcome)[0].plan) if outcome else None


def _differs(question: Question) -> bool:
    return bool(question.cluster.others or question.pins.unequal_stages)


def _on_pools(question: Question, progress: Progress | None) -> Plan:
    model, cluster, job, pins = question
    return plan_pools(Evaluator(model, cluster, job), pins, progress=progress)


def _search(question: Question) -> Search:
    model, cluster, job, pins = question
    evaluator = Evaluator(model, cluster, job)
    check_pins(evaluator, pins)
    return Search(evaluator, pins, "time")


def _planned(question: Question, search: Search, choice: Parallelism) -> Plan:
    model, cluster, job, _ = question
    estimate = search.evaluator.estimate(choice)
    found = Plan(model=model, cluster=cluster, job=job, plan=choice, estimate=estimate)
    return found.model_copy(update={"warnings": doubts(found)})


def priced(question: Question, choice: Parallelism) -> Plan:
    """A given choice under the question's model, cluster and job; raises ``InputError`` where it contradicts them."""
    model, cluster, job, _ = question
    estimate = Evaluator(model, cluster, job).estimate(choice)
    return Plan(model=model, cluster=cluster, job=job, plan=choice, estimate=estimate)


def known(plan: Plan) -> Estimate:
    """The estimate of a plan that has one; raises ``InputError``."""
    if plan.estimate is None:
        raise InputError("the plan has no estimate: evaluate it first")
    return plan.estimate
