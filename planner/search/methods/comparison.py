"""Methods side by side: how good their answers are and what they cost, each on an evaluator of its own."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Record
from planner.errors import Infeasible, InputError, UnknownName
from planner.evaluation.evaluator import Evaluator
from planner.models.model import Model
from planner.plans import Estimate, Job, Parallelism, Pins
from planner.search.best_first import Search
from planner.search.methods.annealing import annealing
from planner.search.methods.beam import beam
from planner.search.methods.exhaustive import exhaustive
from planner.search.methods.learned import learned
from planner.search.methods.problem import BudgetSpent, Problem
from planner.search.pins import check_pins

Progress = Callable[[str], None]

EXACT = "exact"


class Method(NamedTuple):
    """A way to search."""

    run: Callable[[Problem, int], None] | None
    """Prices plans of the problem, drawing from the seed; None is the planner's own search."""
    description: str
    source: str


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        EXACT: Method(None, "best bound first, until no bound can win: the default", "docs/decisions/0004"),
        "exhaustive": Method(exhaustive, "every plan in turn", "none"),
        "beam": Method(beam, "one decision after the other, the best few beginnings kept", "Lowerre 1976"),
        "annealing": Method(
            annealing, "random changes, kept by their gain (MCMC)", "FlexFlow, arXiv:1807.05358"
        ),
        "learned": Method(learned, "a policy trained by policy gradient", "ColocRL, arXiv:1706.04972"),
    }
)
"""Method by name."""


class MethodResult(Record):
    """What one method found, and at what cost."""

    method: str
    description: str
    plan: Parallelism | None
    """None where nothing that was priced fits."""
    estimate: Estimate | None
    slower: float | None
    """Step time over that of the best answer of all methods, less 1."""
    evaluated: int
    """Plans priced."""
    best_after: int | None
    """Plans priced until the answer was found."""
    cpu_seconds: float
    """Time to answer on this machine: the only number here that varies from run to run."""
    proven: bool
    """Nothing in the space is better."""
    limit: str | None
    """What stopped it; None where it was done."""


class MethodComparison(Record):
    """Methods on one question."""

    budget: int
    seed: int
    results: tuple[MethodResult, ...]


def compare_methods(
    model: Model,
    cluster: ClusterSpec,
    job: Job,
    pins: Pins | None = None,
    *,
    methods: tuple[str, ...] = tuple(METHODS),
    budget: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> MethodComparison:
    """Run ``methods`` on the same question, each with at most ``budget`` plans priced but for the exact one.

    Raises ``UnknownName`` for a method, ``InputError`` for a budget below 1 or a cluster of pools, ``Infeasible`` where
    no plan has these degrees.
    """
    if budget < 1:
        raise InputError(f"--budget {budget}: at least 1 plan must be priced")
    if cluster.others:
        raise InputError(f"cluster {cluster.name} has pools: methods are compared on equal stages only")
    for name in methods:
        if name not in METHODS:
            raise UnknownName("method", name, METHODS)
    results = []
    for name in methods:
        if progress is not None:
            progress(f"method {name}")
        evaluator, asked = Evaluator(model, cluster, job), pins or Pins()
        check_pins(evaluator, asked)
        search = Search(evaluator, asked, "time")
        results.append(_run_exact(search) if name == EXACT else _run(name, search, budget, seed))
    best = min((r.estimate.step_time_s for r in results if r.estimate is not None), default=None)
    return MethodComparison(budget=budget, seed=seed, results=tuple(_judged(r, best) for r in results))


def _judged(result: MethodResult, best: float | None) -> MethodResult:
    if best is None or result.estimate is None:
        return result
    return result.model_copy(update={"slower": result.estimate.step_time_s / best - 1})


def _run_exact(search: Search) -> MethodResult:
    start = time.process_time()
    try:
        outcome = search.run(1)
    except Infeasible:
        outcome = None
    spent = time.process_time() - start
    found = None if outcome is None else outcome.found[0]
    return MethodResult(
        method=EXACT,
        description=METHODS[EXACT].description,
        plan=None if found is None else found.plan,
        estimate=None if found is None else found.estimate,
        slower=None,
        evaluated=0 if outcome is None else outcome.optimality.evaluated,
        best_after=None if outcome is None else outcome.optimality.evaluated,
        cpu_seconds=spent,
        proven=True,
        limit=None,
    )


def _run(name: str, search: Search, budget: int, seed: int) -> MethodResult:
    start, limit = time.process_time(), None
    problem, method = Problem(search, budget), METHODS[name]
    assert method.run is not None  # the exact one has a path of its own
    try:
        method.run(problem, seed)
    except BudgetSpent:
        limit = f"{budget} evaluations"
    spent, found = time.process_time() - start, problem.best
    return MethodResult(
        method=name,
        description=method.description,
        plan=None if found is None else found.plan,
        estimate=None if found is None else found.estimate,
        slower=None,
        evaluated=problem.evaluated,
        best_after=None if found is None else problem.best_after,
        cpu_seconds=spent,
        proven=name == "exhaustive" and limit is None,
        limit=limit,
    )
