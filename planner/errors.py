"""What can go wrong, as one tree.

::

    InputError            bad input: what is wrong, where, what would be right (exit code 2)
    |-- UnknownName       a name that is not in a catalogue; suggests the nearest
    |-- Deadlock          a pipeline schedule in which actions wait for each other in a circle
    '-- Unsupported       understood, but not expressible (an exporter's target, an operator without a rule)
    PlannerError
    |-- Infeasible        no plan satisfies the constraints (exit code 3)
    |   '-- Indivisible   degrees, devices and batch do not divide each other, so that there is none to fit
    '-- SolverStopped     a solver hit its limit without a feasible answer
"""

from cluster_specs.errors import InputError, UnknownName

__all__ = [
    "Deadlock",
    "Indivisible",
    "Infeasible",
    "InputError",
    "PlannerError",
    "SolverStopped",
    "UnknownName",
    "Unsupported",
]


class Unsupported(InputError):
    """Understood, but this target or rule cannot express it."""


class Deadlock(InputError):
    """A pipeline schedule in which actions wait for each other in a circle."""


class PlannerError(Exception):
    """Base of the outcomes that are nobody's mistake."""


class Infeasible(PlannerError):
    """No plan satisfies the constraints; ``least_change`` says what would make one."""

    def __init__(self, message: str, least_change: str = "") -> None:
        super().__init__(message)
        self.least_change = least_change


class Indivisible(Infeasible):
    """Degrees, devices and batch do not divide each other: there is no plan that could fit."""


class SolverStopped(PlannerError):
    """The solver hit its limit before it found any feasible answer."""
