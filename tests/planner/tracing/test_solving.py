"""Layouts chosen: optimal by another solver, priced as evaluated, never worse than plans written by hand."""

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
from jax_layers import Sizes, block  # noqa: E402
from jax_models import MODELS  # noqa: E402

from cluster_specs.units import format_bytes  # noqa: E402
from planner.errors import Infeasible, InputError  # noqa: E402
from planner.intra_op import clock, unlimited  # noqa: E402
from planner.intra_op.answers import NetworkAnswer  # noqa: E402
from planner.intra_op.compact import Compact  # noqa: E402
from planner.intra_op.ilp import solve  # noqa: E402
from planner.intra_op.narrowing import solve_narrowed  # noqa: E402
from planner.intra_op.network import Network  # noqa: E402
from planner.intra_op.parts import TooLarge  # noqa: E402
from planner.intra_op.problem import StrategyProblem  # noqa: E402
from planner.tracing.program import Operation, Program, Tie, Value  # noqa: E402
from planner.tracing.reading.from_jax import from_jax  # noqa: E402
from planner.tracing.sharded import ShardedProgram  # noqa: E402
from planner.tracing.solving.baselines import Rules  # noqa: E402
from planner.tracing.solving.problem import LayoutProblem, chosen_options  # noqa: E402
from planner.tracing.solving.setting import Setting, may_recompute, set_up  # noqa: E402
from planner.tracing.solving.shard import baseline_estimates, price_layouts, shard  # noqa: E402

pytestmark = pytest.mark.jax
CLUSTER, MESH = "dgx-h100:2", {"data": 4, "model": 4}
TRANSFORMER = Sizes(2, 4096, 32, 8, 16384, 32768, 16, 2048, "bfloat16")
SIZES = {
    "gpt": TRANSFORMER._replace(kv_heads=32),
    "t5": TRANSFORMER._replace(kv_heads=32, layers=1),
    "vit": TRANSFORMER._replace(kv_heads=32, length=1024),
    "mixtral": TRANSFORMER._replace(width=2048, heads=16, length=512),
    "resnet": Sizes(4, 256, batch=256, dtype="bfloat16"),
    "unet": Sizes(2, 128, batch=64, dtype="bfloat16"),
    "dlrm": Sizes(1, 128, ffn=1024, vocab=100_000, batch=64, length=512),
}


def program_of(name: str, sizes: Sizes | None = None):
    case = MODELS[name](sizes or SIZES.get(name, TRANSFORMER))
    return case, from_jax(case.step, *case.arguments)


def axes_of(rules: Rules, mesh: Mapping[str, int]) -> Rules:
    """The rules without the axes that the mesh lacks."""
    return {path: tuple(axis if axis in mesh else None for axis in spec) for path, spec in rules.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "mesh",
    [{"model": 8}, MESH, {"pod": 2, "data": 2, "model": 4}],
    ids=["one axis", "two axes", "three axes"],
)
def test_no_plan_written_by_hand_is_better(name: str, mesh: dict[str, int]) -> None:
    case, program = program_of(name)
    sharded = shard(program, CLUSTER, mesh, seconds=60)
    setting = set_up(program, CLUSTER, mesh)
    by_hand = price_layouts(setting, axes_of(case.by_hand, mesh))
    plans = {**baseline_estimates(setting), "by hand": by_hand}
    assert sharded.proven
    assert sharded.gap < 1e-3
    assert {n: e.seconds >= sharded.seconds for n, e in plans.items()} == dict.fromkeys(plans, True)


def as_strategy_problem(setting: Setting) -> StrategyProblem:
    problem = setting.problem
    return StrategyProblem(
        nodes=tuple(str(i) for i in range(len(problem.options))),
        seconds=problem.seconds,
        bytes_=tuple(np.zeros(s.size) for s in problem.seconds),
        edges=tuple((u, v) for u, v, _ in problem.links),
        edge_seconds=tuple(t.full for _, _, t in problem.links),
    )


@pytest.mark.parametrize("name", ["mlp", "dlrm"])
def test_another_solver_finds_the_same_optimum(name: str) -> None:
    _, program = program_of(name)
    setting = set_up(program, CLUSTER, MESH, fold=False, memory_limit=1e15)
    other = solve(as_strategy_problem(setting))
    assert other.status == "optimal"
    sharded = shard(program, CLUSTER, MESH, fold=False, memory_limit=1e15)
    assert sharded.seconds == pytest.approx(other.cost, rel=1e-5)


def in_parts(option: object) -> bool:
    return bool(getattr(option, "parts", ()))


def stays(options: Any, number: int) -> bool:
    """Whether rows that a loop takes must lie where it takes them."""
    return getattr(options, "brought", None) is not None and not options[number].brought


