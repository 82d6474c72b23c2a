"""Keep or run again: by brute force, by a walk through the program, and on what people know of it."""

import itertools
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.tracing.cleaning.passes import clean
from planner.tracing.program import Operation, Program, Value
from planner.tracing.solving import recomputing
from planner.tracing.solving.nodes import AgainOption, left_layout
from planner.tracing.solving.options import options
from planner.tracing.solving.recomputing import agains
from planner.tracing.solving.rows import Seen, seen_as
from planner.tracing.solving.setting import Setting, may_recompute, set_up
from planner.tracing.solving.shard import shard

CLUSTER, MESH = "dgx-h100:1", {"data": 2}
SIZE = 1 << 22


def loop(name: str, *inputs: str, kind: str = "loop") -> Operation:
    return Operation(
        name=name, kind=kind, primitive=f"make {name}", inputs=inputs, outputs=(name,), sizes=(SIZE,),
        reads=(((0,),),) * len(inputs), writes=(((0,),),),
    )  # fmt: skip


def there_and_back(layers: int) -> Program:
    """Each layer's output is read by the next one, and again on the way back, by the last layer's reader first."""
    forward = [loop("f0", "x", kind="accumulate")]
    forward += [loop(f"f{i}", f"f{i - 1}", kind="accumulate") for i in range(1, layers)]
    backward = [loop(f"b{layers - 1}", f"f{layers - 1}", kind="accumulate")]
    backward += [loop(f"b{i}", f"b{i + 1}", f"f{i}", kind="accumulate") for i in reversed(range(layers - 1))]
    return program_of("there and back", *forward, *backward)


def read_midway() -> Program:
    """What ``m`` reads long after ``a`` is made is wanted once more at the end, if ``b`` runs again for it."""
    reads = {"a": "x", "b": "a", "c": "b", "m": "c a", "d": "m", "y": "d b"}
    return program_of("midway", *(loop(n, *of.split(), kind="accumulate") for n, of in reads.items()))


def program_of(name: str, *operations: Operation) -> Program:
    """Operators that read ``x`` and one another; the last makes what is returned."""
    names = ("x", *(op.name for op in operations))
    return Program(
        name=name,
        values=tuple(
            Value(
                name=n, shape=(SIZE,), dtype="float32", role="input" if n == "x" else "intermediate", path=n
            )
            for n in names
        ),
        operations=operations,
        inputs=("x",),
        outputs=(names[-1],),
    )


@pytest.fixture(autouse=True)
def _soon_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputing, "NEAR", 1)
    monkeypatch.setattr(recomputing, "SPAN", 1)


@cache
def choices(program: Callable[..., Program], *layers: int) -> tuple[Setting, list]:
    setting = may_recompute(set_up(program(*layers), CLUSTER, MESH))
    priced = []
    for chosen in itertools.product(*setting.problem.options):
        try:
            priced.append((chosen, setting.estimate(chosen)))
        except ValueError:
            continue  # what is dropped is wanted, or what is kept lies otherwise
    return setting, priced


@settings(max_examples=15, deadline=None)
@given(st.floats(0.3, 1.1))
def test_brute_force_finds_nothing_better(room: float) -> None:
    _, priced = choices(there_and_back, 3)
    roomy = shard(there_and_back(3), CLUSTER, MESH)
    limit = room * roomy.memory_bytes
    fitting = [e.seconds for _, e in priced if e.memory_bytes <= limit]
    if not fitting:
        with pytest.raises(Infeasible):
            shard(there_and_back(3), CLUSTER, MESH, memory_limit=limit)
        return
    sharded = shard(there_and_back(3), CLUSTER, MESH, memory_limit=limit)
    assert sharded.seconds == pytest.approx(min(fitting), rel=1e-6)
    assert sharded.memory_bytes <= limit
    assert sharded.proven


