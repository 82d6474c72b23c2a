"""What a verification found: checks that pass or fail, and numbers of a framework beside ours."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cluster_specs.record import Record

Tool = Literal["jax", "torch", "xla-tpu"]


LOSS_LIMIT = 1e-5
"""Share of the loss by which sums in another order may differ in fp32."""
PARAMETER_LIMIT = 1e-3
"""Share of the largest change of a parameter in one step."""


class Check(Record):
    """Two numbers that must agree."""

    name: str
    expected: float
    found: float
    error: float
    """Distance, as a share of what it is measured against."""
    limit: float

    @property
    def passed(self) -> bool:
        """Whether they agree; a number that is none does not."""
        return self.error <= self.limit


def training_checks(found: Mapping[str, Any]) -> tuple[Check, ...]:
    """Losses of two steps, the largest distance of a parameter beside the largest change of one, norm of gradients.

    ``found`` has what a program of `planner.verification.programs` found: ``loss`` on one device, ``parallel_loss``,
    ``distance`` and ``moved``; ``norm`` and ``parallel_norm`` if it knows them.
    """
    names = ("loss", "loss after one step")
    losses = [
        Check(name=name, expected=one, found=many, error=abs(many / one - 1), limit=LOSS_LIMIT)
        for name, one, many in zip(names, found["loss"], found["parallel_loss"], strict=True)
    ]
    apart = Check(
        name="largest distance of a parameter",
        expected=0,
        found=found["distance"],
        error=found["distance"] / found["moved"],
        limit=PARAMETER_LIMIT,
    )
    return (*losses, apart, *_norms(found))


def _norms(found: Mapping[str, Any]) -> Iterator[Check]:
    """Of all gradients, where every rank knows it."""
    if "norm" in found:
        one, many = found["norm"], found["parallel_norm"]
        error = abs(many / one - 1)
        yield Check(
            name="norm of the gradients", expected=one, found=many, error=error, limit=PARAMETER_LIMIT
        )


class Comparison(Record):
    """A number of the framework beside the predicted one."""

    name: str
    unit: Literal["bytes", "seconds", "count"]
    predicted: float
    found: float

    @property
    def error(self) -> float | None:
        """Predicted over found, minus one; None where nothing was found."""
        return self.predicted / self.found - 1 if self.found else None


class OperatorDifference(Record):
    """What one operator exchanges, as planned and as compiled: kind -> bytes of whole arrays per call."""

    operator: str
    priced: Mapping[str, float]
    compiled: Mapping[str, float]
    width_alone: bool = False
    """The same arrays are exchanged, in 32 bits: of an operator that reads and makes bf16 alone."""


class Verification(Record):
    """The answer of `verify`."""

    tool: Tool
    versions: tuple[str, ...]
    """Frameworks that ran, with their versions."""
    what: str
    """What was run or compiled."""
    checks: tuple[Check, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    operators: tuple[OperatorDifference, ...] = ()
    """Those of a traced program whose collectives were compiled otherwise than priced."""
    notes: tuple[str, ...] = ()
    """Where what ran differs from the plan, and what it does not show."""

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)

    def data(self) -> dict[str, Any]:
        """The documented JSON, in which what is not finite is null."""
        return {
            "schema": "meshwright/verification/1",
            "passed": self.passed,
            **self.model_dump(mode="json", exclude={"checks", "comparisons"}),
            "checks": [{**json.loads(c.model_dump_json()), "passed": c.passed} for c in self.checks],
            "comparisons": {
                c.name.replace(" ", "_"): {**c.model_dump(mode="json"), "error": c.error}
                for c in self.comparisons
            },
        }

    def failures(self) -> str:
        """The checks that failed, in words."""
        return "; ".join(
            f"{c.name}: expected {c.expected:.6g}, found {c.found:.6g}" for c in self.checks if not c.passed
        )
