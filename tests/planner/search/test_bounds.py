"""No simulated pipeline is below the closed-form bounds, and even ones come close to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evaluation.stages import StageCost
from planner.evaluation.states import Sync
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES
from planner.pipeline.simulator import StageTimes, makespan
from planner.search.bounds import fullest_rank, pipeline_seconds
from planner.search.space import Candidate

BACKWARD = 1.5
"""Of its inputs and of its weights, each against one forward."""


def candidate(schedule: str, p: int, v: int, m: int) -> Candidate:
    return Candidate(1, 1, p, 1, 1, v, 1, m, 0, "NO_SHARD", 1, "none", schedule)


def whole_model(forward: float) -> StageCost:
    backward = BACKWARD * forward
    return StageCost(forward, backward, backward, {}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), Sync(), 0.0, {})


def simulated(schedule: str, p: int, v: int, m: int, forwards: list[float]) -> float:
    backwards = [BACKWARD * f for f in forwards]
    return makespan(schedule, p, v, m, StageTimes(forwards, backwards, backwards)).makespan


FORWARDS = st.lists(st.floats(0.5, 4), min_size=8, max_size=8)
SHAPES = [
    ("1f1b", 2, 1),
    ("1f1b", 8, 1),
    ("gpipe", 4, 1),
    ("zb-h1", 4, 1),
    ("interleaved", 4, 2),
    ("zb-v", 4, 2),
]


@pytest.mark.parametrize(("schedule", "p", "v"), SHAPES)
@given(forwards=FORWARDS, rounds=st.integers(1, 4))
def test_no_split_is_faster_than_the_bound(
    schedule: str, p: int, v: int, forwards: list[float], rounds: int
) -> None:
    forwards, m = forwards[: p * v], rounds * p
    split = SCHEDULES[schedule].splits_backward
    bound = pipeline_seconds(whole_model(sum(forwards)), min(forwards), candidate(schedule, p, v, m), split)
    assert bound <= simulated(schedule, p, v, m, forwards) * (1 + 1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 64), (8, 64)])
def test_even_1f1b_is_close_to_the_bound(p: int, m: int) -> None:
    """With nothing to do for weights: within the ratio of 1 + x to exp(x), for a bubble of x = (p - 1) / m."""
    whole = whole_model(p)._replace(backward_weight=0.0)
    even = makespan("1f1b", p, 1, m, StageTimes([1.0] * p, [BACKWARD] * p, [0.0] * p)).makespan
    bound = pipeline_seconds(whole, 1.0, candidate("1f1b", p, 1, m), splits_backward=False)
    assert bound == pytest.approx(even, rel=0.06)


@pytest.mark.parametrize(("schedule", "p"), [("1f1b", 2), ("1f1b", 8), ("gpipe", 4)])
@given(
    shares=st.lists(st.floats(0.1, 4), min_size=8, max_size=8), states=st.floats(0, 5), m=st.integers(1, 20)
)
def test_the_fullest_rank_holds_as_much_as_the_bound(
    schedule: str, p: int, shares: list[float], states: float, m: int
) -> None:
    """Of ``states`` and activations that are cut as the layers are."""
    shares = [share / sum(shares[:p]) for share in shares[:p]]
    in_flight = peak_bytes(arranged(schedule, p, 1, m), shares, [0.0] * p)
    fullest = max(share * states + held for share, held in zip(shares, in_flight, strict=True))
    assert fullest_rank(states, 1.0, candidate(schedule, p, 1, m)) <= fullest * (1 + 1e-9)
