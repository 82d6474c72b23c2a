"""Cuts in the order of their bounds: every cut once, none out of turn, and no simulated pipeline below its bound."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.inter_op.ordered import cuts_in_order
from planner.inter_op.partition import Submesh
from planner.pipeline.simulator import StageTimes, makespan
from planner.search.submeshes import in_flight

LAYERS, POOLS = 4, (4, 2)
SUBMESHES = (Submesh(4, 0), Submesh(2, 0), Submesh(2, 1), Submesh(1, 1))
MOST = 4


def every_cut():
    """(layers, submeshes) of every cut that fills both pools in order."""
    for stages in range(1, MOST + 1):
        for chosen in product(range(len(SUBMESHES)), repeat=stages):
            used = [SUBMESHES[k] for k in chosen]
            filled = [sum(s.size for s in used if s.pool == pool) for pool in range(len(POOLS))]
            if filled == list(POOLS) and [s.pool for s in used] == sorted(s.pool for s in used):
                for ends in combinations(range(1, LAYERS), stages - 1):
                    yield tuple(pairwise((0, *ends, LAYERS))), chosen


def held(schedule: str, m: int) -> list[int]:
    """q by stages after."""
    return [in_flight(schedule, after, m) for after in range(MOST)]


def bound(work, after, stages, chosen, m, extra):
    """M of the docstring under 1F1B, term by term."""
    behind = range(len(stages) - 1, -1, -1)
    of = [(work[b, k, i, j], after[b, k, i, j]) for b, k, (i, j) in zip(behind, chosen, stages, strict=True)]
    if np.isinf(of).any():
        return np.inf
    least = []
    for n, (w, a) in enumerate(of):
        before, behind, others = sum(w for w, _ in of[:n]), sum(w for w, _ in of[n + 1 :]), len(of) - n - 1
        waits = max(0.0, 2 * behind - others * w) if m > others + 1 else 0.0
        least.append(before + m * w + waits + a)
    return max(least) + extra[len(stages) - 1]


def tables(seed: int, share: float):
    """Random times, ``share`` of the stages not allowed."""
    draw = np.random.default_rng(seed)
    size = (MOST, len(SUBMESHES), LAYERS + 1, LAYERS + 1)
    work, after = draw.uniform(0.1, 2, size), draw.uniform(0, 1, size)
    work[draw.uniform(size=size) < share] = np.inf
    work[..., *np.tril_indices(LAYERS + 1)] = np.inf  # a stage ends after it starts
    after[np.isinf(work)] = np.inf
    return work, after


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.7]))
def test_every_cut_comes_once_in_the_order_of_its_bound(seed: int, m: int, share: float) -> None:
    work, after = tables(seed, share)
    extra = np.random.default_rng(seed).uniform(0, 3, MOST).tolist()
    expected = {cut: bound(work, after, *cut, m, extra) for cut in every_cut()}
    expected = {cut: value for cut, value in expected.items() if np.isfinite(value)}
    found = list(cuts_in_order(work, after, POOLS, SUBMESHES, m, held("1f1b", m), extra))
    assert {(f.cut.stages, f.cut.submeshes): f.bound for f in found} == pytest.approx(expected)
    assert len(found) == len(expected)
    assert all(a.bound <= b.bound * (1 + 1e-12) for a, b in pairwise(found))


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(["1f1b", "eager-1f1b", "gpipe"]))
def test_no_pipeline_is_faster_than_its_bound(seed: int, m: int, schedule: str) -> None:
    work, after = tables(seed, 0.0)
    draw = np.random.default_rng(seed)
    for found in cuts_in_order(
        work, np.zeros_like(after), POOLS, SUBMESHES, m, held(schedule, m), [0.0] * MOST
    ):
        seconds = np.array(found.cut.stage_seconds)
        forward, inputs = seconds * draw.uniform(0.1, 0.5), seconds * draw.uniform(0.1, 0.5)
        times = StageTimes(forward.tolist(), inputs.tolist(), (seconds - forward - inputs).tolist())
        ran = makespan(schedule, len(seconds), 1, m, times, draw.uniform(0, 0.3))
        assert found.bound <= ran.makespan * (1 + 1e-12)


def test_pipelines_that_are_not_to_be_are_left_out() -> None:
    work, after = tables(0, 0.0)
    extra = [np.inf, 0.0, np.inf, np.inf]
    found = list(cuts_in_order(work, after, POOLS, SUBMESHES, 3, held("1f1b", 3), extra))
    assert found
    assert {len(f.cut.stages) for f in found} == {2}
