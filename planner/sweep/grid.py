"""From the inputs of a sweep to its points: every combination, each as a question to the search."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cluster_specs.changes import KNOBS, changed
from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import validated
from cluster_specs.sizing import sized
from cluster_specs.usual_stacks import usual_stack
from planner.analysis.questions import Question
from planner.errors import InputError, UnknownName
from planner.models.model import Model
from planner.pipeline.generators import usual_name
from planner.plans import Job, Pins
from planner.sweep.records import Inputs
from planner.tracing.lifting.reading import load_model

Value = str | float | int
Axes = Mapping[str, Sequence[Value]]
"""Input -> its values, in the order of nesting."""

PLACES = ("model", "cluster", "devices")
BATCH_TOKENS = "batch_tokens"
"""The global batch in tokens instead of sequences."""

HEADLINES = ("global_batch", "seq_len", "precision")
"""Fields of the job that every point shows."""


class Cell(NamedTuple):
    """One point before it is planned."""

    inputs: Inputs
    question: Question | None
    """None where the inputs contradict each other."""
    reason: str | None


class Loader:
    """Models and clusters, each read once."""

    def __init__(self) -> None:
        self.model: Callable[[str], Model] = lru_cache(None)(load_model)
        self.sized: Callable[[str, int | None], ClusterSpec] = lru_cache(None)(sized)


def check_axes(axes: Axes, fixed: Mapping[str, Any]) -> None:
    """Refuse unknown inputs, empty ones, one that is given twice, and a batch in two ways.

    Raises ``InputError``.
    """
    for name in fixed:
        if name in axes:
            raise InputError(f"{name} is both fixed and swept: give it once")
    given = {*axes, *fixed}
    known = {*PLACES, BATCH_TOKENS, *Job.model_fields, *Pins.model_fields, *KNOBS}
    for name, values in axes.items():
        if name not in known and "." not in name:
            raise UnknownName("input", name, known, see=_inputs_known())
        if not values:
            raise InputError(f"{name} has no values to sweep")
    for name in ("model", "cluster"):
        if name not in given:
            raise InputError(f"a sweep needs a {name}")
    if ("global_batch" in given) == (BATCH_TOKENS in given):
        raise InputError("give the global batch either in sequences or in tokens")
    if "seq_len" not in given:
        raise InputError("a sweep needs a sequence length")


def _inputs_known() -> str:
    """What can be swept, in a phrase."""
    kinds = {"job": Job.model_fields, "pins": Pins.model_fields}
    fields = (f"a field of the {kind} ({', '.join(names)})" for kind, names in kinds.items())
    return f"sweep {', '.join(fields)}, {', '.join(KNOBS)}, or a dotted path of the cluster"


def cells(axes: Axes, fixed: Mapping[str, Any] | None = None) -> Iterator[Cell]:
    """Every combination, the last axis varying fastest, each with the ``fixed`` inputs too.

    Raises ``InputError`` as `check_axes`.
    """
    fixed = fixed or {}
    check_axes(axes, fixed)
    loader = Loader()
    for values in itertools.product(*axes.values()):
        yield _cell({**fixed, **dict(zip(axes, values, strict=True))}, loader)


def _cell(values: Mapping[str, Any], loader: Loader) -> Cell:
    job = {name: value for name, value in values.items() if name in Job.model_fields}
    pins = {name: value for name, value in values.items() if name in Pins.model_fields and value != "free"}
    pins |= {name: usual_name(str(value)) for name, value in pins.items() if name == "schedule"}
    changes = {name: value for name, value in values.items() if name in KNOBS or "." in name}
    devices = values.get("devices")
    try:
        cluster = loader.sized(str(values["cluster"]), None if devices is None else int(devices))
        job = {"stack": usual_stack(cluster.device), **job, "global_batch": sequences(values)}
        asked = validated(Job, job, "the job")
        question = Question(
            loader.model(str(values["model"])),
            changed(cluster, changes) if changes else cluster,
            asked,
            validated(Pins, pins, "the pins"),
        )
    except InputError as error:
        return Cell(_inputs(values, job, pins, changes, None), None, str(error))
    return Cell(_inputs(values, job, pins, changes, question), question, None)


def sequences(values: Mapping[str, Any]) -> Any:
    """The global batch in sequences; raises ``InputError`` where its tokens are no whole number of them."""
    if BATCH_TOKENS not in values:
        return values["global_batch"]
    tokens, length = int(values[BATCH_TOKENS]), int(values["seq_len"])
    if length < 1 or tokens % length or tokens < length:
        raise InputError(f"a batch of {tokens} tokens is no whole number of sequences of {length}")
    return tokens // length


def _inputs(
    values: Mapping[str, Any],
    job: Mapping[str, Any],
    pins: Mapping[str, Any],
    changes: Mapping[str, Value],
    question: Question | None,
) -> Inputs:
    """As given where there is no question, as understood where there is one."""
    asked = question.job.model_dump() if question else job
    adapter = {"adapter": str(job["adapter"])} if "adapter" in job else {}
    return Inputs(
        model=str(values["model"]),
        cluster=str(values["cluster"]),
        devices=question.cluster.num_devices if question else int(values.get("devices", 0)),
        nodes=question.cluster.nodes if question else 0,
        global_batch=int(asked.get("global_batch", 0)),
        seq_len=int(asked["seq_len"]),
        precision=str(asked.get("precision", "bf16")),
        changes={name: value if isinstance(value, str) else float(value) for name, value in changes.items()},
        job={name: asked[name] for name in job if name not in HEADLINES} | adapter,
        pins=dict(pins),
    )
