"""Links that carry one result at a time."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.dependencies import arranged
from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.ports import Work, run_queued, transfers
from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.simulator import (
    StageTimes,
    _run,
    makespan,
    simulate,
)

NAMED = [name for name, entry in SCHEDULES.items() if name not in ("dualpipe", "dualpipev")]


def numbers(name: str) -> tuple[int, int, int]:
    """Ranks, stages on each and microbatches."""
    least = SCHEDULES[name].stages_per_rank[0]
    return 4, least, 8


Result = tuple[str, int, int]
"""Gradient or not, the stage that waits for it, microbatch."""


class EventDriven:
    """Another simulator: it looks at everything again whenever something has happened."""

    def __init__(self, schedule: Schedule, times: StageTimes, hops: Sequence[float]) -> None:
        self.schedule, self.hops, self.length = schedule, hops, times.table(schedule.num_stages)
        self.here: set[Result] = {("F", 0, k) for k in range(schedule.num_microbatches)}
        self.position = [0] * schedule.num_ranks
        self.running: list[tuple[float, int, Action]] = []
        self.outbox: list[list[Result]] = [[] for _ in schedule.ranks]
        self.asking: list[list[int]] = [[] for _ in schedule.ranks]
        self.sending: list[tuple[float, int, int]] = []

    def makespan(self) -> float:
        now = 0.0
        while True:
            self.send(now)
            self.begin(now)
            ends = [event[0] for event in (*self.running, *self.sending)]
            if not ends:
                assert self.position == [len(actions) for actions in self.schedule.ranks]
                return now
            now = min(ends)
            self.receive(now)
            self.finish(now)

    def hop(self, result: Result) -> float:
        return self.hops[result[1] - (result[0] == "F")]

    def send(self, now: float) -> None:
        """The first in a box asks its receiver, once, and goes when it is its turn there."""
        for sender, results in enumerate(self.outbox):
            if results and all(sender not in queue for queue in self.asking):
                self.asking[self.schedule.home(*results[0][1:])].append(sender)
        for receiver, queue in enumerate(self.asking):
            if queue and all(receiver != busy for _, _, busy in self.sending):
                self.sending.append((now + self.hop(self.outbox[queue[0]][0]), queue[0], receiver))

    def begin(self, now: float) -> None:
        for rank, actions in enumerate(self.schedule.ranks):
            if self.position[rank] < len(actions) and all(rank != busy for _, busy, _ in self.running):
                stage, work, k = action = actions[self.position[rank]]
                if ({Pass.F: "F", Pass.B: "B", Pass.I: "B", Pass.W: "W"}[work], stage, k) in self.here:
                    self.position[rank] += 1
                    self.running.append((now + self.length[stage][work], rank, action))

    def receive(self, now: float) -> None:
        for event in sorted(e for e in self.sending if e[0] == now):
            self.sending.remove(event)
            self.asking[event[2]].remove(event[1])
            self.here.add(self.outbox[event[1]].pop(0))

    def finish(self, now: float) -> None:
        for event in sorted(e for e in self.running if e[0] == now):
            self.running.remove(event)
            _, rank, (stage, work, k) = event
            for result in self.results(stage, work, k):
                if self.schedule.home(*result[1:]) != rank and self.hop(result):
                    self.outbox[rank].append(result)
                else:
                    self.here.add(result)

    def results(self, stage: int, work: Pass, k: int) -> Iterator[Result]:
        if work is Pass.F:
            yield ("F", stage + 1, k) if stage < self.schedule.num_stages - 1 else ("B", stage, k)
        elif work is not Pass.W and stage:
            yield ("B", stage - 1, k)
        if work is Pass.I:
            yield ("W", stage, k)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("p2p", [0.0, 0.4, 1.0, 1.7, 5.0])
def test_agrees_with_an_event_driven_simulation(name: str, p2p: float) -> None:
    p, v, m = numbers(name)
    schedule = generate(name, p, v, m)
    # No two stages and links alike, so that nothing happens at the same moment by chance.
    hops = [p2p * (1 + 0.01 * s**1.3) for s in range(p * v - 1)]
    times = StageTimes(*([base + 0.01 * s**1.3 for s in range(p * v)] for base in (1.0, 0.93, 0.81)))
    ours = makespan(name, p, v, m, times, hops, ports="rank").makespan
    assert ours == pytest.approx(EventDriven(schedule, times, hops).makespan())
    assert simulate(schedule, times, hops, ports="rank").makespan == ours


def test_results_queue_at_the_port() -> None:
    # Four forwards of 1 s, each sent for 3 s: the last arrives at 1 + 4 x 3.
    timeline = simulate(generate("gpipe", 2, 1, 4), StageTimes.uniform(2, 1, 1, 1), 3.0, ports="rank")
    sent = [t for t in timeline.transfers() if t.sender == 0]
    assert [(t.start, t.end) for t in sent] == [(1, 4), (4, 7), (7, 10), (10, 13)]
    assert timeline.starts[1][:4] == (4, 7, 10, 13)
    free = simulate(generate("gpipe", 2, 1, 4), StageTimes.uniform(2, 1, 1, 1), 3.0)
    assert free.starts[1][:4] == (4, 5, 6, 7)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.floats(0, 3),
    st.tuples(*[st.floats(0.1, 2)] * 3),
)
def test_queues_only_cost_time_and_only_where_links_are_slow(name, p2p, seconds) -> None:
    p, v, m = numbers(name)
    assert not refusal(name, p, v, m)
    times = StageTimes.uniform(p * v, *seconds)
    free = makespan(name, p, v, m, times, p2p)
    wires, queued = (makespan(name, p, v, m, times, p2p, ports=ports) for ports in ("wire", "rank"))
    assert queued.makespan >= free.makespan * (1 - 1e-12)
    assert wires.makespan >= free.makespan * (1 - 1e-12)
    if p2p <= min(seconds) and name in NAMED:
        assert wires == free


def test_two_neighbours_take_turns_at_a_receiver() -> None:
    # A forward leaves rank 0, and a gradient rank 2, for rank 1 at the same moment.
    times = StageTimes((6.0, 1.0, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 2.0))
    ends = {}
    for ports in ("endless", "wire", "rank"):
        line = simulate(generate("1f1b", 3, 1, 2), times, 1.0, ports=ports)
        ends[ports] = {str(t.action): t.end for t in line.transfers() if t.receiver == 1}
    assert ends["endless"] == ends["wire"]
    assert (ends["wire"]["0F1"], ends["wire"]["2B0"]) == (13, 13)
    assert sorted((ends["rank"]["0F1"], ends["rank"]["2B0"])) == [13, 14]


def test_blocking_senders_wait_for_the_receiver() -> None:
    times = StageTimes((6.0, 1.0, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 2.0))
    schedule = generate("1f1b", 3, 1, 4)
    line = simulate(schedule, times, 2.0, blocking=True, ports="rank")
    through = {(t.sender, t.action): t.end for t in line.transfers()}
    for rank, actions in enumerate(schedule.ranks):
        for action, start in zip(actions[:-1], line.starts[rank][1:], strict=True):
            assert start >= through.get((rank, action), 0.0)
    assert line.makespan >= simulate(schedule, times, 2.0, blocking=True).makespan


def test_a_rank_sends_and_receives_one_thing_at_a_time() -> None:
    for name in ("interleaved", "1f1b", "zb-v"):
        p, v, m = numbers(name)
        timeline = simulate(generate(name, p, v, m), StageTimes.uniform(p * v, 1, 1, 1), 2.5, ports="rank")
        for rank in range(p):
            for side in ("sender", "receiver"):
                sent = sorted((t.start, t.end) for t in timeline.transfers() if getattr(t, side) == rank)
                assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(sent))


@given(
    st.sampled_from(NAMED),
    st.sampled_from(["rank", "wire"]),
    st.floats(0.01, 1.5),
    st.tuples(*[st.floats(0.3, 2)] * 3),
)
def test_settling_is_queueing(name, ports, p2p, seconds) -> None:
    """Whether queues are simulated or arrivals settle without them: the same comes out."""
    p, v, m = numbers(name)
    dependencies = arranged(name, p, v, m)
    base = np.array([seconds[0], seconds[1] + seconds[2], seconds[1], seconds[2]])
    length = base[dependencies.work] * (1 + 0.013 * dependencies.stage**1.3)
    length[0] = 0.0
    hops = np.append(p2p * (1 + 0.017 * np.arange(p * v - 1) ** 1.3), 0.0)
    work = Work(length, np.zeros_like(length), hops)
    sent = transfers(dependencies, hops, ports)
    ran, queued = _run(dependencies, work, ports), run_queued(dependencies, work, sent)
    assert ran.ends == pytest.approx(queued.ends, rel=1e-9)
    assert ran.delivered[sent.producer] == pytest.approx(queued.delivered[sent.producer], rel=1e-9)


def test_few_collisions_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen ranks with six stages each: results collide, and no queue has to be simulated."""
    times = StageTimes.uniform(96, 1, 1.1, 0.93)
    schedule = generate("interleaved", 16, 6, 64)
    free = simulate(schedule, times, 0.2)
    monkeypatch.setattr("planner.pipeline.simulator.run_queued", None)
    line = simulate(schedule, times, 0.2, ports="rank")
    assert (line.delivered > free.delivered + 1e-9).any()
    assert line.makespan >= free.makespan
