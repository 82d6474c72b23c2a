"""HiGHS as it is run here: one thread and a fixed seed, so that runs repeat."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import highspy
import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]

REPEATABLE: Mapping[str, Any] = {"threads": 1, "random_seed": 0}


class RowProgram(NamedTuple):
    """Least ``costs @ x`` where ``low <= A x <= high``, with A by rows, and ``lower <= x <= upper``."""

    costs: Vector
    lower: Vector
    upper: Vector
    low: Vector
    high: Vector
    starts: Indices
    """Of each row in ``columns`` and ``values``, and the end of the last."""
    columns: Indices
    values: Vector


class Silent(highspy.Highs):  # type: ignore[misc]  # (highspy has no types)
    """HiGHS that prints nothing.

    From 1.16 on the first of a process prints its name as callbacks are set, which is before its maker can ask for
    silence. With a log that goes nowhere the name counts as said, for solvers that others make, too.
    """

    def enableCallbacks(self) -> None:  # noqa: N802 (highspy's name)
        """Set callbacks, with the log closed first."""
        self.setOptionValue("log_to_console", False)
        super().enableCallbacks()


def release_threads() -> None:
    """Let the next solver choose its threads: the first solve fixes them for the process, a caller's own too."""
    highspy.Highs.resetGlobalScheduler(True)


def run(solver: Any) -> None:
    """Solve, in a thread of its own: the solver looks at no signals, so that Ctrl-C would wait for its end."""
    solver.HandleUserInterrupt = True
    solver.startSolve()
    try:
        solver.wait()
    except KeyboardInterrupt:
        solver.cancelSolve()
        solver.wait()
        raise


def loaded(program: RowProgram, options: Mapping[str, Any]) -> Any:
    """HiGHS with the program, silent, under these ``options`` and `REPEATABLE`."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = program.costs.size, program.low.size
    model.col_cost_, model.col_lower_, model.col_upper_ = program.costs, program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.low, program.high
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_ = program.starts, program.columns
    model.a_matrix_.value_ = program.values
    release_threads()
    solver = Silent()
    solver.silent()
    for option, value in {**REPEATABLE, **options}.items():
        solver.setOptionValue(option, value)
    solver.passModel(model)
    return solver
