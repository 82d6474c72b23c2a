"""One point of a sweep: a question to the search, its key, and its answer as data that can be kept."""

import hashlib
import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from cluster_specs.record import Record
from planner.analysis.questions import Question
from planner.errors import Indivisible, Infeasible, InputError
from planner.plans import Estimate, Objective, Optimality, Parallelism, Plan
from planner.search import doubts, faster_pipeline
from planner.search import plan as search
from planner.sweep.records import Status

PACKAGES = ("cluster_specs", "cost_models", "planner")

NOT_ASKED = {"name", "price", "sources"}
"""Fields of a cluster on which no plan depends."""


class Answer(Record):
    """What the search said."""

    status: Status
    reason: str | None = None
    divides: bool = True
    """Degrees, devices and batch divide each other in some way; no memory helps where they do not."""
    plan: Parallelism | None = None
    """Without the sharding of every operator, which would be most of it."""
    estimate: Estimate | None = None
    optimality: Optimality | None = None
    warnings: tuple[str, ...] = ()


TAKES_PIPELINES = (
    "pipelines are taken where `plan` only names them: clearly faster, of models that are small for a node; plan such "
    "a point with its --pipeline"
)


def best(question: Question, objective: Objective) -> Plan:
    """The best plan of one point, with a pipeline where `plan` would only warn that one is clearly faster.

    A curve over devices would bend at the first point that misses it. Errors as `planner.search.plan`.
    """
    found, notes = _with_notes(question, objective)
    return found.model_copy(update={"warnings": (*found.warnings, *notes)})


def _with_notes(question: Question, objective: Objective) -> tuple[Plan, tuple[str, ...]]:
    """The same, and apart what is to be said of points alone."""
    found = search(*question, objective=objective, top=1)
    faster = faster_pipeline(found, question.pins) if objective == "time" else None
    return (found, ()) if faster is None else (faster, (TAKES_PIPELINES,))


def ask(question: Question, objective: Objective) -> Answer:
    """Plan one point; what nobody can plan is an answer too."""
    try:
        found, notes = _with_notes(question, objective)
    except Infeasible as error:
        reason = "; ".join(filter(None, (str(error), error.least_change)))
        return Answer(status="infeasible", reason=reason, divides=not isinstance(error, Indivisible))
    except InputError as error:
        return Answer(status="invalid", reason=str(error))
    stages = tuple(stage.model_copy(update={"sharding": {}}) for stage in found.plan.stages)
    return Answer(
        status="planned",
        plan=found.plan.model_copy(update={"stages": stages}),
        estimate=found.estimate,
        optimality=found.optimality,
        warnings=(*doubts(found), *notes),
    )


def key_of(question: Question, objective: Objective) -> str:
    """Digest of everything that the answer depends on, this version of the code included."""
    asked = {
        "code": code_digest(),
        "objective": objective,
        "model": question.model.model_dump(mode="json", exclude={"name", "source", "notes"}),
        "cluster": question.cluster.model_dump(mode="json", exclude=NOT_ASKED),
        "job": question.job.model_dump(mode="json"),
        "pins": question.pins.model_dump(mode="json"),
    }
    return _digest(json.dumps(asked, sort_keys=True).encode())


@cache
def code_digest() -> str:
    """Digest of the code and data of all packages: answers of another version are not mixed with these."""
    parts = [(name, text) for package in PACKAGES for name, text in _texts(files(package), package)]
    return _digest(b"".join(name.encode() + b"\0" + text for name, text in sorted(parts)))


def _texts(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            found += _texts(entry, name)
        elif entry.name.endswith((".py", ".toml", ".jsonl")):
            found.append((name, entry.read_bytes()))
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
