"""V-Half and V-Min against the authors' generator and the promises of their paper."""

import time

import pytest

from planner.pipeline.dependencies import arrange, peak_in_flight
from planner.pipeline.generators import generate
from planner.pipeline.schedule import Pass, Schedule
from planner.pipeline.simulator import StageTimes, simulate

AUTHORS = {
    2: (1, 3),
    3: (5, 5),
    4: (5, 11),
    6: (11, 17),
    8: (17, 27),
    12: (29, 41),
    16: (41, 59),
}
"""Ranks -> longest rank's time less its work for V-Half and V-Min, passes of 1, 4p microbatches.

Source: run of sail-sg/zero-bubble-pipeline-parallelism@39f2c186, zerobubble/scheduler/zbv_greedy.py,
PipelineGraph.schedule_from_pattern with its own patterns.
"""


def longest_window(schedule: Schedule) -> float:
    timeline = simulate(schedule, StageTimes.uniform(schedule.num_stages, 1.0, 1.0, 1.0))
    return max(end[-1] - start[0] for start, end in zip(timeline.starts, timeline.ends, strict=True))


@pytest.mark.parametrize("p", AUTHORS)
def test_as_short_as_the_authors_own(p: int) -> None:
    for name, idle in zip(("v-half", "v-min"), AUTHORS[p], strict=True):
        schedule = generate(name, p, 2, 4 * p)
        assert longest_window(schedule) - 6 * 4 * p == idle


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize(("name", "share"), [("v-half", 1 / 2), ("v-min", 1 / 3)])
def test_activation_memory(name: str, share: float, p: int) -> None:
    """A half and a third of 1F1B's p microbatches, and a constant; stages are half a microbatch each."""
    held = max(peak_in_flight(arrange(generate(name, p, 2, 6 * p)))) / 2
    assert p * share <= held <= p * share + 1.5


@pytest.mark.parametrize("p", [8, 12, 16])
@pytest.mark.parametrize(("name", "share"), [("v-half", 1 / 2), ("v-min", 2 / 3)])
def test_bubble(name: str, share: float, p: int) -> None:
    """README of sail-sg/zero-bubble: half and two thirds of 1F1B's 3(p-1) microbatch passes, about."""
    idle = (longest_window(generate(name, p, 2, 4 * p)) - 24 * p) / 2
    assert idle == pytest.approx(share * 3 * (p - 1), rel=0.2)


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("p", [4, 6, 7])
def test_more_microbatches_add_no_bubble(name: str, p: int) -> None:
    one, more = (longest_window(generate(name, p, 2, m)) - 6 * m for m in (4 * p, 7 * p))
    assert one == more


def test_many_actions_take_seconds() -> None:
    """100,000 actions on 64 ranks: measured at 3 s; the margin is for busy machines."""
    start = time.process_time()
    schedule = generate("v-half", 64, 2, 256)
    assert schedule.num_actions == 3 * 2 * 64 * 256
    assert time.process_time() - start < 15


def test_stages_meet_microbatches_in_order() -> None:
    for name in ("v-half", "v-min"):
        for actions in generate(name, 5, 2, 11).ranks:
            for stage in {action.stage for action in actions}:
                for work in (Pass.F, Pass.I, Pass.W):
                    met = [a.microbatch for a in actions if a.stage == stage and a.work is work]
                    assert met == sorted(met)
