"""HiGHS under Ctrl-C."""

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
