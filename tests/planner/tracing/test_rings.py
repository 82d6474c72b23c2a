"""Attention in a ring: what it is priced at, and that it is real on simulated devices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cost_models.attention import AttentionShape
from cost_models.collectives import COLLECTIVES
from planner import Program, shard
from planner.report.sharding import sharding_report
from planner.sharding.context import EXCHANGES, Split
from planner.sharding.costs import Comm
from planner.tracing.layouts import WHOLE, NamedMesh
from planner.tracing.program import Operation, Value
from planner.tracing.reading.attention import Operands, attention
from planner.tracing.solving import nodes
from planner.tracing.solving.options import Option, Options, options
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.rings import from_both_ends, ring_of
from planner.verification.with_program import verify_program

CASES = Path(__file__).parent / "cases.py"
CLUSTER = load_cluster("dgx-h100:2")
BATCH, HEADS, KEY_HEADS, LENGTH, SIZE = 2, 8, 4, 4096, 128


def fused(backward: bool, causal: bool = False, mask: tuple[int, ...] | None = None) -> Program:
    """One attention kernel, as PyTorch has it."""
    query, key = (BATCH, HEADS, LENGTH, SIZE), (BATCH, KEY_HEADS, LENGTH, SIZE)
    rule = attention(Operands(query, key, key, mask), causal, backward, "bfloat16")
    given = ["q", "k", "v", *(["mask"] if mask else [])]
    inputs = (["dy", *given, "y", "sums"]) if backward else given
    outputs = ("dq", "dk", "dv") if backward else ("y", "sums")
    shapes = {"q": query, "dq": query, "y": query, "dy": query, "sums": query[:-1], "mask": mask or ()}
    op = Operation(
        name="attention", primitive="sdpa", inputs=tuple(inputs), outputs=outputs, **rule._asdict()
    )
    values = (
        Value(
            name=n,
            shape=shapes.get(n, key),
            dtype="bfloat16",
            role="input" if n in inputs else "intermediate",
        )
        for n in (*inputs, *outputs)
    )
    return Program(
        name="attention", values=tuple(values), operations=(op,), inputs=tuple(inputs), outputs=outputs
    )


def all_options(program: Program, mesh: NamedMesh) -> tuple[Operation, Options]:
    op = program.operations[0]
    return op, options(op, [program.value[n].shape for n in op.outputs], mesh)


def in_a_ring(program: Program, mesh: NamedMesh) -> tuple[Operation, Option]:
    """The option that splits keys, and queries with them, over the whole mesh."""
    op, found = all_options(program, mesh)
    ring = ring_of(op)
    assert ring is not None
    return op, next(o for o in found if set(o.split) == {ring.keys})


@pytest.mark.parametrize("size", [2, 8, 16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_fused_ring_costs_what_plans_have_it_cost(size: int, backward: bool, causal: bool) -> None:
    """The witness is context parallelism of `plan`, which prices both directions of a whole model's attention."""
    program, mesh = fused(backward, causal), NamedMesh(CLUSTER, {"ring": size})
    op, option = in_a_ring(program, mesh)
    cost = ProgramPricer(program, mesh).operation(op, option)

    def comm(collective: str, full_bytes: float) -> Comm:
        found = COLLECTIVES[collective](full_bytes, mesh.group([0]))
        return Comm(collective, ("ring",), found.seconds, 0.0)

    split = Split(
        device=CLUSTER.device, dtype="bf16", comm=comm, kernel="flash", degree=size,
        keeps_gathered=False, scatters="both",
        shape=AttentionShape(BATCH / size, HEADS, LENGTH, LENGTH, SIZE, SIZE, KEY_HEADS, causal=causal),
        query_bytes=0.0, kv_bytes=2 * BATCH * KEY_HEADS * LENGTH * SIZE * 2 / size,
    )  # fmt: skip
    whole = EXCHANGES["ring"](split)
    exposed = sum(c.seconds for c in (whole.comm_backward if backward else whole.comm_forward))
    assert cost.compute == pytest.approx(whole.backward_input if backward else whole.forward)
    assert cost.seconds - cost.compute == pytest.approx(exposed)
    sent = sum(e.sent_bytes * e.times for e in cost.exchanges)
    assert sent == pytest.approx((size - 1 + (size if backward else 0)) * split.kv_bytes)


