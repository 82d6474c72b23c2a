"""What shows of reductions that ranks of looped pipelines run beside their last backward passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evaluation.overlap import left_over
from planner.pipeline.generators import SCHEDULES
from planner.pipeline.schedule import Pass

seconds = st.floats(0.0, 10.0)
counts = st.integers(1, 12)


def queued(moved: float, stages: int, each: float, turn: int, steps: int) -> float:
    """Seconds for which a network still has work after the last pass, one small part of a pass after the other.

    A stage ends its turn with the pass in which its gradients come into being, bit by bit; one stage's turn follows
    the other's, and the network sends whatever is there.
    """
    waiting = 0.0
    for stage in range(stages):
        idle = (turn - 1) * each if stage else 0.0
        waiting = max(0.0, waiting - idle)
        for _ in range(steps):
            waiting = max(0.0, waiting + moved / stages / steps - each / steps)
    return waiting


@given(moved=seconds, each=seconds, stages=counts, turn=counts)
def test_a_queue_of_gradients_is_left_with_as_much(moved: float, each: float, stages: int, turn: int) -> None:
    left = left_over(moved, [each] * stages, turn, 1.0, 0.0)
    assert left == pytest.approx(queued(moved, stages, each, turn, 200), abs=0.02 * (moved + each))


@given(moved=seconds, each=seconds, stages=counts, turn=counts, share=st.floats(0, 1), slow=st.floats(0, 1))
def test_longer_turns_hide_more_and_all_is_paid_for_where_nothing_overlaps(
    moved: float, each: float, stages: int, turn: int, share: float, slow: float
) -> None:
    passes = [each] * stages
    assert (
        left_over(moved, passes, turn + 1, share, slow) <= left_over(moved, passes, turn, share, slow) + 1e-9
    )
    assert left_over(moved, passes, turn, 0.0, slow) == pytest.approx(moved)
    assert left_over(moved, passes, turn, share, 1.0) == pytest.approx(moved)


def test_one_number_by_hand() -> None:
    """Stages of 20 ms in turns of 8: of 1 s, 1 - 0.9 x 25 x 0.02 = 0.55 s shows, of 0.4 s the last stage's 82 ms."""
    assert left_over(1.0, [0.02] * 4, 8, 0.9, 0.0) == pytest.approx(0.55)
    assert left_over(0.4, [0.02] * 4, 8, 0.9, 0.0) == pytest.approx(0.082)
    assert left_over(0.4, [0.02] * 4, 8, 0.9, 0.189) == pytest.approx(0.082 + 0.189 * 0.318)


LOOPED = [
    name
    for name, entry in SCHEDULES.items()
    if entry.stages_per_rank[1] != 1 and (entry.placement == "loop" or entry.turn(4, 8) > 1)
]


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 16)])
def test_turns_are_those_of_the_order_of_actions(name: str, p: int, m: int) -> None:
    """On the rank that turns soonest: backwards of the stage that ends its order, with no other stage between."""
    entry = SCHEDULES[name]
    stages = max(2, entry.stages_per_rank[0])
    assert entry.accepts(p, stages, m)
    runs = []
    for actions in entry.generate(p, stages, m).ranks:
        backwards = [a for a in actions if a.work in (Pass.B, Pass.I)]
        run = next((n for n, a in enumerate(backwards[::-1]) if a.stage != backwards[-1].stage), m)
        runs.append(run)
    assert entry.turn(p, m) == min(runs)
