"""The verbs of Meshwright with friendly arguments; the command line calls the same ones.

A model is a `Model`, a shipped name, a file, a traced `Program` or ``FILE.py:NAME``; a cluster a `ClusterSpec`,
``name:nodes`` or a file; a plan a `Plan`, a plan file, or a run (a file or its data). Job and pins are given whole or
by keyword.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import validated
from planner import analysis, evaluation, search
from planner.analysis.questions import Question
from planner.errors import InputError, UnknownName
from planner.evaluation.setting import caveats_of, usual_job
from planner.exporters.scans import unsplit
from planner.garbage import uncollected
from planner.models.model import Model
from planner.plans import SCHEMA, Estimate, Job, Objective, Pins, Plan
from planner.search.best_first import USUAL_TOP

if TYPE_CHECKING:
    from planner.tracing.program import Program

AnyModel: TypeAlias = "Model | Program | str | Path"
AnyCluster = ClusterSpec | str | Path
AnyPlan = Plan | str | Path | Mapping[str, Any]
Progress = Callable[[int, int], None]


class Described(NamedTuple):
    """A plan as it was written, and what had to be assumed where it was not."""

    plan: Plan
    assumed: tuple[str, ...]


@uncollected()
def plan(
    model: AnyModel,
    cluster: AnyCluster,
    job: Job | None = None,
    pins: Pins | None = None,
    *,
    objective: Objective = "time",
    top: int = USUAL_TOP,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """The best plan for training ``model`` on ``cluster``, with its estimate and the next best.

    ``options`` are fields of `Job` and `Pins`::

        plan("llama-3.1-70b", "dgx-h100:16", global_batch=1024, seq_len=8192, tensor=8)

    ``schedule`` may also be a function that makes one (`planner.runs.schedules`).

    Raises:
        InputError: something cannot be read, or contradicts something else.
        Infeasible: nothing fits; says the least memory and what would make it fit.
    """
    if objective not in get_args(Objective):
        raise InputError(f"objective {objective!r} is unknown; use {', '.join(get_args(Objective))}")
    if top < 1:
        raise InputError(f"top is {top}; at least 1 plan is reported")
    asked = _question(model, cluster, job, pins, options)
    answer = search.plan(*asked, objective=objective, top=top, progress=progress)
    answer = search.naming_kernels(
        search.naming_unsearched(answer, asked.pins) if objective == "time" else answer
    )
    return answer.model_copy(update={"warnings": (*answer.warnings, *unsplit(answer))})


@uncollected()
def fit(
    model: AnyModel,
    cluster: AnyCluster,
    job: Job | None = None,
    pins: Pins | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> analysis.FitReport:
    """Whether ``model`` fits on ``cluster``, where it is tightest, and what would make it fit; as `plan`."""
    return analysis.fit(*_question(model, cluster, job, pins, options), progress=progress)


def evaluate(plan: AnyPlan) -> Estimate:
    """What a plan, found or written by hand, will do: time, memory, utilisation.

    Raises ``InputError`` where its parts contradict each other.
    """
    return evaluation.evaluate(read_plan(plan).plan)


def explain(plan: AnyPlan) -> str:
    """Why a plan is as it is and what limits it, with its numbers, as plain text."""
    return analysis.explain(judged(plan))


def compare(first: AnyPlan, second: AnyPlan) -> analysis.Comparison:
    """Two plans side by side: which is better, by how much, and which part of it explains that."""
    return analysis.compare(judged(first), judged(second))


def export(plan: AnyPlan, target: str) -> dict[str, str]:
    """The files of ``target`` (see `planner.exporters.registry`) for ``plan``: name -> text.

    Raises ``UnknownName`` for the target, ``Unsupported`` where it cannot express the plan.
    """
    from planner.exporters.registry import export as translate

    return translate(read_plan(plan).plan, target)


def validate(
    runs: str | Path | Iterable[Mapping[str, Any]], progress: Callable[[str], None] | None = None
) -> Any:
    """Predictions beside measured runs (a JSON-lines file, or its rows), as a `planner.validation.ValidationReport`.

    A run that cannot be predicted is in it too, with the reason. ``progress`` hears of each run.
    """
    from planner.runs.files import load_rows
    from planner.validation import validate as score

    return score(load_rows(runs) if isinstance(runs, str | Path) else runs, progress=progress)


def read_plan(source: AnyPlan) -> Described:
    """The plan that ``source`` describes: a `Plan`, a plan file or run file, or the data of one.

    Raises ``InputError`` with the file and the field that is wrong.
    """
    from cluster_specs.texts import load_mapping
    from planner.pipeline.generators import schedule_entry
    from planner.runs.files import check_run
    from planner.runs.mapping import plan_from_run

    if isinstance(source, Plan):
        return Described(source, ())
    if not isinstance(source, str | Path | Mapping):
        raise InputError(f"a plan is a Plan, a file or the data of one, not {type(source).__name__}")
    path = Path(source) if isinstance(source, str | Path) else None
    data = load_mapping(path) if path is not None else dict(source)  # type: ignore[arg-type]
    name = "the plan" if path is None else str(path)
    if "schema" not in data:
        return Described(*plan_from_run(check_run(data, path) if path is not None else data))
    if data["schema"] != SCHEMA:
        raise InputError(f"{name} has schema {data['schema']!r}, expected {SCHEMA!r}")
    described = validated(Plan, data, name)
    schedule_entry(described.plan.schedule)  # which nothing runs where there is no pipeline
    return Described(described, ())


def judged(source: AnyPlan) -> Plan:
    """The plan that ``source`` describes, with the estimate of today, and what that rests on without measurements."""
    described = read_plan(source).plan
    warnings = tuple(dict.fromkeys((*described.warnings, *described.model.notes, *caveats_of(described))))
    return described.model_copy(update={"estimate": evaluation.evaluate(described), "warnings": warnings})


def _question(
    model: AnyModel, cluster: AnyCluster, job: Job | None, pins: Pins | None, options: Mapping[str, Any]
) -> Question:
    known = {*Job.model_fields, *Pins.model_fields}
    for name in options:
        if name not in known:
            raise UnknownName("option", name, known)
    of_job = {name: value for name, value in options.items() if name in Job.model_fields}
    of_pins = {name: value for name, value in options.items() if name in Pins.model_fields}
    where = cluster if isinstance(cluster, ClusterSpec) else load_cluster(cluster)
    base_job = {} if job is None else job.model_dump(exclude_unset=True)
    base_pins = {} if pins is None else pins.model_dump()
    what = model if isinstance(model, Model) else load_model(model)
    whole_job = validated(Job, {**usual_job(what, where.device), **base_job, **of_job}, "job")
    return Question(
        what,
        where,
        whole_job,
        validated(Pins, _with_schedule({**base_pins, **of_pins}, whole_job), "pins"),
    )


def load_model(source: "str | Path | Program") -> Model:
    """The model of a shipped name, a Hugging Face configuration, a graph file, or a traced program.

    A program is a `Program`, its file, or ``FILE.py:NAME``, which is traced in a process of its own: the loss of a
    model whose layers repeat, without its gradient. Raises as `planner.models.catalog.load_model`, and ``Unsupported``
    where a program cannot be written as blocks of operators.
    """
    if isinstance(source, str) and ".py:" in source:
        from planner.verification.with_program import trace_function

        source = trace_function(source)
    if not isinstance(source, str | Path):
        from planner.tracing.lifting.model import model_of
        from planner.tracing.program import Program

        if not isinstance(source, Program):
            raise InputError(
                f"a model is a name, a file, a Model or a traced Program, not {type(source).__name__}; trace functions "
                f"and modules with planner.from_jax or planner.from_torch"
            )
        return model_of(source)
    from planner.tracing.lifting.reading import load_model as from_file

    return from_file(source)


def _with_schedule(pins: dict[str, Any], job: Job) -> dict[str, Any]:
    """The pins with our name of the schedule; with what a function makes in place of the function, if it is one."""
    schedule = pins.get("schedule")
    if isinstance(schedule, str):
        from planner.pipeline.generators import usual_name

        return {**pins, "schedule": usual_name(schedule)}
    if not callable(schedule):
        return pins
    from planner.runs.schedules import numbers_of, written

    pipeline, virtual, data, micro = map(pins.get, ("pipeline", "virtual_stages", "data", "micro_batch"))
    numbers = numbers_of(pipeline, virtual, data, micro, job.global_batch)
    return {**pins, "schedule": written(schedule, *numbers)}