def test_the_objective_is_what_the_evaluator_says() -> None:
    _, program = program_of("gpt")
    setting = set_up(program, CLUSTER, MESH, fold=False)
    problem, rng = setting.problem, np.random.default_rng(0)
    priced = 0
    for _ in range(50):
        choice = [int(rng.integers(len(o))) for o in problem.options]
        tables = sum(float(t.full[choice[u], choice[v]]) for u, v, t in problem.links)
        chosen = [o[c] for o, c in zip(problem.options, choice, strict=True)]
        if np.isinf(tables):
            with pytest.raises(ValueError, match="does not lie as|is not split as"):
                setting.estimate(chosen)
            # take copies as held and rows of loops as brought, allowed wherever they lie, and products apart; and
            # leave nothing in parts
            choice = [
                len(o) - 1
                if hasattr(o[0], "held")
                else 0
                if hasattr(o[0], "pattern")
                else next(k for k in (c, *range(len(o))) if not in_parts(o[k]) and not stays(o, k))
                for o, c in zip(problem.options, choice, strict=True)
            ]
            chosen = [o[c] for o, c in zip(problem.options, choice, strict=True)]
            tables = sum(float(t.full[choice[u], choice[v]]) for u, v, t in problem.links)
        nodes = sum(float(s[c]) for s, c in zip(problem.seconds, choice, strict=True))
        assert nodes + tables == pytest.approx(setting.estimate(chosen).seconds, rel=1e-9)
        priced += 1
    assert priced == 50


def test_memory_makes_weights_lie_in_shards() -> None:
    _, program = program_of(
        "mlp", Sizes(4, 4096, ffn=16384, vocab=1024, batch=16, length=1024, dtype="bfloat16")
    )
    limit = 950e6
    roomy = shard(program, CLUSTER, MESH, optimizer_share=6)
    tight = shard(program, CLUSTER, MESH, optimizer_share=6, memory_limit=limit)
    assert tight.memory_bytes <= limit < 0.75 * roomy.memory_bytes
    assert tight.seconds > roomy.seconds


def test_what_does_not_fit_says_what_it_may_take_and_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = program_of("mlp", Sizes(2, 64, ffn=256, vocab=64, batch=16, length=16))
    setting = may_recompute(set_up(program, "dgx-h100:1", {"model": 8}))
    least = setting.problem.peak(np.min)
    assert setting.estimate(best_of(setting, 2 * least)).memory_bytes >= least
    said = f"may take {format_bytes(least - 1, 4)} on each device and need at least {format_bytes(least, 4)}"
    with pytest.raises(Infeasible, match=said) as found:
        shard(program, "dgx-h100:1", {"model": 8}, memory_limit=least - 1)
    free = shard(program, "dgx-h100:1", {"model": 8})
    assert format_bytes(free.memory_bytes, 4) in found.value.least_change
    monkeypatch.setattr(LayoutProblem, "peak", lambda *_: 0.0)  # where combinations alone prove it
    with pytest.raises(Infeasible, match="and need more, however they lie"):
        shard(program, "dgx-h100:1", {"model": 8}, memory_limit=least - 1)


