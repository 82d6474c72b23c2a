"""Backwards: what is chosen is the cheapest of everything that could have been, and a miss says what binds."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from small import PINS, point

from cluster_specs.catalog import load_cluster, what_if
from planner.analysis.economics import Terms
from planner.errors import InputError
from planner.models.adapters import Adapter
from planner.sweep.ladders import Goal, Ladder, best, flops, meets, money
from planner.sweep.records import Point
from planner.sweep.refining import MOST_BETWEEN, between, near
from planner.sweep.running import sweep
from planner.sweep.sizing import Sizing, size

JOB: dict[str, Any] = {"seq_len": 1024, "global_batch": 192, **PINS}
KINDS = ("dgx-h100", "dgx-a100-80g", "tpu-v4")
TERMS = Terms(tokens=3e11)
DAY = 86400.0


def sized(days: float | None, budget: float | None, **more: Any) -> Sizing:
    goal = Goal(deadline_s=None if days is None else days * DAY, budget=budget)
    return size("gpt2", TERMS, goal, job=JOB, clusters=KINDS, most_devices=512, **more)


@pytest.fixture(scope="module")
def everything() -> list[Point]:
    """Every size of every kind, by a sweep."""
    counts = {"dgx-h100": (8, 16, 24, 32, 48, 64, 96, 192), "tpu-v4": (8, 16, 32, 64, 128)}
    counts["dgx-a100-80g"] = counts["dgx-h100"]
    fixed = {name: value for name, value in JOB.items() if name not in ("seq_len", "global_batch")}
    points: list[Point] = []
    for kind in KINDS:
        axes = {
            "model": ("gpt2",),
            "cluster": (kind,),
            "devices": counts[kind],
            "seq_len": (1024,),
            "global_batch": (192,),
        }
        points += [p for p in sweep(axes, TERMS, fixed=fixed).points if p.economics]
    return points


@pytest.mark.parametrize("days", [0.5, 1.0, 2.0, 4.0])
def test_against_every_size(everything: list[Point], days: float) -> None:
    answer = sized(days, None)
    in_time = [p.economics for p in everything if p.economics and p.economics.time_to_train_s <= days * DAY]
    assert answer.meets is bool(in_time)
    if in_time:
        assert answer.chosen is not None
        chosen = answer.tried[answer.chosen].economics
        assert chosen is not None
        assert chosen.cost == pytest.approx(min(c.cost or 0 for c in in_time))
        good = sum(meets(p, answer.goal) for p in answer.tried)
        assert f"the cheapest of {good} that meet the goal, of " in answer.verdict


UNEVEN: dict[str, Any] = {**JOB, "global_batch": 720}
"""A batch that 40, 72, 80, 120 and 144 ranks divide."""


@pytest.fixture(scope="module")
def every_count() -> list[Point]:
    """All counts of nodes of two kinds, each asked for by itself."""
    fixed = {name: value for name, value in UNEVEN.items() if name not in ("seq_len", "global_batch")}
    axes = {
        "model": ("gpt2",),
        "cluster": ("dgx-h100", "dgx-a100-80g"),
        "devices": range(8, 257, 8),
        "seq_len": (UNEVEN["seq_len"],),
        "global_batch": (UNEVEN["global_batch"],),
    }
    return [p for p in sweep(axes, TERMS, fixed=fixed).points if p.economics]


@pytest.mark.parametrize("days", [0.16, 0.2, 0.25, 0.33, 0.5, 0.8, 2.0])
def test_against_every_count_of_nodes(every_count: list[Point], days: float) -> None:
    goal = Goal(deadline_s=days * DAY)
    answer = size("gpt2", TERMS, goal, job=UNEVEN, clusters=("dgx-h100", "dgx-a100-80g"), most_devices=256)
    good = [p for p in every_count if meets(p, goal)]
    assert answer.meets is bool(good)
    if good:
        assert answer.chosen is not None
        chosen = answer.tried[answer.chosen]
        assert money(chosen) == min(map(money, good))
        steps = answer.refined.get(chosen.inputs.cluster)
        assert steps is None or steps.every_devices == 8
        said = "no size lies between those tried" if steps is None else "in steps of 8 or finer"
        assert said in answer.verdict


def test_sizes_between_the_usual_ones_are_found(every_count: list[Point]) -> None:
    """At least one of these deadlines is met most cheaply by no power of two nor three times one."""
    usual = {factor << k for factor in (1, 3) for k in range(9)}
    cheapest = set()
    for days in (0.16, 0.2, 0.25, 0.33, 0.5, 0.8):
        good = [p for p in every_count if meets(p, Goal(deadline_s=days * DAY))]
        cheapest |= {min(good, key=money).inputs.devices} if good else set()
    assert cheapest - usual


def test_a_budget_too_small_says_so() -> None:
    answer = sized(4.0, 1.0)
    assert not answer.meets
    assert "The cheapest in time is" in answer.verdict
    assert "nothing that was tried costs less" in answer.verdict


def test_a_deadline_too_short_says_so() -> None:
    answer = sized(0.001, None)
    assert not answer.meets
    assert "No size is in time: the fastest is" in answer.verdict
    assert answer.chosen is not None
    times = [p.economics.time_to_train_s for p in answer.tried if p.economics]
    assert answer.tried[answer.chosen].economics.time_to_train_s == min(times)  # type: ignore[union-attr]


def test_a_budget_alone() -> None:
    answer = sized(None, 1e9)
    assert answer.meets
    assert answer.tried


def test_dear_kinds_are_not_tried(tmp_path: Path) -> None:
    """At 1000 USD an hour for the same devices, the peak alone costs more than the other's answer."""
    dear = tmp_path / "dear.json"
    cluster = what_if(load_cluster("dgx-h100:1"), {"price.per_device_hour": 1000.0})
    dear.write_text(cluster.model_dump_json(exclude_none=True))
    clusters = (str(dear), "dgx-h100")
    answer = size("gpt2", TERMS, Goal(deadline_s=4 * DAY), job=JOB, clusters=clusters, most_devices=64)
    assert {point.inputs.cluster for point in answer.tried if point.economics} >= {"dgx-h100"}
    assert sum(point.inputs.cluster == str(dear) for point in answer.tried) <= 1
    assert answer.chosen is not None
    assert answer.tried[answer.chosen].inputs.cluster == "dgx-h100"


