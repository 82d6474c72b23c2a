"""Programs that fix layouts themselves, in a ``shard_map``: planned around it, priced, and run as they are written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import manual_cases  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from planner import Program, from_jax, shard  # noqa: E402
from planner.errors import InputError, Unsupported  # noqa: E402
from planner.tracing.applying.jax_apply import apply_shardings  # noqa: E402
from planner.tracing.sharded import ShardedProgram  # noqa: E402
from planner.verification.with_program import verify_program  # noqa: E402

pytestmark = pytest.mark.jax
MESH = {"data": 2, "model": 4}
FILE = Path(__file__).parent / "manual_cases.py"


def sharded(name: str) -> ShardedProgram:
    program = from_jax(*getattr(manual_cases, name)(), name=name)
    assert Program.model_validate_json(program.to_json()) == program
    return shard(program, "dgx-h100:1", MESH)


def exchanged(answer: ShardedProgram) -> list[tuple[str, tuple[str, ...], float, int]]:
    """What is exchanged inside, in order of the program."""
    inside = [c for c in answer.collectives if "shard_map" in c.operator]
    return sorted((c.collective, c.axes, c.full_bytes, c.times) for c in inside)


def test_inputs_lie_as_the_specs_say() -> None:
    answer = sharded("tensor_parallel")
    assert answer.partition_specs() == {
        "p.up": (None, "model"),
        "p.down": ("model", None),
        "x": ("data", None),
    }
    data, model = ("data",), ("model",)
    weight = 256 * 512 * 4 / 4
    assert exchanged(answer) == [
        ("all_reduce", data, weight, 1),
        ("all_reduce", data, weight, 1),
        ("all_reduce", model, 128 * 256 * 4 / 2, 1),
    ]


def test_every_collective_is_priced_as_it_is_written() -> None:
    """Bytes of the array that a group of devices has together [B]: of the tokens, each half has 32 rows."""
    found = exchanged(sharded("every_collective"))
    half = 32 * 64 * 4
    assert [c for c in found if c[2] > 4] == [
        ("all_gather", ("model",), 32 * 128 * 4, 1),
        ("all_reduce", ("data",), half / 4, 1),
        ("all_to_all", ("model",), half / 4, 1),
        ("reduce_scatter", ("model",), half, 1),
        ("send", ("model",), half / 4, 1),
    ]


def test_groups_of_devices_that_are_rows_or_columns_of_the_mesh_are_its_axes() -> None:
    """Bytes of the array that a group has together [B]."""
    data, model, tokens = ("data",), ("model",), 8 * 64 * 4
    assert [c for c in exchanged(sharded("groups_along_axes")) if c[2] > 4] == [
        ("all_gather", data, 4 * 16 * 4, 1),
        ("all_reduce", data, tokens, 1),
        ("all_reduce", model, 4 * tokens, 1),
        ("reduce_scatter", model, 4 * tokens, 1),
    ]


def test_rings_in_loops_hop_as_often_as_these_run() -> None:
    block = 8 * 64 * 64 * 4 / 8
    sends = [c for c in exchanged(sharded("ring_attention")) if c[0] == "send"]
    assert sends == [("send", ("model",), block, 4)] * 4


NAMES = (
    "tensor_parallel",
    "unchecked",
    "every_collective",
    "groups_along_axes",
    "ring_attention",
    "expert_parallel",
    "nested",
)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", NAMES)
def test_they_run_and_exchange_what_is_priced(name: str) -> None:
    answer = verify_program(sharded(name), f"{FILE}:{name}")
    assert all(check.passed for check in answer.checks)
    assert not answer.operators


@pytest.mark.usefixtures("warm")
def test_one_in_another_has_the_axes_of_both() -> None:
    """As if one of both axes had been written; what the outer one sums is whole in its plan, where XLA may split it."""
    activations, weight = 128 * 256 * 4 / 2, 256 * 512 * 4
    inside = [("all_reduce", ("model",), activations, 1)]
    assert [c for c in exchanged(sharded("nested")) if c[2] > 2048] == inside
    answer = sharded("nested_backward")
    sums = [("all_reduce", ("data",), weight, 1)] * 2 + inside * 2
    assert [c for c in exchanged(answer) if c[0] == "all_reduce" and c[2] > 2048] == sums
    verified = verify_program(answer, f"{FILE}:nested_backward")
    assert all(check.passed for check in verified.checks)
    assert [o.compiled["sum"] for o in verified.operators] == [weight / 4] * 2


def test_what_jax_cannot_compile_is_refused() -> None:
    with pytest.raises(Unsupported, match="pass check_vma=False to both, or name all axes in one"):
        from_jax(*manual_cases.nested_derivative_of_checked())


def test_another_mesh_is_refused() -> None:
    program = from_jax(*manual_cases.tensor_parallel())
    with pytest.raises(
        InputError, match=r"a shard_map over an axis data of 2 devices; the mesh is .*'data': 4"
    ):
        shard(program, "dgx-h100:1", {"data": 4, "model": 2})
    with pytest.raises(InputError, match="a shard_map over an axis model of 4 devices"):
        shard(program, "dgx-h100:1", {"data": 2, "tensor": 4})


def test_a_mesh_with_more_axes_is_planned_but_does_not_run() -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("model",))
    manual = jax.shard_map(lambda x: jax.lax.psum(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P())
    arguments = manual_cases.f(4), manual_cases.f(8, 4)

    def loss(w: Any, x: Any) -> Any:
        return (manual(x) * w).sum()

    answer = shard(from_jax(loss, *arguments), "dgx-h100:1", MESH)
    assert answer.inputs["x"] == (("model",), ())
    devices = jax.sharding.Mesh(np.array([jax.devices()[0]] * 8).reshape(2, 4), tuple(MESH))
    with pytest.raises(InputError, match=r"is a shard_map on the mesh {'model': 4}, and runs on no other"):
        jax.jit(apply_shardings(loss, answer, devices, arguments)).lower(*arguments)


@pytest.mark.usefixtures("warm")
def test_fewer_devices_cannot_run_it() -> None:
    with pytest.raises(InputError, match="fixes the devices of its shard_map: it runs on all 8"):
        verify_program(sharded("tensor_parallel"), f"{FILE}:tensor_parallel", devices=4)


def test_groups_within_an_axis_are_refused() -> None:
    groups = [[0, 1], [2, 3]]

    def body(x: Any) -> Any:
        return jax.lax.psum(x, "model", axis_index_groups=groups)

    manual = jax.shard_map(
        body, mesh=manual_cases.MESH, in_specs=P("model"), out_specs=P("model"), check_vma=False
    )
    with pytest.raises(Unsupported, match=r"axis_index_groups.*give the shard_map a mesh in which"):
        from_jax(lambda w, x: manual(x).sum(), manual_cases.f(4), manual_cases.f(8))
