"""What a sweep is asked and what it answers: one object, schema ``meshwright/sweep/1``."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from cluster_specs.record import Record
from planner.analysis.economics import Economics, Terms
from planner.analysis.sensitivity import Sensitivity
from planner.plans import Estimate, Optimality, Parallelism

SCHEMA: Final = "meshwright/sweep/1"

Status = Literal["planned", "infeasible", "invalid"]


class Inputs(Record):
    """One point of a sweep: enough to ask for its plan again."""

    model: str
    cluster: str
    """As named on the command line, without a size: ``dgx-h100``, ``tpu-v5p``, a file."""
    devices: int
    nodes: int
    global_batch: int
    """Sequences."""
    seq_len: int
    precision: str
    changes: Mapping[str, str | float] = {}
    """Hardware number -> value or factor (``2x``), as given to ``--set``."""
    job: Mapping[str, Any] = {}
    """Other fields of the job that are not the default."""
    pins: Mapping[str, Any] = {}
    """Parts of the plan that were fixed."""


class Point(Record):
    """One point with its answer."""

    inputs: Inputs
    key: str
    """Digest of what the search was asked; points with one key share one search."""
    status: Status
    reason: str | None = None
    """Why there is no plan: what does not fit, or what contradicts what."""
    name: str | None = None
    """The plan in a few letters (``dp16 tp8 zero3 mb1``)."""
    plan: Parallelism | None = None
    """The best plan, without the sharding of every operator."""
    estimate: Estimate | None = None
    optimality: Optimality | None = None
    economics: Economics | None = None
    warnings: tuple[str, ...] = ()
    """What the numbers rest on that nobody measured."""
    scaling_efficiency: float | None = None
    """Tokens/s per device over the best of this and the smaller clusters of the same series."""
    memory_headroom: float | None = None
    """Free share of the fullest device's memory at the peak."""
    pareto: bool = False
    """No other point is at least as good in time, cost, memory headroom and devices, and better in one.

    Only points that train the same model in the same way on the same hardware numbers are weighed against each
    other; pins, kinds of clusters and counts may differ. Headroom counts in steps of a twentieth."""
    sensitivity: tuple[Sensitivity, ...] = ()
    """Of recommended points: what a tenth better hardware would save, the plan unchanged, operators in their usual
    layout."""


class Knee(Record):
    """Where a series of growing clusters stops paying."""

    series: Mapping[str, Any]
    """The inputs that all points of the series share, and that set it apart from the other series."""
    threshold: float
    """Scaling efficiency below which it counts."""
    smallest_devices: int | None
    """Smallest count with a plan."""
    last_devices_above: int | None
    """Largest count up to which efficiency stays at the threshold or above."""
    first_devices_below: int | None
    """First count below the threshold; None where none is."""


class Sweep(Record):
    """All points in the order asked."""

    schema_version: Literal["meshwright/sweep/1"] = Field(default=SCHEMA, alias="schema")
    axes: Mapping[str, tuple[str | float, ...]]
    """What was varied, and its values, in the order of nesting."""
    terms: Terms
    objective: str
    """What the search of each point minimised."""
    points: tuple[Point, ...]
    knees: tuple[Knee, ...] = ()
    searches: int
    """Different questions that were asked: points less those that are equal."""
    recommended: tuple[int, ...] = ()
    """For each way of training in the sweep (model, job, hardware numbers): the fastest point among those whose cost
    is near the least (the fastest of all where no price is known)."""
    warnings: tuple[str, ...] = ()

    def to_json(self, **kwargs: Any) -> str:
        """The documented JSON."""
        return self.model_dump_json(by_alias=True, **kwargs)
