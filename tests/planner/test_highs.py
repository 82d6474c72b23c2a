"""HiGHS under Ctrl-C, and silent."""

import subprocess
import sys

import numpy as np
import pytest

from planner.highs import RowProgram, loaded, run


def program() -> RowProgram:
    """Least x + y where x + 2 y >= 3 and neither is above 2: 1.5."""
    return RowProgram(
        np.ones(2), np.zeros(2), np.full(2, 2.0), np.array([3.0]), np.array([np.inf]),
        np.array([0, 2], np.int32), np.array([0, 1], np.int32), np.array([1.0, 2.0]),
    )  # fmt: skip


def test_solves_as_without_a_thread() -> None:
    solver = loaded(program(), {})
    run(solver)
    assert solver.getInfo().objective_function_value == pytest.approx(1.5)


def test_ctrl_c_ends_the_solver_before_it_is_passed_on() -> None:
    solver = loaded(program(), {})
    wait, waits = solver.wait, []

    def interrupted() -> object:
        waits.append(solver.is_solver_running())
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait()

    solver.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(solver)
    assert len(waits) == 2
    assert not solver.is_solver_running()
    run(solver)  # and can be used again
    assert solver.getInfo().objective_function_value == pytest.approx(1.5)


@pytest.mark.parametrize(
    "make",
    [
        "from planner.highs import Silent; Silent()",
        "from planner.intra_op.ilp import _solver; _solver(1.0, 0.0)",
    ],
)
def test_prints_nothing_in_a_fresh_process_nor_does_the_solver_that_pulp_makes_next(make: str) -> None:
    """HiGHS 1.16 prints its name as the first solver of a process is made: standard output is the caller's."""
    code = f"{make}; import highspy; highspy.Highs()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b""