def test_a_causal_mask_is_dealt_out_from_both_ends() -> None:
    """Work on half of all pairs, evenly; in order, the last device would have all keys, as without the mask."""
    mesh = NamedMesh(CLUSTER, {"ring": 8})
    causal, free = (
        ProgramPricer(p, mesh).operation(*in_a_ring(p, mesh)).compute
        for p in (fused(False, causal=True), fused(False))
    )
    # Kernels on half the keys take more than half, and results are merged as often.
    assert 0.5 < causal / free < 0.8
    how = fused(False, causal=True).operations[0].attention
    assert how is not None
    assert from_both_ends(how, 512)
    assert not from_both_ends(how, 511)
    assert not from_both_ends(how.model_copy(update={"causal": False}), 512)
    assert not from_both_ends(how.model_copy(update={"kernel": "plain"}), 512)


def test_a_price_is_the_same_one_by_one_and_together() -> None:
    mesh = NamedMesh(CLUSTER, {"a": 2, "b": 4})
    for backward in (False, True):
        op, found = all_options(fused(backward, mask=(BATCH, 1, LENGTH, LENGTH)), mesh)
        pricer = ProgramPricer(fused(backward, mask=(BATCH, 1, LENGTH, LENGTH)), mesh)
        (together,) = pricer.seconds([(op, found)])
        assert list(together) == pytest.approx([pricer.operation(op, o).seconds for o in found])


def test_keys_and_values_lie_in_parts_and_masks_along_queries() -> None:
    mesh = NamedMesh(CLUSTER, {"ring": 4})
    _, option = in_a_ring(fused(True, mask=(BATCH, 1, LENGTH, LENGTH)), mesh)
    assert option.reads == ((2,),) * 7  # gradient, q, k, v, mask, result, sums: each along its positions
    assert option.writes == ((2,),) * 3
    _, option = in_a_ring(fused(False, mask=(BATCH, 1, 1, LENGTH)), mesh)
    assert option.reads == ((2,), (2,), (2,), (WHOLE,))  # a mask over keys alone does not go round


def test_what_does_not_divide_is_not_in_a_ring() -> None:
    """16 devices and 8 positions: no option splits keys."""
    rule = attention(Operands((1, 1, 8, 4), (1, 1, 32, 4), (1, 1, 32, 4), None), False, False, "bfloat16")
    op = Operation(name="a", primitive="sdpa", inputs=("q", "k", "v"), outputs=("y", "s"), **rule._asdict())
    found = options(op, [(1, 1, 8, 4), (1, 1, 8)], NamedMesh(CLUSTER, {"a": 16}))
    assert [o.split for o in found] == [(WHOLE,)]


def only(kinds: str, of: Callable[..., Options]) -> Callable[..., Options]:
    """Attentions split so: per axis ``k`` keys in a ring, ``r`` rows with all keys, ``b`` batch or heads."""

    def chosen(op: Operation, *given: Any) -> Options:
        found, ring = of(op, *given), ring_of(op)
        if ring is None:
            return found
        letters = {ring.keys: "k", ring.rows: "r", WHOLE: "w"}
        rows = [i for i, o in enumerate(found) if "".join(letters.get(f, "b") for f in o.split) == kinds]
        reads, writes = (tuple(x[rows] for x in arrays) for arrays in (found.reads, found.writes))
        return Options(found.split[rows], reads, writes)

    return chosen


def test_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "options", only("k", options))
    plan = shard(fused(False), CLUSTER, {"model": 8})
    assert [o.ring for o in plan.operators] == [("model",)]
    assert plan.operators[0].dealt == "in order"
    told = "in a ring    keys and values of attention, around model, positions dealt out in order"
    assert told in sharding_report(plan)
    plan = shard(fused(False, causal=True), CLUSTER, {"model": 8})
    assert plan.operators[0].dealt == "from both ends"


@pytest.mark.jax
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kinds", ["bk", "kk", "rk"])
def test_a_ring_computes_what_one_device_does(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads beside the ring, both axes in it, and queries beside it that have all keys of their part of the ring."""
    pytest.importorskip("jax")
    from planner.verification.programs.trace import trace

    monkeypatch.setattr(nodes, "options", only(kinds, options))
    program = trace({"function": f"{CASES}:ring", "replicate_unknown": False, "trips": None})
    plan = shard(program, "dgx-h100:1", {"data": 2, "model": 4})
    axes = tuple(axis for axis, kind in zip(plan.mesh, kinds, strict=True) if kind == "k")
    assert [o.ring for o in plan.operators if "attention" in o.name and o.split] == [axes] * 2
    answer = verify_program(plan)
    assert answer.passed, answer.failures()
    ours, theirs = next((c.predicted, c.found) for c in answer.comparisons if c.name == "exchanged by send")
    # The backward pass follows at once, and XLA computes its scores, and their ring, no second time.
    assert theirs == ours * 6 / 7
