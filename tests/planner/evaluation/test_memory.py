"""What is counted for few micro-batches holds for many."""

from itertools import product

import pytest

from planner.evaluation.memory import steady_microbatches
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES, refusal
from planner.plans import Parallelism

MICROBATCHES = (*range(1, 34), 36, 45, 54, 63, 64, 96)
"""Multiples of the ranks, odd remainders, and equal rounds of more micro-batches than ranks."""


def peaks(name: str, p: int, v: int, m: int) -> tuple[float, ...]:
    """Of unequal stages, on every rank."""
    held = [1.0 + (7 * stage) % 5 for stage in range(p * v)]
    return peak_bytes(arranged(name, p, v, m), held, [0.0] * (p * v))


def reduced_pipelines(name: str) -> list[tuple[int, int, int, int]]:
    """(ranks, virtual stages, micro-batches, fewer micro-batches), where fewer are simulated."""
    least, most = SCHEDULES[name].stages_per_rank
    found = []
    for p, v, m in product((2, 3, 4, 8), range(least, (most or 3) + 1), MICROBATCHES):
        if not refusal(name, p, v, m):
            plan = Parallelism(pipeline=p, virtual_stages=v, num_microbatches=m, schedule=name)
            found.append((p, v, m, steady_microbatches(plan)))
    return [shape for shape in found if shape[2] != shape[3]]


def check_fewer(name: str, shapes: list[tuple[int, int, int, int]]) -> None:
    for p, v, m, fewer in shapes:
        assert fewer < m
        assert not refusal(name, p, v, fewer), f"{fewer} in place of {m}"
        assert peaks(name, p, v, fewer) == pytest.approx(peaks(name, p, v, m)), f"{fewer} in place of {m}"


@pytest.mark.parametrize("name", SCHEDULES)
def test_fewer_microbatches_hold_as_much(name: str) -> None:
    in_rounds = bool(SCHEDULES[name].requirement)
    check_fewer(name, [s for s in reduced_pipelines(name) if not in_rounds or s[2] % s[0] == 0])


@pytest.mark.parametrize("name", ["interleaved", "interleaved-zb"])
def test_fewer_rounds_of_more_microbatches_than_ranks_hold_as_much(name: str) -> None:
    check_fewer(name, [s for s in reduced_pipelines(name) if s[2] % s[0]])


def test_long_pipelines_are_cut_short() -> None:
    assert any(fewer < m / 4 for _, _, m, fewer in reduced_pipelines("1f1b"))
