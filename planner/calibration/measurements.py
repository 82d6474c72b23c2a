"""Measurements of single kernels and collectives, as records and as JSON lines."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from cluster_specs.record import Record, first_problem
from planner.errors import InputError
from planner.runs.files import json_lines

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Precision = Literal["bf16", "fp16", "fp32", "tf32", "fp8", "fp4"]


class MatmulMeasurement(Record):
    """One product of (m, k) by (k, n)."""

    kind: Literal["matmul"] = "matmul"
    m: Count
    n: Count
    k: Count
    dtype: Precision
    seconds: Positive


class AttentionMeasurement(Record):
    """One fused attention, forward, or backward alone."""

    kind: Literal["attention"] = "attention"
    batch: Count
    heads: Count
    kv_heads: Count
    seq: Count
    head_dim: Count
    causal: bool = True
    backward: bool = False
    dtype: Precision
    seconds: Positive


class CopyMeasurement(Record):
    """One copy inside the device."""

    kind: Literal["copy"] = "copy"
    bytes: Positive
    """Read and written, together."""
    seconds: Positive


class LaunchMeasurement(Record):
    """Time from one kernel that does nothing to the next, where the device waits for the host."""

    kind: Literal["launch"] = "launch"
    seconds: Positive


class CollectiveMeasurement(Record):
    """One collective of all ranks, sized as in nccl-tests."""

    kind: Literal["collective"] = "collective"
    op: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]
    bytes: Positive
    ranks: Annotated[int, Field(gt=1)]
    nodes: Count = 1
    seconds: Positive


Measurement = (
    MatmulMeasurement | AttentionMeasurement | CopyMeasurement | LaunchMeasurement | CollectiveMeasurement
)
_ANY: TypeAdapter[Measurement] = TypeAdapter(Annotated[Measurement, Field(discriminator="kind")])


def parse_measurements(text: str, name: str) -> tuple[Measurement, ...]:
    """Measurements of JSON lines; raises ``InputError`` that names the line."""
    found = []
    for where, row in json_lines(text, name):
        try:
            found.append(_ANY.validate_python(row))
        except ValidationError as error:
            raise InputError(f"{where}: {first_problem(error)}") from error
    if not found:
        raise InputError(f"{name} has no measurements: one JSON object per line is needed")
    return tuple(found)


def to_json_lines(measurements: Iterable[Measurement]) -> str:
    """The same as text, one object per line."""
    return "".join(f"{one.model_dump_json()}\n" for one in measurements)
