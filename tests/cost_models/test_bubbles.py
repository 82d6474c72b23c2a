"""Closed forms against a small simulation, PyTorch's recorded schedules and the papers' tables."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.errors import InputError, UnknownName
from cost_models.bubbles import (
    CLOSED_FORMS,
    InFlight,
    PipelineShape,
    bubble_seconds,
    idle_fraction,
    in_flight,
    makespan,
    makespan_1f1b,
)

TORCH_NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "breadth-first",
    "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}

# arXiv:2401.10241, tables 5 and 9: p, m, F, B, W, transfer [ms]; idle share of 1F1B
PUBLISHED_1F1B = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352),
]


def shape(row: dict[str, Any]) -> PipelineShape:
    v = row["v"]
    return PipelineShape(
        row["pp"], row["microbatches"], v * row["tF"], v * row["tI"], v * row["tW"], virtual_stages=v
    )


@pytest.mark.parametrize("torch_name", TORCH_NAMES)
def test_makespans_of_pytorchs_schedules(rows: Any, torch_name: str) -> None:
    checked = 0
    for row in rows("schedule_makespans"):
        if row["schedule"] == torch_name and not row["p2p"] and covered(torch_name, row):
            assert makespan(TORCH_NAMES[torch_name], shape(row)) == pytest.approx(row["makespan"]), row
            checked += 1
    assert checked >= 4


def covered(torch_name: str, row: dict[str, Any]) -> bool:
    """Whether the closed form takes so few micro-batches."""
    least = {"ZBVZeroBubble": 2 * row["pp"] - 1, "DualPipeV": 2 * row["pp"]}
    return bool(row["microbatches"] >= least.get(torch_name, 1))


def test_interleaved_zero_bubble_with_unequal_passes(rows: Any) -> None:
    """Recorded with transfers of 0.05; how many count follows from equal passes with 0.1 and without."""
    recorded = {
        (row["pp"], row["microbatches"], row["v"], row["p2p"]): row
        for row in rows("schedule_makespans")
        if row["schedule"] == "InterleavedZeroBubble"
    }
    checked = 0
    for (p, m, v, p2p), row in recorded.items():
        if p2p == 0.05:
            equal = [recorded[p, m, v, transfer]["makespan"] for transfer in (0.0, 0.1)]
            transfers = (equal[1] - equal[0]) / 0.1
            closed = makespan("interleaved-zb", shape(row))
            assert closed + 0.05 * transfers == pytest.approx(row["makespan"]), row
            checked += 1
    assert checked == 3


@pytest.mark.parametrize("torch_name", TORCH_NAMES)
def test_micro_batches_in_flight_of_pytorchs_schedules(rows: Any, torch_name: str) -> None:
    name = TORCH_NAMES[torch_name]
    for row in rows("schedule_makespans"):
        if row["schedule"] != torch_name or (name == "zb-v" and row["microbatches"] < 2 * row["pp"] - 1):
            continue
        pipeline, v = shape(row), row["v"]
        held = [in_flight(name, pipeline, rank) for rank in range(row["pp"])]
        assert [v * one.activations for one in held] == pytest.approx(row["peak_inflight_until_I"]), row
        if name == "interleaved-zb":
            total = [v * (one.activations + one.weight_inputs) for one in held]
            assert total == pytest.approx(row["peak_inflight"]), row


def test_1f1b_with_transfers_equals_pytorchs_order(rows: Any) -> None:
    for row in rows("schedule_makespans"):
        if row["schedule"] == "1F1B":
            times = row["tF"], row["tI"], row["tW"], row["p2p"]
            assert makespan_1f1b(row["pp"], row["microbatches"], *times) == pytest.approx(row["makespan"])


@pytest.mark.parametrize(("p", "m", "f", "b", "w", "p2p", "idle"), PUBLISHED_1F1B)
def test_published_idle_shares_of_1f1b(
    p: int, m: int, f: float, b: float, w: float, p2p: float, idle: float
) -> None:
    assert 1 - m * (f + b + w) / makespan_1f1b(p, m, f, b, w, p2p) == pytest.approx(idle, abs=1e-4)


Order = list[tuple[str, int]]


def simulate(orders: list[Order], seconds: dict[str, float], p2p: float = 0.0) -> float:
    """Makespan of one chunk per rank: F after the rank before, B after the rank behind, in program order."""
    done: dict[tuple[int, str, int], float] = {}
    clock, place = [0.0] * len(orders), [0] * len(orders)
    while any(place[rank] < len(order) for rank, order in enumerate(orders)):
        progress = False
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                kind, micro = order[place[rank]]
                last = rank == len(orders) - 1
                needs = {"F": (rank - 1, "F", micro), "W": (rank, "B", micro)}.get(
                    kind, (rank, "F", micro) if last else (rank + 1, "B", micro)
                )
                if kind == "F" and rank == 0:
                    ready = 0.0
                elif needs in done:
                    ready = done[needs] + (p2p if needs[0] != rank else 0.0)
                else:
                    break
                clock[rank] = done[rank, kind, micro] = max(clock[rank], ready) + seconds[kind]
                place[rank] += 1
                progress = True
        assert progress, "deadlock"
    return max(clock)


def zero_bubble(p: int, m: int, warmup: Any, delay: Any) -> list[Order]:
    """The rules of ZB-H1 and ZB-H2: after ``warmup`` forwards B, then W once ``delay`` wait, then F."""
    orders = []
    for rank in range(p):
        forwards = min(m, warmup(rank))
        order: Order = [("F", i) for i in range(forwards)]
        weights = 0
        for micro in range(m):
            order.append(("B", micro))
            if micro + 1 - weights > delay(rank):
                order.append(("W", weights))
                weights += 1
            if forwards < m:
                order.append(("F", forwards))
                forwards += 1
        orders.append(order + [("W", i) for i in range(weights, m)])
    return orders


@given(p=st.integers(1, 6), m=st.integers(1, 20), p2p=st.floats(0, 0.5))
def test_1f1b_with_transfers_simulated(p: int, m: int, p2p: float) -> None:
    orders: list[Order] = []
    for rank in range(p):
        warmup = min(m, p - rank - 1)
        steady = [pair for i in range(m - warmup) for pair in (("F", warmup + i), ("B", i))]
        orders.append([("F", i) for i in range(warmup)] + steady + [("B", i) for i in range(m - warmup, m)])
    simulated = simulate(orders, {"F": 1.0, "B": 2.0}, p2p)
    assert makespan_1f1b(p, m, 1.0, 1.5, 0.5, p2p) == pytest.approx(simulated)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (2, 6), (4, 4), (4, 12), (8, 8), (8, 24)])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (29.7, 29.4, 19.9), (3, 5, 1), (1, 2, 4)])
def test_zb_h1_simulated(p: int, m: int, times: tuple[float, float, float]) -> None:
    orders = zero_bubble(p, m, lambda rank: p - rank, lambda rank: rank)
    simulated = simulate(orders, dict(zip("FBW", times, strict=True)))
    assert makespan("zb-h1", PipelineShape(p, m, *times)) <= simulated * (1 + 1e-12)
    if times[1] >= times[2]:
        assert makespan("zb-h1", PipelineShape(p, m, *times)) == pytest.approx(simulated)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (2, 6), (4, 8), (4, 12), (8, 24), (8, 32)])
@pytest.mark.parametrize("times", [(1, 1, 1), (29.7, 29.4, 19.9), (18.5, 18.1, 9.3)])
def test_zb_h2_simulated(p: int, m: int, times: tuple[float, float, float]) -> None:
    orders = zero_bubble(p, m, lambda rank: 2 * (p - rank) - 1, lambda rank: 2 * rank)
    simulated = simulate(orders, dict(zip("FBW", times, strict=True)))
    assert makespan("zb-h2", PipelineShape(p, m, *times)) == pytest.approx(simulated, rel=5e-3)


def test_zb_h2_of_the_paper() -> None:
    """6.2B, 8 ranks, 24 micro-batches: 2109.8 ms from first start to last end, with 7 transfers in it."""
    pipeline = PipelineShape(8, 24, 29.718, 29.444, 19.927)
    assert makespan("zb-h2", pipeline) + 7 * 0.527 == pytest.approx(2109.8, abs=0.1)


@pytest.mark.parametrize(("p", "m"), list(product((2, 4, 8), (8, 16, 32))))
def test_shares_of_the_papers(p: int, m: int) -> None:
    equal = PipelineShape(p, m, 1.0, 1.0, 1.0)
    assert idle_fraction("gpipe", equal) == pytest.approx((p - 1) / (m + p - 1))
    assert idle_fraction("1f1b", equal) == pytest.approx((p - 1) / (m + p - 1))
    assert idle_fraction("chimera", equal) == pytest.approx((p - 2) / (2 * m + p - 2))
    assert bubble_seconds("zb-h1", equal) == p - 1
    interleaved = PipelineShape(p, m, 1.0, 1.0, 1.0, virtual_stages=4)
    assert idle_fraction("interleaved", interleaved) == pytest.approx((p - 1) / (4 * m + p - 1))


def test_dualpipe_of_its_readme() -> None:
    # PP = 8, 20 micro-batches: (8/2 - 1)(F&B + B - 3W), with B = 2 W = 2 F and F&B = F + B = 3
    assert bubble_seconds("dualpipe", PipelineShape(8, 20, 1.0, 1.0, 1.0)) == 3 * (3 + 2 - 3)


def test_in_flight_of_the_papers() -> None:
    pipeline = PipelineShape(8, 32, 1.0, 1.0, 1.0)
    assert [in_flight("zb-h1", pipeline, rank) for rank in (0, 7)] == [InFlight(8, 0), InFlight(1, 7)]
    assert [in_flight("zb-h2", pipeline, rank) for rank in (0, 7)] == [InFlight(15, 0), InFlight(1, 14)]
    assert in_flight("dualpipe", pipeline, 0) == InFlight(9)
    chimera = [in_flight("chimera", pipeline, rank).activations for rank in range(8)]
    assert chimera == [5, 6, 7, 8, 8, 7, 6, 5]  # between D/2 + 1 and D
    # Korthikanti: the first stage holds p (1 + (p-1)/(p v)) micro-batches
    looped = PipelineShape(8, 32, 1.0, 1.0, 1.0, virtual_stages=3)
    assert in_flight("interleaved", looped, 0).activations == pytest.approx(8 * (1 + 7 / 24))


@pytest.mark.parametrize("name", CLOSED_FORMS)
@given(p=st.sampled_from([1, 2, 4, 8]), times=st.floats(0.1, 10), rounds=st.integers(2, 5))
def test_laws_of_every_schedule(name: str, p: int, times: float, rounds: int) -> None:
    if p == 1 and name in ("chimera", "dualpipe"):
        return
    v = 2 if name in ("zb-v", "dualpipev", "interleaved", "breadth-first") else 1
    pipeline = PipelineShape(p, rounds * p, times, times, times, virtual_stages=v)
    later = PipelineShape(p, 2 * rounds * p, times, times, times, virtual_stages=v)
    assert makespan(name, pipeline) >= pipeline.work
    assert idle_fraction(name, later) <= idle_fraction(name, pipeline)
    assert 0 <= idle_fraction(name, pipeline) < 1
    for rank in range(p):
        held = in_flight(name, pipeline, rank)
        assert 1 <= held.activations + held.weight_inputs <= pipeline.num_microbatches


@pytest.mark.parametrize("name", [name for name in CLOSED_FORMS if name not in ("chimera", "dualpipe")])
def test_one_rank_never_waits(name: str) -> None:
    assert bubble_seconds(name, PipelineShape(1, 4, 1.0, 1.0, 1.0)) == 0.0


def test_what_a_form_does_not_cover_is_an_error() -> None:
    with pytest.raises(UnknownName, match="did you mean 1f1b"):
        makespan("1fb1", PipelineShape(2, 2, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="needs equal passes"):
        makespan("zb-v", PipelineShape(2, 8, 1.0, 2.0, 1.0))
    with pytest.raises(InputError, match="at least 7 micro-batches, found 4"):
        makespan("zb-h2", PipelineShape(4, 4, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="even number of ranks, found 3"):
        makespan("chimera", PipelineShape(3, 8, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="rank 2 is not among the 2 ranks"):
        in_flight("1f1b", PipelineShape(2, 2, 1.0, 1.0, 1.0), 2)
    assert idle_fraction("1f1b", PipelineShape(2, 0, 0.0, 0.0, 0.0)) == 0.0
