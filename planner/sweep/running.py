"""A sweep from its inputs to its record: equal points planned once, finished ones kept, the rest put to an engine."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, get_args

from planner.analysis.economics import Terms, economics
from planner.analysis.naming import short_name
from planner.analysis.questions import Question
from planner.analysis.sensitivity import sensitivity
from planner.errors import InputError, UnknownName
from planner.plans import Estimate, Objective, Parallelism, Plan
from planner.sweep.answers import Answer, key_of
from planner.sweep.efficiency import efficiencies, knees
from planner.sweep.engines import ENGINES
from planner.sweep.grid import Axes, Cell, cells
from planner.sweep.journal import Journal
from planner.sweep.pareto import front, recommended
from planner.sweep.records import Point, Sweep

Progress = Callable[[int, int], None]
"""Called with (done, total) searches."""

EFFICIENCY_THRESHOLD = 0.9


def sweep(
    axes: Axes,
    terms: Terms | None = None,
    *,
    fixed: Mapping[str, Any] | None = None,
    objective: Objective = "time",
    jobs: int = 1,
    engine: str = "local",
    journal: Path | None = None,
    threshold: float = EFFICIENCY_THRESHOLD,
    progress: Progress | None = None,
) -> Sweep:
    """Plan every combination of ``axes``.

    For example::

        sweep({"model": ["llama-3.1-8b"], "cluster": ["dgx-h100"], "devices": [8, 16],
               "seq_len": [8192], "global_batch": [64]})

    An axis is ``model``, ``cluster``, ``devices``, ``batch_tokens``, a field of `Job` or `Pins`, or a hardware number
    (a name of ``KNOBS`` or a dotted path); ``fixed`` are fields that all points share. ``journal`` keeps finished
    points on disk, and what it has is not planned again.

    Raises:
        InputError: an axis is unknown, or every point contradicts itself.
        PlannerError: workers were lost again and again.
    """
    _check(objective, jobs, engine)
    grid = list(cells(axes, fixed))
    if all(cell.question is None for cell in grid):
        raise InputError(f"no point can be planned: {grid[0].reason}")
    keys = [None if cell.question is None else key_of(cell.question, objective) for cell in grid]
    questions = {key: cell.question for key, cell in zip(keys, grid, strict=True) if key and cell.question}
    answers = answer_all(questions, objective, jobs=jobs, engine=engine, journal=journal, progress=progress)
    points = [
        as_point(cell, key, answers.get(key or ""), terms or Terms())
        for cell, key in zip(grid, keys, strict=True)
    ]
    weighed = _weighed(axes, points, terms or Terms(), objective, len(questions), threshold)
    return _explained(weighed, grid)


def answer_all(
    questions: Mapping[str, Question],
    objective: Objective,
    *,
    jobs: int = 1,
    engine: str = "local",
    journal: Path | None = None,
    progress: Progress | None = None,
) -> Mapping[str, Answer]:
    """Answers to all questions by key, those in the journal taken from there and new ones added to it."""
    with ExitStack() as stack:
        kept = stack.enter_context(Journal(journal)) if journal else None
        answers = {key: kept.answers[key] for key in questions if key in kept.answers} if kept else {}
        left = {key: question for key, question in questions.items() if key not in answers}
        if progress is not None:
            progress(len(answers), len(questions))
        if not left:
            return answers
        finished = stack.enter_context(closing(ENGINES[engine](left, objective, jobs)))
        for key, answer in finished:
            if kept is not None:
                kept.add(key, answer)
            answers[key] = answer
            if progress is not None:
                progress(len(answers), len(questions))
        return answers


def _check(objective: str, jobs: int, engine: str) -> None:
    if objective not in get_args(Objective):
        raise InputError(f"objective {objective!r} is unknown; use {', '.join(get_args(Objective))}")
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; a sweep needs at least 1")
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)


def as_point(cell: Cell, key: str | None, answer: Answer | None, terms: Terms) -> Point:
    """One point, with its economics."""
    if answer is None or key is None or cell.question is None:
        return Point(inputs=cell.inputs, key="", status="invalid", reason=cell.reason)
    if answer.plan is None or answer.estimate is None:
        return Point(inputs=cell.inputs, key=key, status=answer.status, reason=answer.reason)
    estimate = answer.estimate
    return Point(
        inputs=cell.inputs,
        key=key,
        status=answer.status,
        name=short_name(answer.plan),
        plan=answer.plan,
        estimate=estimate,
        optimality=answer.optimality,
        warnings=answer.warnings,
        economics=economics(_plan(cell.question, answer.plan, estimate), terms),
        memory_headroom=1 - estimate.memory_bytes / estimate.memory_limit_bytes,
    )


def _plan(question: Question, choice: Parallelism, estimate: Estimate | None = None) -> Plan:
    """The point as a plan, its operators' shardings apart."""
    model, cluster, job, _ = question
    return Plan(model=model, cluster=cluster, job=job, plan=choice, estimate=estimate)


def _weighed(
    axes: Axes, points: Sequence[Point], terms: Terms, objective: str, searches: int, threshold: float
) -> Sweep:
    """All points, weighed against each other."""
    on_front, shares = front(points), efficiencies(points)
    weighed = [
        point.model_copy(update={"pareto": i in on_front, "scaling_efficiency": shares.get(i)})
        for i, point in enumerate(points)
    ]
    unknown = dict.fromkeys(reason for p in points if p.economics for reason in p.economics.unknown)
    unknown |= dict.fromkeys(said for point in points for said in point.warnings)
    return Sweep(
        axes={name: tuple(values) for name, values in axes.items()},
        terms=terms,
        objective=objective,
        points=tuple(weighed),
        knees=knees(weighed, threshold),
        searches=searches,
        recommended=recommended(weighed),
        warnings=tuple(unknown),
    )


def _explained(answer: Sweep, grid: Sequence[Cell]) -> Sweep:
    """Recommended points with what their step time hangs on."""
    points = list(answer.points)
    for i in answer.recommended:
        question, choice = grid[i].question, points[i].plan
        if question is not None and choice is not None:
            found = sensitivity(_plan(question, choice))
            points[i] = points[i].model_copy(update={"sensitivity": found})
    return answer.model_copy(update={"points": tuple(points)})