@pytest.mark.parametrize(
    ("goal", "clusters", "said"),
    [
        (Goal(), ("dgx-h100",), "deadline or a budget"),
        (Goal(budget=1.0), ("dgx-h101",), "dgx-h100"),
    ],
)
def test_bad_input_is_refused(goal: Goal, clusters: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        size("gpt2", TERMS, goal, job=JOB, clusters=clusters)


def run(ladder: Ladder, points: list[Point]) -> list[int]:
    """Sizes that are tried when they turn out like this."""
    tried = []
    for each in points:
        if ladder.next_size is None:
            break
        tried.append(ladder.next_size)
        ladder.add(each)
    return tried


def ladder(*up: int, down: tuple[int, ...] = (), days: float = 6) -> Ladder:
    return Ladder("k", up, down, Goal(deadline_s=days))


def test_adapters_take_less_work_than_the_whole_model() -> None:
    """Or sizes that do would be left out: 4 FLOPs for a frozen weight and a token, 6 for a trained one."""
    matrices, trained, tokens = 8_030_261_248 - 128256 * 4096 - 65 * 4096, 6_815_744, 512
    attention = 3 * 2 * 32 * tokens * 4096 * tokens
    found = flops("llama-3.1-8b", {"seq_len": tokens, "adapter": Adapter(r=16)}, 1e9)
    assert found == pytest.approx(1e9 * (4 * matrices + 6 * trained + attention / tokens), rel=1e-12)
    with pytest.raises(InputError, match="the job: adapter: r: must be greater than 0"):
        flops("llama-3.1-8b", {"seq_len": tokens, "adapter": {"r": 0}}, 1e9)


def test_a_ladder_ends_where_money_rises() -> None:
    turned_out = [point(time=t, cost=c) for t, c in ((9, 5), (5, 5), (3, 6), (2, 7))]
    assert run(ladder(8, 16, 32, 64), turned_out) == [8, 16, 32]


def test_a_ladder_goes_on_while_money_falls() -> None:
    turned_out = [point(time=t, cost=c) for t, c in ((5, 9), (4, 8), (3, 7), (2, 7.5))]
    assert run(ladder(8, 16, 32, 64), turned_out) == [8, 16, 32, 64]


def test_a_ladder_ends_where_nothing_gets_faster() -> None:
    turned_out = [point(time=t) for t in (9, 8.95, 8.94, 3)]
    assert run(ladder(8, 16, 32, 64), turned_out) == [8, 16, 32]
    stumbles = [point(time=t) for t in (9, 8.95, 7, 5)]
    assert run(ladder(8, 16, 32, 64), stumbles) == [8, 16, 32, 64]


def test_a_ladder_turns_back_where_nothing_fits() -> None:
    failed = Point(inputs=point().inputs, key="", status="invalid")
    assert run(ladder(32, 64, down=(16, 8)), [failed, failed, failed, point()]) == [32, 64, 16, 8]
    assert run(ladder(32, 64, down=(16, 8)), [failed, failed, point(), point()]) == [32, 64, 16]


def tried(*times: tuple[int, float, float]) -> list[Point]:
    """Points of (nodes of 8, days, cost)."""
    return [point(time=days * DAY, cost=cost, devices=8 * nodes) for nodes, days, cost in times]


def test_counts_between_are_all_those_of_a_small_gap() -> None:
    points = tried((8, 9, 5), (12, 6, 5.5), (16, 5, 6))
    assert between(points, Goal(deadline_s=6 * DAY), 0, 8) == (72, 80, 88, 104, 112, 120)
    assert between(points, Goal(deadline_s=6 * DAY), 0, 0) == ()
    assert between(tried((8, 9, 5), (9, 5, 6)), Goal(deadline_s=6 * DAY), 0, 8) == ()


def test_counts_below_the_least_are_left_out() -> None:
    assert between(tried((8, 5, 5), (12, 4, 6)), Goal(deadline_s=6 * DAY), 41, 8)[:3] == (48, 56, 72)


def test_wide_gaps_are_narrowed_down_to_a_node() -> None:
    """Rounds end, ask for nothing twice, and find the one count where time and cost are smooth."""
    goal = Goal(deadline_s=5.5 * DAY)

    def outcomes(nodes: Iterable[int]) -> list[Point]:
        return tried(*((n, 9 * 512 / n, 4 + n / 512) for n in nodes))

    points = outcomes((512, 768, 1024))
    while counts := between(points, goal, 0, 8):
        assert len(counts) <= 2 * MOST_BETWEEN
        assert not {p.inputs.devices for p in points} & set(counts)
        points += outcomes(n // 8 for n in counts)
    chosen = best(points, goal)
    assert chosen is not None
    assert points[chosen].inputs.devices == 8 * math.ceil(9 * 512 / 5.5)
    assert len(points) < 60


def test_kinds_far_from_the_cheapest_are_not_refined() -> None:
    goal = Goal(deadline_s=6 * DAY)
    kinds = [tried((8, 5, 100)), tried((8, 5, 114)), tried((8, 5, 116)), tried((8, 7, 90))]
    assert near(kinds, goal) == [0, 1]
    assert near([tried((8, 7, 90)), tried((8, 8, 1)), tried((8, 12, 1))], goal) == [0, 1]


@pytest.mark.parametrize(
    ("job", "kind", "why"),
    [
        ({}, "dgx-v100", "has no bf16 rate; it has fp16, fp32"),
        ({"stack": "megatron"}, "tpu-v4", "stack megatron runs on gpu, not on tpu-v4"),
    ],
)
def test_a_kind_that_can_train_no_size_is_named_once(job: dict[str, Any], kind: str, why: str) -> None:
    ask = {"job": {**JOB, **job}, "most_devices": 32}
    answer = size("gpt2", TERMS, Goal(budget=1e9), clusters=("dgx-h100", kind), **ask)
    assert why in answer.skipped[kind]
    assert {point.inputs.cluster for point in answer.tried} == {"dgx-h100"}
    with pytest.raises(InputError, match=why):
        size("gpt2", TERMS, Goal(budget=1e9), clusters=(kind,), **ask)
