"""The door to the search: stages that are alike, or that differ where the cluster does or the user asks."""

from cluster_specs.cluster import ClusterSpec
from planner.models.model import Model
from planner.plans import Job, Objective, Pins, Plan
from planner.search import pooled, recommend
from planner.search.best_first import Progress


def plan(
    model: Model,
    cluster: ClusterSpec,
    job: Job,
    pins: Pins | None = None,
    objective: Objective = "time",
    top: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The best plan for training ``model`` on ``cluster``, with its estimate and the next best.

    Raises:
        InputError: pins that contradict model, cluster or job.
        Infeasible: nothing fits; says the least memory and what would make it fit.
    """
    asked = pins or Pins()
    chosen = pooled.plan_pools if cluster.others or asked.unequal_stages else recommend.plan
    return chosen(model, cluster, job, asked, objective, top, progress)
