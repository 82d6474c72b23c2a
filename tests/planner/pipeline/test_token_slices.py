"""TeraPipe: the latency formula, and the best slices against brute force."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.pipeline.generators import generate
from planner.pipeline.schedule import Action, Pass
from planner.pipeline.simulator import simulate
from planner.pipeline.token_slices import best_slices, slice_latency

SECONDS = st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6)


@given(forward=SECONDS, p=st.integers(1, 5), ratio=st.floats(1.0, 3.0))
def test_slices_take_the_papers_time(forward: list[float], p: int, ratio: float) -> None:
    """arXiv:2102.07988, equation 5, once down with t_i and once up with the backward's."""
    backward = [ratio * t for t in forward]
    schedule = generate("terapipe", p, 1, len(forward))

    def seconds(action: Action) -> float:
        return (forward if action.work is Pass.F else backward)[action.microbatch]

    expected = slice_latency(forward, p) + slice_latency(backward, p)
    assert simulate(schedule, seconds).makespan == pytest.approx(expected)


def test_backwards_run_last_slice_first() -> None:
    for actions in generate("terapipe", 3, 1, 4).ranks:
        backwards = [action.microbatch for action in actions if action.work is Pass.B]
        assert backwards == [3, 2, 1, 0]


def causal(length: int, before: int) -> float:
    """A layer of a fixed start, work per token, and attention to all tokens before."""
    return 0.3 + length * (1.0 + 0.05 * (before + length / 2))


def cuts(tokens: int) -> list[tuple[int, ...]]:
    """All ways to cut ``tokens`` into slices."""
    found = []
    for mask in range(1 << (tokens - 1)):
        ends = [k + 1 for k in range(tokens - 1) if mask >> k & 1]
        found.append(tuple(b - a for a, b in pairwise([0, *ends, tokens])))
    return found


def latency(lengths: tuple[int, ...], p: int, scale: int = 1) -> float:
    before, times = 0, []
    for length in lengths:
        times.append(causal(length * scale, before * scale))
        before += length
    return slice_latency(times, p)


@settings(max_examples=25)
@given(tokens=st.integers(1, 10), p=st.integers(1, 12))
def test_no_other_cut_is_faster(tokens: int, p: int) -> None:
    best = best_slices(tokens, p, causal)
    assert sum(best) == tokens
    assert latency(best, p) == pytest.approx(min(latency(cut, p) for cut in cuts(tokens)))


def test_later_slices_are_shorter_and_deeper_pipelines_cut_finer() -> None:
    """As figure 4 of the paper explains: the time of slices evens out, not their length."""

    def seconds(length: int, before: int) -> float:
        return 8.0 + length * (1.0 + 0.01 * (before + length / 2))

    shallow, deep = (best_slices(256, p, seconds, granularity=4) for p in (3, 24))
    assert best_slices(256, 1, seconds, granularity=4) == (256,)
    assert 1 < len(shallow) < len(deep)
    for lengths in (shallow, deep):
        assert lengths[0] > 1.5 * lengths[-1]
        befores = [sum(lengths[:k]) for k in range(len(lengths))]
        times = [seconds(length, before) for length, before in zip(lengths, befores, strict=True)]
        assert max(times) < 1.5 * min(times)
        equal = [seconds(256 // len(lengths), k * 256 // len(lengths)) for k in range(len(lengths))]
        assert max(times) / min(times) < max(equal) / min(equal)


def test_slices_must_add_up() -> None:
    with pytest.raises(InputError, match="multiples of 16 tokens do not add up to 100 tokens"):
        best_slices(100, 4, causal, granularity=16)