@pytest.mark.parametrize("program", [(there_and_back, 3), (read_midway,)])
def test_memory_is_what_a_walk_through_the_program_finds(program: tuple) -> None:
    setting, priced = choices(*program)
    for chosen, estimate in priced[:: max(1, len(priced) // 300)]:
        assert walked_bytes(setting, chosen) <= estimate.memory_bytes * (1 + 1e-9)
    tight = min(priced, key=lambda p: p[1].memory_bytes)
    assert walked_bytes(setting, tight[0]) == pytest.approx(tight[1].memory_bytes)


def walked_bytes(setting: Setting, chosen: tuple) -> float:
    """Run the program, with second runs before their first reader; a value goes after its last reader."""
    nodes = setting.nodes
    size = setting.pricer.full_bytes("x")

    def held(option: object) -> float:
        layout = left_layout(option, 0)
        return 0.0 if layout is None else size / (2 if layout[0] >= 0 else 1)

    second = {
        nodes.operations[a.operation].name: (a, chosen[nodes.first_again + j])
        for j, a in enumerate(nodes.agains)
    }
    runs: list[tuple[str, float, list[str]]] = []
    for i, op in enumerate(nodes.operations):
        for name, (again, option) in second.items():
            if again.first == i and isinstance(option, AgainOption) and option.option:
                runs.append(
                    (
                        f"{name} again",
                        held(option),
                        [at(n, again.first, second) for n in nodes.operations[again.operation].inputs],
                    )
                )
        runs.append((op.name, held(chosen[1 + i]), [at(n, i, second) for n in op.inputs]))
    last = {name: k for k, (_, _, reads) in enumerate(runs) for name in reads}
    last |= dict.fromkeys(("x", *setting.program.outputs), len(runs))
    live, peak = {"x": held(chosen[0])}, 0.0
    for k, (name, bytes_, reads) in enumerate(runs):
        assert live.keys() >= set(reads), "read before it is made"
        live[name] = bytes_
        peak = max(peak, sum(live.values()))
        live = {n: b for n, b in live.items() if last.get(n, k) > k}
    return peak


def at(name: str, position: int, second: dict) -> str:
    """Which of its two runs a reader has a value from."""
    if name not in second:
        return name
    again, option = second[name]
    return f"{name} again" if option.option and position > again.values[0].last_early else name


def test_what_is_kept_is_cheapest_to_run_again_last() -> None:
    program = there_and_back(6)
    roomy = shard(program, CLUSTER, {"data": 1})
    tight = shard(program, CLUSTER, {"data": 1}, memory_limit=0.75 * roomy.memory_bytes)
    assert roomy.recomputed == ()
    assert {o.name for o in tight.recomputed} < {f"f{i}" for i in range(6)}
    assert tight.seconds > roomy.seconds
    with pytest.raises(Infeasible):
        shard(program, CLUSTER, {"data": 1}, memory_limit=0.75 * roomy.memory_bytes, recompute=False)


def test_only_what_is_wanted_late_may_run_again() -> None:
    found = agains(there_and_back(4))
    assert [a.operation for a in found] == [0, 1, 2]
    assert [(a.first, a.values[0].last_early, a.values[0].last_late) for a in found] == [
        (7, 1, 7),
        (5, 2, 6),
        (5, 3, 5),
    ]


def test_a_second_run_stands_before_late_readers_and_is_held_for_second_runs_after_them() -> None:
    a, b = agains(read_midway())
    assert [a.operation, a.first, a.values[0].last_own, a.values[0].last_late] == [0, 3, 3, 5]
    assert [b.operation, b.first, b.values[0].last_own, b.values[0].last_late] == [1, 5, 5, 5]


def in_scans(length: int, hands_on: bool = True) -> Program:
    """A loop of ``c sin(c)``, and the loop of its derivative, which reads ``c``, its sine and its cosine.

    Or of ``sin(sin(c))``, whose derivative reads two cosines, and not ``c``.
    """
    jax = pytest.importorskip("jax")
    sin = jax.numpy.sin

    def loss(x):
        state, _ = jax.lax.scan(
            lambda c, _: (c * sin(c) if hands_on else sin(sin(c)), None), x, None, length=length
        )
        return state.sum()

    from planner.tracing.reading.from_jax import from_jax

    return clean(from_jax(jax.grad(loss), jax.ShapeDtypeStruct((SIZE,), "float32")))


@pytest.mark.jax
def test_rows_that_a_backward_scan_reads_are_kept_or_made_anew() -> None:
    """Of sine and cosine, which are made from ``c``: both stacks go, or neither."""
    program = in_scans(8)
    (again,) = agains(program)
    body = program.operations[again.operation]
    assert [len(again.values), len(again.reads)] == [2, len(body.inputs)]
    roomy = shard(program, CLUSTER, {"data": 1})
    stack = 8 * SIZE * 4
    tight = shard(program, CLUSTER, {"data": 1}, memory_limit=roomy.memory_bytes - stack)
    assert [o.name for o in tight.recomputed] == [body.name]
    # Two stacks are gone; where the peak is, one row of each is there anew.
    assert roomy.memory_bytes - tight.memory_bytes == pytest.approx(2 * stack, abs=4 * SIZE * 4)
    pricer = set_up(program, CLUSTER, {"data": 1}).pricer
    whole = options(body, [program.value[n].shape for n in body.outputs], pricer.mesh)[-1]
    assert tight.seconds - roomy.seconds == pytest.approx(pricer.operation(body, whole).seconds)
    with pytest.raises(Infeasible):
        shard(program, CLUSTER, {"data": 1}, memory_limit=roomy.memory_bytes - 2.5 * stack)


@pytest.mark.jax
def test_a_state_that_nobody_asked_for_is_collected_to_make_rows_anew() -> None:
    """One stack, of ``c``, in the place of two of cosines."""
    program = in_scans(8, hands_on=False)
    run, state = agains(program)
    assert [v.rows for v in (*run.values, *state.values)] == [1, 1, 8]
    assert state.reads == ()
    roomy = shard(program, CLUSTER, {"data": 1})
    stack = 8 * SIZE * 4
    tight = shard(program, CLUSTER, {"data": 1}, memory_limit=roomy.memory_bytes - 0.5 * stack)
    assert roomy.collected == {}
    assert list(tight.collected) == [state.values[0].name]
    assert [o.name for o in tight.recomputed] == [program.operations[run.operation].name]
    assert roomy.memory_bytes - tight.memory_bytes == pytest.approx(stack, abs=4 * SIZE * 4)


@pytest.mark.jax
@pytest.mark.parametrize("hands_on", [True, False])
def test_brute_force_finds_nothing_better_in_scans(hands_on: bool) -> None:
    program = in_scans(4, hands_on)
    setting = may_recompute(set_up(program, CLUSTER, MESH))
    priced = []
    for chosen in itertools.product(*setting.problem.options):
        try:
            priced.append(setting.estimate(chosen))
        except ValueError:
            continue
    least, peak = min(e.memory_bytes for e in priced), shard(program, CLUSTER, MESH).memory_bytes
    for room in (0.0, 0.3, 0.8):
        limit = least + room * (peak - least)
        found = shard(program, CLUSTER, MESH, memory_limit=limit)
        assert found.seconds == pytest.approx(min(e.seconds for e in priced if e.memory_bytes <= limit))
        assert found.memory_bytes <= limit


def test_a_value_lies_in_its_rows_under_other_dims() -> None:
    """Columns of 4 heads of 8, beside 16 places; rows have heads first."""
    loops, sizes = (16, 4, 8), (2, 4)
    seen = seen_as(loops, ((0,), (1, 2)), ((1,), (0,), (2,)))
    assert seen == Seen((1, 0), (16, 4))
    assert seen.layout((0, 1), sizes) == (1, 0)
    assert seen.layout((-1, 0), sizes) == (-1, 1)
    assert seen.layout((1, 1), sizes) is None  # 8 devices, 4 heads
    inner = seen_as(loops, ((0,), (1,), (2,)), ((0,), (1, 2)))
    assert inner is not None
    assert inner.layout((2, -1), sizes) is None  # the minor part of what it is in rows
    assert seen_as(loops, ((0,), (1, 2)), ((0,), (1, 2))) is None
