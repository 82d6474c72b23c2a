"""From what a search found to plans whose stages are written out.

Boundaries are moved and late stages recompute less where that makes a plan faster; neither is in the searched
space. The best plan of each family is finished, and any other that may be the best of all once it is: those that were
priced, and those whose stages may be faster with policies of their own than any that was.
"""

from planner.pipeline.generators import stage_to_rank
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Parallelism, StagePlan
from planner.search.best_first import VALUES, Found, Outcome, Search, family_of
from planner.search.branches import Answer
from planner.search.candidates import Candidate
from planner.search.mixing import worth_mixing
from planner.search.placing import sharding_of
from planner.search.polishing import polished
from planner.search.recomputing import is_cut_anew, relaxed
from planner.search.scheduling import tailored_schedule
from planner.search.space import SEARCHED_POLICIES, families, searches_pipelines

MOST_MOVED = 0.02
"""Share of a step that finishing may save beyond what it saves for the best of the same family."""

NOTHING = float("inf")


def finished_plans(search: Search, outcome: Outcome) -> list[Answer]:
    """The best plan of each family, best first."""

    def value(answer: Answer) -> tuple[float, ...]:
        return VALUES[search.objective](answer.seconds, answer.plan.num_devices)

    best, least = dict[tuple[object, ...], Answer](), NOTHING
    for found in outcome.found:
        best[family_of(found.candidate)] = answer = _answer(search, found, least)
        least = min(least, answer.seconds)
    for found in outcome.fitting if search.objective == "time" else ():
        saved = MOST_MOVED * found.estimate.step_time_s
        if search.pins.schedule == AUTOMATIC:
            saved += found.estimate.time.get("bubble", 0.0)
        if found in outcome.found or found.estimate.step_time_s - saved > least:
            continue
        answer = _answer(search, found, least, known=least)
        if answer.seconds < least:
            best[family_of(found.candidate)], least = answer, answer.seconds
    if search.objective == "time" and search.pins.recompute is None:
        pipelines = any(f.plan.pipeline > 1 for f in outcome.fitting)
        mixed = mixed_plans(search, searches_pipelines(search.evaluator, search.pins) or pipelines, least)
        best |= {family_of(c): answer for c, answer in mixed}
    return _unlike(sorted(best.values(), key=value))


def mixed_plans(search: Search, pipelines: bool, least: float) -> list[tuple[Candidate, Answer]]:
    """Plans with policies by stage that take less than ``least`` [s], ever faster; none where ``pipelines`` are not
    looked at.
    """
    evaluator, answers = search.evaluator, list[tuple[Candidate, Answer]]()
    space = families(evaluator, search.pins, search.objective, pipelines)
    slower = dict[Candidate, list[tuple[object, ...]]]()
    for bound, c in worth_mixing(search.floors, space, least):
        if bound >= least:
            break
        bare, cuts = search.unpriced(c)
        alike = search.sharding(c), () if is_cut_anew(evaluator, bare) else cuts
        tried = slower.setdefault(c._replace(recompute=SEARCHED_POLICIES[0]), [])
        if alike in tried:  # all policies are open to either
            continue
        plan = with_stages(search, c, bare, cuts)
        mixed = relaxed(evaluator, plan, search.sharding(c), search.limit, least)
        if mixed == plan or evaluator.estimate(mixed).step_time_s * (1 - MOST_MOVED) >= least:
            tried.append(alike)
            continue
        answer = _answer(search, search.price(c), least, known=least)
        if answer.seconds < least and answer.estimate.memory_bytes <= search.limit:
            answers.append((c, answer))
            least = answer.seconds
    return answers


def _unlike(answers: list[Answer]) -> list[Answer]:
    """Without those that became what one before them is."""
    plans = [answer.plan for answer in answers]
    return [answer for n, answer in enumerate(answers) if answer.plan not in plans[:n]]


def _answer(search: Search, found: Found, least: float, known: float = NOTHING) -> Answer:
    """The finished plan; a schedule is made for it where it may then take less than ``least`` [s]."""
    plan = finished(search, found, known)
    if search.pins.schedule == AUTOMATIC:
        plan = tailored_schedule(search.evaluator, plan, least)
    return Answer(plan, search.evaluator.estimate(plan))


def finished(search: Search, found: Found, known: float = NOTHING) -> Parallelism:
    """The plan with its boundaries where the simulated step is shortest, and its own recomputation on each stage.

    Recomputation is left as it is where a step cannot take less than ``known`` [s] by it.
    """
    evaluator, shardings = search.evaluator, search.sharding(found.candidate)
    cuts, estimate = polished(evaluator, found.plan, shardings, (found.cuts, found.estimate), search.limit)
    written = with_stages(search, found.candidate, found.plan, cuts)
    if search.pins.recompute is not None:
        return written
    own = estimate.step_time_s if estimate.memory_bytes <= search.limit else NOTHING
    return relaxed(evaluator, written, shardings, search.limit, min(known, own))


def with_stages(search: Search, c: Candidate, plan: Parallelism, cuts: tuple[int, ...]) -> Parallelism:
    """The plan with its stages written out: layers, devices, mesh and every operator's sharding."""
    graph, shardings = search.evaluator.graph, search.sharding(c)
    per_stage = plan.num_devices // plan.pipeline
    rank_of = stage_to_rank(plan.schedule, plan.pipeline, plan.virtual_stages)
    stages = []
    for s, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        devices = (rank_of[s] * per_stage, (rank_of[s] + 1) * per_stage)
        sharding = sharding_of(graph, shardings, (start, end))
        own = plan.stages[s].recompute if plan.stages else None
        stages.append(
            StagePlan(
                blocks=(start, end),
                devices=devices,
                mesh=plan.axes,
                sharding=sharding,
                recompute=None if own == plan.recompute else own,
            )
        )
    return Parallelism(**{**plan.model_dump(), "stages": tuple(stages)})
