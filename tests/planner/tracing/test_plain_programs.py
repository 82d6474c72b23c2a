"""Programs unlike transformers: planned, run on 8 devices as one computes them, exchanging what was priced."""

from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("jax")

import branching_programs  # noqa: E402
import mixed_programs  # noqa: E402
import plain_programs  # noqa: E402
import signal_programs  # noqa: E402
from test_proof import slow_cluster  # noqa: E402

from planner import from_jax, shard  # noqa: E402
from planner.tracing.applying.views import View  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.factors import reshaped, transposed  # noqa: E402
from planner.verification import with_program  # noqa: E402
from planner.verification.with_program import verify_program  # noqa: E402

HERE = Path(__file__).parent


MIXED = [
    "routed_groups", "experts_in_order", "shared_experts", "switched_flow", "either_product", "orthogonal",
    "orthogonal_wide", "denoiser",
]  # fmt: skip
NAMES = [
    "graph_attention", "state_space", "group_norms", "second_order", "actor_critic", "gated_recurrence",
    "accumulated", "scanned_residuals", "turning_states", "laplacian", "video", "number_in_branch",
    "constants_beside", "stacked", "reduced_over_two", "stacked_and_parted",
]  # fmt: skip
AGAIN = [
    "curvature_now_and_then", "chosen_classes", "added_again", "named_again", "whole_in_a_branch", "printed",
    "skipped_if_not_finite",
]  # fmt: skip
SIGNALS = ["mixed_by_fourier", "speech", "columns", "rotations", "framed", "filter_of_positions", "volume"]
IMAGES = ["large_image", "spread_image"]
CASES = [
    *((plain_programs, name) for name in NAMES),
    *((mixed_programs, name) for name in MIXED),
    *((branching_programs, name) for name in AGAIN),
    *((signal_programs, name) for name in (*SIGNALS, *IMAGES)),
]


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("module", "name"), CASES, ids=[name for _, name in CASES])
def test_a_program_exchanges_what_is_priced(module: ModuleType, name: str) -> None:
    plan = shard(from_jax(*getattr(module, name)()), slow_cluster(1), {"data": 2, "model": 4}, seconds=60)
    assert plan.collectives
    answer = verify_program(plan, f"{HERE / module.__name__}.py:{name}")
    assert answer.passed, answer.failures()
    assert not answer.operators


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_loops_that_end_on_conditions_exchange_as_often_as_they_are_said_to_run() -> None:
    """But for a product that is the same each time."""
    plan = shard(from_jax(*plain_programs.settling(), trips=4), slow_cluster(1), {"data": 2, "model": 4})
    answer = verify_program(plan, f"{HERE}/plain_programs.py:settling")
    assert answer.passed, answer.failures()
    in_loops = {c.operator for c in plan.collectives if c.times == 4}
    assert len(in_loops) > 2
    assert len(in_loops & {o.operator for o in answer.operators}) <= 1


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_what_a_loop_asks_is_planned_and_asked_once_more_than_it_runs() -> None:
    program = from_jax(*branching_programs.line_search(), trips=4)
    plan = shard(program, slow_cluster(1), {"data": 2, "model": 4}, seconds=60)
    assert {op.times for op in program.operations if op.branch == "while.26/test/"} == {5}
    assert any(c.times == 5 for c in plan.collectives)
    answer = verify_program(plan, f"{HERE}/branching_programs.py:line_search")
    assert answer.passed, answer.failures()
    assert not answer.operators


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_passes_of_a_solver_are_split_and_exchange_what_is_priced() -> None:
    """It was one operator on whole arrays, so that every device did all of its work, at no cost."""
    program = from_jax(*branching_programs.trust_region(), trips=3)
    plan = shard(program, slow_cluster(1), {"data": 2, "model": 4}, seconds=60)
    assert any(c.times == 3 for c in plan.collectives)
    answer = verify_program(plan, f"{HERE}/branching_programs.py:trust_region")
    assert answer.passed, answer.failures()
    assert not answer.operators


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_operands_of_batches_in_two_dims_are_not_gathered() -> None:
    """XLA left to itself gathered an operand whole for each of three products, and did one sum twice."""
    plan = shard(from_jax(*mixed_programs.axial()), slow_cluster(2), {"a": 2, "b": 4, "c": 2}, seconds=20)
    answer = verify_program(plan, f"{HERE}/mixed_programs.py:axial")
    assert answer.passed, answer.failures()
    assert len(plan.collectives) > 40
    assert not answer.operators


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
def test_what_is_cast_where_it_is_read_moves_before_and_in_32_bits_on_a_cpu() -> None:
    plan = shard(from_jax(*plain_programs.cast_where_read()), slow_cluster(1), {"data": 2, "model": 4})
    answer = verify_program(plan, f"{HERE}/plain_programs.py:cast_where_read")
    assert answer.passed, answer.failures()
    (moved,) = answer.operators
    assert moved.width_alone
    assert moved.compiled == {kind: 2 * size for kind, size in moved.priced.items()}


@pytest.mark.jax
def test_only_branches_that_are_not_planned_are_left_out() -> None:
    program = clean(from_jax(*mixed_programs.orthogonal()))
    members = [m.name for op in program.operations for m in op.members]
    planned = next(name for name in members if "/branch.2/" in name)
    assert with_program.runs_as_planned(planned, program)
    assert with_program.runs_as_planned("dot_general.0", program)
    assert with_program.runs_as_planned(planned.replace("/branch.2/", "/branch.2/unknown."), program)
    assert not with_program.runs_as_planned(planned.replace("/branch.2/", "/branch.0/"), program)
    assert with_program.runs_as_planned("cond.99/branch.0/dot_general.0", program)  # nothing of it is planned


def test_a_view_says_where_what_it_shows_must_lie() -> None:
    """Rows of 16 seen as 4 groups of 4: groups are the major part of them, what is in a group is not."""
    view, sizes = View(None, None, None, reshaped((8, 16), (8, 4, 4))), {"a": 2, "b": 4}
    assert view.behind((("a",), ("b",), ()), sizes) == (("a",), ("b",))
    assert view.behind(((), (), ()), sizes) == ((), ())
    assert view.behind(((), (), ("a",)), sizes) is None
    assert view.behind(((), ("a", "b"), ()), sizes) is None  # 8 devices, 4 groups
    turned = View(None, None, None, transposed((8, 16), (1, 0)))
    assert turned.behind((("a",), ("b",)), sizes) == (("b",), ("a",))
