"""Chimera and Hanayo against their papers: slots, bubbles, memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.dependencies import arrange, peak_in_flight
from planner.pipeline.generators import generate
from planner.pipeline.schedule import Pass, from_csv, to_csv
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.waves import wave_homes


def makespan(name: str, p: int, v: int, m: int, f: float, b: float) -> float:
    return simulate(generate(name, p, v, m), StageTimes.uniform(p * v, f, b, 0.0)).makespan


@pytest.mark.parametrize(("d", "rounds"), [(2, 1), (4, 1), (4, 3), (6, 2), (8, 1), (8, 4), (16, 2)])
def test_chimera_bubble(d: int, rounds: int) -> None:
    """arXiv:2107.06925, table 2: (D-2)/(2N+D-2), where a forward takes as long as a backward."""
    n = rounds * d
    timeline = simulate(generate("chimera", d, 1, n), StageTimes.uniform(d, 1.0, 0.5, 0.5))
    assert timeline.bubble_fraction == pytest.approx((d - 2) / (2 * n + d - 2))


@pytest.mark.parametrize("d", [4, 6, 8, 12])
@given(f=st.floats(0.5, 1.0), b=st.floats(1.0, 2.0))
def test_chimera_critical_path(d: int, f: float, b: float) -> None:
    """arXiv:2107.06925, section 3.4, cost model: C_f = 6 and C_b = 10 for D = N = 6, that is D and 2D - 2."""
    assert makespan("chimera", d, 1, d, f, b) == pytest.approx(d * f + (2 * d - 2) * b)


@pytest.mark.parametrize("d", [4, 6, 8])
def test_chimera_memory(d: int) -> None:
    """arXiv:2107.06925, table 2: between D/2 + 1 and D microbatches."""
    held = peak_in_flight(arrange(generate("chimera", d, 1, 3 * d)))
    assert (min(held), max(held)) == (d // 2 + 1, d)
    assert held == tuple(reversed(held))


def test_chimera_of_four_by_hand() -> None:
    """The basic unit for D = N = 4; 0 and 2 go down, 1 and 3 up."""
    schedule = generate("chimera", 4, 1, 4)
    assert to_csv(schedule).splitlines()[:2] == [
        "0F0,0F2,3F1,3B1,3F3,3B3,0B0,0B2",
        "1F0,2F1,1F2,2F3,2B1,1B0,2B3,1B2",
    ]
    assert schedule.mirrored == {1, 3}
    assert schedule.stages_of(0) == schedule.stages_of(3) == (0, 3)
    assert schedule.stages_of(1) == (1, 2)
    assert from_csv(to_csv(schedule)) == schedule


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize(("p", "rounds"), [(1, 2), (2, 1), (4, 1), (4, 3), (8, 2)])
def test_hanayo_bubble(p: int, rounds: int, waves: int) -> None:
    """(p-1)(F+B)/v for v = 2 waves stages per rank where F = B; no order of this placement has less.

    The last rank cannot start before p - 1 stages are through, nor end before p - 1 remain.
    """
    v, m = 2 * waves, rounds * p
    least = m * 2.0 + (p - 1) * 2.0 / v
    assert makespan("hanayo", p, v, m, 1.0 / v, 1.0 / v) == pytest.approx(least)


def test_hanayo_is_half_of_chimera() -> None:
    """Folding Chimera's 2p ranks gives one wave on p ranks: same slots, so the same time per microbatch."""
    p = 4
    folded = makespan("hanayo", p, 2, p, 1.0, 1.0)
    assert folded == makespan("chimera", 2 * p, 1, 2 * p, 1.0, 1.0)


def test_gaps_between_units_where_backwards_are_longer() -> None:
    """1F1B pays its bubble once. The figures of docs/pipelines.md."""
    p, m = 8, 64
    idle = {
        name: 1 - m * 3.0 / makespan(name, p, v, m, 1.0 / v, 2.0 / v)
        for name, v in (("1f1b", 1), ("chimera", 1), ("hanayo", 2))
    }
    assert idle == pytest.approx({"1f1b": 0.0986, "chimera": 0.2195, "hanayo": 0.2471}, abs=1e-4)


@pytest.mark.parametrize(("p", "v"), [(4, 2), (4, 4), (3, 6)])
def test_hanayo_holds_p_microbatches(p: int, v: int) -> None:
    held = peak_in_flight(arrange(generate("hanayo", p, v, 4 * p)))
    assert max(held) == p * v


def test_wave_homes() -> None:
    assert wave_homes(3, 12) == (0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 20), (8, 16)])
def test_dualpipe_bubble_and_memory(p: int, m: int) -> None:
    """README of deepseek-ai/DualPipe: (PP/2 - 1)(F&B + B - 3W) and PP + 1, here with F&B = F + B, all passes 1."""
    timeline = simulate(generate("dualpipe", p, 1, m), StageTimes.uniform(p, 1.0, 1.0, 1.0))
    assert timeline.makespan - 3 * m == pytest.approx((p // 2 - 1) * (3 + 2 - 3))
    assert max(timeline.peak_in_flight) == p + 1


def test_dualpipe_is_dualpipev_unfolded() -> None:
    """A rank of the outer half does what DualPipeV's does; its second stage is the other direction's."""
    p, m = 8, 20
    unfolded = generate("dualpipe", p, 1, m).ranks
    folded = generate("dualpipev", p // 2, 2, m // 2).ranks
    for rank in range(p // 2):
        there = [(work, microbatch // 2, microbatch % 2) for _, work, microbatch in unfolded[rank]]
        here = [(work, microbatch, int(stage >= p // 2)) for stage, work, microbatch in folded[rank]]
        assert there == here


def test_dualpipe_overlaps_directions() -> None:
    schedule = generate("dualpipe", 4, 1, 8)
    followers = {a: b for actions in schedule.ranks for a, b in zip(actions, actions[1:], strict=False)}
    assert schedule.overlapped
    for action in schedule.overlapped:
        other = followers[action]
        assert other.work is Pass.B
        assert (action.microbatch in schedule.mirrored) != (other.microbatch in schedule.mirrored)