@pytest.mark.parametrize(("spare", "first"), [(0.0, 100), (-1.0, 50)])
def test_all_of_the_time_is_used_where_memory_is_not_short(
    spare: float, first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where no layouts exceed it; else half is kept back until a choice is known to fit."""
    _, program = program_of("mlp", Sizes(2, 64, ffn=256, vocab=64, batch=16, length=16))
    limit = set_up(program, "dgx-h100:1", {"model": 8}).problem.peak(np.max) + spare
    asked: list[tuple[float, float]] = []
    costs: list[float] = []

    def unproven(network: Compact, deadline: float, most: float = np.inf) -> NetworkAnswer:
        asked.append((round(deadline - clock.now(), -1), most))
        answer = solve_narrowed(network, deadline)
        costs.append(answer.cost)
        return replace(answer, lower_bound=answer.cost / (4 - len(costs)))

    monkeypatch.setattr("planner.tracing.solving.shard.solve_narrowed", unproven)
    found = shard(program, "dgx-h100:1", {"model": 8}, seconds=100, memory_limit=limit)
    assert asked == [(first, np.inf), (100, costs[0] - 1)]
    assert found.memory_bytes <= limit
    assert not found.proven
    assert found.gap == pytest.approx(0.5, rel=1e-3)


def test_optimizer_states_may_lie_otherwise_than_weights() -> None:
    """ZeRO-1 is a point of the space: with little memory, states go into shards before weights do."""
    case, _ = program_of(
        "mlp", Sizes(2, 4096, ffn=16384, vocab=1024, batch=64, length=1024, dtype="bfloat16")
    )
    case = case._replace(trains=True)
    program = from_jax(case.step, *case.arguments)
    roomy = shard(program, CLUSTER, MESH)
    tight = shard(program, CLUSTER, MESH, memory_limit=0.7 * roomy.memory_bytes)

    def shards(sharded: ShardedProgram, prefix: str) -> int:
        return sum(any(axes for axes in p) for path, p in sharded.inputs.items() if path.startswith(prefix))

    assert tight.memory_bytes <= 0.7 * roomy.memory_bytes
    assert shards(tight, "moments") > shards(tight, "parameters")


@pytest.mark.parametrize(("width", "fits"), [(256, True), (512, False)])
def test_where_choices_are_many_those_without_second_runs_come_first(
    width: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is faster than they are is looked for then; anything, where none of them fits."""
    case = block(Sizes(1, width, width // 64, width // 128, width, 1000, 32, width, "bfloat16"))
    program, mesh = from_jax(case.step, *case.arguments), {"data": 2, "model": 4}
    limit = 0.95 * shard(program, "dgx-h100:1", mesh).memory_bytes
    expected = shard(program, "dgx-h100:1", mesh, memory_limit=limit)
    limits: list[float] = []

    def noted(
        network: Network, deadline: float, most: float = math.inf, largest: float = math.inf
    ) -> NetworkAnswer:
        if largest < math.inf:
            raise TooLarge
        limits.append(most)
        return solve_narrowed(network, deadline, most)

    monkeypatch.setattr("planner.tracing.solving.shard.solve_narrowed", noted)
    found = shard(program, "dgx-h100:1", mesh, memory_limit=limit)
    _, no_slower, *rest = limits
    assert expected.recomputed
    assert found.seconds == expected.seconds
    assert found.proven
    assert math.isfinite(rest[-1]) == fits
    assert all(most > no_slower for most in rest)


def test_second_runs_are_not_looked_for_where_the_limit_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of equally fast layouts one takes less memory."""
    case = MODELS["mixtral"]()
    program = from_jax(case.step, *case.arguments)
    free = shard(program, "dgx-h100:1", {"model": 8})
    monkeypatch.setattr("planner.tracing.solving.shard.may_recompute", None)
    tight = shard(program, "dgx-h100:1", {"model": 8}, memory_limit=free.memory_bytes - 1)
    assert tight.memory_bytes < free.memory_bytes
    assert tight.seconds == pytest.approx(free.seconds, rel=1e-6)
    assert tight.proven


def test_second_runs_take_no_plan_away() -> None:
    """Kernels of several outputs, some wanted late by readers and some by second runs only."""
    case, _ = program_of(
        "mlp", Sizes(2, 4096, ffn=16384, vocab=1024, batch=64, length=1024, dtype="bfloat16")
    )
    case = case._replace(trains=True)
    setting = set_up(from_jax(case.step, *case.arguments), CLUSTER, MESH)
    most = setting.estimate(best_of(setting, math.inf)).memory_bytes
    without, with_them = (
        setting.estimate(best_of(s, 0.7 * most)) if s is setting else s.estimate(best_of(s, 0.7 * most))
        for s in (setting, may_recompute(setting))
    )
    assert with_them.seconds <= without.seconds * (1 + 1e-6)
    assert with_them.memory_bytes <= 0.7 * most


def best_of(setting: Setting, limit: float):
    answer = solve_narrowed(setting.problem.network(limit), time.monotonic() + 60)
    assert answer.lower_bound == answer.cost
    return chosen_options(setting.problem, answer.choice)


def product_op(name: str, left: str, right: str, *sizes: int) -> Operation:
    dims = {"reads": (((0,), (1,)), ((1,), (2,))), "writes": (((0,), (2,)),)}
    return Operation(
        name=name, kind="product", primitive="dot", inputs=(left, right), outputs=(name,), sizes=sizes, **dims
    )


def two_products(rows: int, wide: int, narrow: int) -> Program:
    """``x @ up @ down``, to lie as ``x`` does."""
    shapes = {
        "x": (rows, narrow),
        "up": (narrow, wide),
        "down": (wide, narrow),
        "h": (rows, wide),
        "y": (rows, narrow),
    }
    roles = {"x": "input", "up": "parameter", "down": "parameter"}
    return Program(
        name="two",
        values=tuple(
            Value(name=n, shape=s, dtype="bfloat16", role=roles.get(n, "intermediate"), path=n)
            for n, s in shapes.items()
        ),
        operations=(
            product_op("h", "x", "up", rows, narrow, wide),
            product_op("y", "h", "down", rows, wide, narrow),
        ),
        inputs=("x", "up", "down"),
        outputs=("y",),
        ties=(Tie(source="y", target="x"),),
    )


@settings(max_examples=10)
@example(4096, 4096, 4096, 0.3)
@example(64, 4096, 256, 0.5)
@given(
    st.sampled_from([64, 512, 4096]),
    st.sampled_from([256, 4096, 16384]),
    st.sampled_from([256, 4096]),
    st.floats(0.2, 1.2),
)
def test_brute_force_finds_nothing_better(rows: int, wide: int, narrow: int, room: float) -> None:
    """Two products on one axis: every choice that fits in memory, priced by the evaluator.

    In the examples a choice that counted only what lasts would exceed the limit, by weights gathered on use.
    """
    program = two_products(rows, wide, narrow)
    setting = set_up(program, "dgx-h100:1", {"model": 8})
    everything = [setting.estimate(choice) for choice in itertools.product(*setting.problem.options)]
    limit = room * max(e.memory_bytes for e in everything)
    fitting = [e.seconds for e in everything if e.memory_bytes <= limit]
    if not fitting:
        with pytest.raises(Infeasible):
            shard(program, "dgx-h100:1", {"model": 8}, memory_limit=limit)
        return
    sharded = shard(program, "dgx-h100:1", {"model": 8}, memory_limit=limit)
    assert sharded.seconds == pytest.approx(min(fitting), rel=1e-6)
    assert sharded.memory_bytes <= limit


def test_what_one_operator_gathers_is_in_memory() -> None:
    """Weights in shards and data in parallel: beside all shards, one product at a time has its weights whole."""
    rows, width, devices = 65536, 4096, 8
    setting = set_up(two_products(rows, width, width), "dgx-h100:1", {"data": devices})
    by_hand = {"x": ("data", None), "up": ("data", None), "down": ("data", None)}
    estimate = price_layouts(setting, by_hand)
    assert {p.exchange.collective for p in estimate.exchanges} == {"all_gather"}
    weight, activation = 2 * width * width, 2 * rows * width / devices
    assert estimate.memory_bytes == 2 * weight / devices + weight + 3 * activation


def test_repeated_blocks_cost_little_and_lose_nothing() -> None:
    _, program = program_of("mlp", TRANSFORMER._replace(layers=24))
    folded, flat = (shard(program, CLUSTER, MESH, fold=fold) for fold in (True, False))
    setting = set_up(program, CLUSTER, MESH, fold=True)
    assert len(set(setting.problem.group)) < 0.6 * len(setting.problem.options)
    assert folded.folded
    assert not flat.folded
    assert flat.seconds * (1 - 1e-6) <= folded.seconds < 1.02 * flat.seconds


def test_the_answer_loads_as_it_was_saved() -> None:
    _, program = program_of("mlp", Sizes())
    sharded = shard(program, CLUSTER, MESH)
    assert ShardedProgram.model_validate_json(sharded.to_json()) == sharded
    assert sharded == shard(program, CLUSTER, MESH)


def test_a_mesh_is_cut_from_the_cluster_if_none_is_given() -> None:
    _, program = program_of("mlp", Sizes())
    assert shard(program, CLUSTER).mesh == {"node": 2, "device": 8}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"a": 2, "b": 2, "c": 2, "d": 2}, "one to three axes"),
        ({"a": 64}, "needs 64 devices"),
        ({"a": 0}, "at least 1"),
    ],
)
def test_bad_meshes_are_refused(mesh: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shard(program_of("mlp", Sizes())[1], CLUSTER, mesh)


def test_three_axes() -> None:
    _, program = program_of("mlp")
    three = shard(program, CLUSTER, {"node": 2, "outer": 2, "inner": 4})
    assert three.proven
    assert three.seconds <= shard(program, CLUSTER, {"node": 2, "inner": 8}).seconds * (1 + 1e-6)


@pytest.mark.parametrize(("sweeps", "states"), [(4, 1), (20, 4)])
def test_convolutions_on_three_axes_are_settled_however_long_messages_run(
    sweeps: int, states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages leave a gap of three percent here: hubs close it, however much frontiers may hold."""
    _, program = program_of("resnet", Sizes(1, 1024, batch=512, dtype="bfloat16"))
    setting = set_up(program, "dgx-h100:128", {"pod": 16, "data": 8, "model": 8})
    with clock.counted(60) as soon:
        first = solve_narrowed(setting.problem.network(math.inf), soon)
    monkeypatch.setattr(unlimited, "SWEEPS", sweeps)
    monkeypatch.setattr(unlimited, "PROVEN", unlimited.PROVEN // states)
    monkeypatch.setattr(unlimited, "solve_network", None)
    with clock.counted(60) as soon:
        answer = solve_narrowed(setting.problem.network(math.inf), soon)
    assert answer.cost == answer.lower_bound == first.cost
