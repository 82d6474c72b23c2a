"""Multiplications of convolutions and of their gradients: as many as PyTorch counts, from either framework.

Of the gradient of a grouped filter PyTorch counts a dense one: a forward pass is what each of the three does.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import AbstractMesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner.operators import forward_flops  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402
from planner.tracing.program import Operation, Program  # noqa: E402
from planner.tracing.reading.from_jax import from_jax  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.solving.multiplying import loops_of_products  # noqa: E402
from planner.tracing.solving.options import splittable  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.jax, pytest.mark.filterwarnings("ignore")]
BATCH, CHANNELS, OUT = 8, 16, 32


class Case(NamedTuple):
    size: int
    width: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    dims: int = 2

    @property
    def module(self) -> Any:
        kind = getattr(torch.nn, f"Conv{'Transpose' * self.transposed}{self.dims}d")
        how = {"dilation": self.dilation, "groups": self.groups, "bias": False}
        return kind(CHANNELS, OUT, self.width, self.stride, self.padding, **how)

    @property
    def image(self) -> tuple[int, ...]:
        return (BATCH, CHANNELS, *[self.size] * self.dims)

    @property
    def filter(self) -> tuple[int, ...]:
        return (OUT, CHANNELS // self.groups, *[self.width] * self.dims)

    def in_jax(self, x: Any, w: Any) -> Any:
        """PyTorch's transposed convolution is one of an image with zeros in between."""
        stride, padding = (self.stride,) * self.dims, self.padding
        if self.transposed:
            padding = self.dilation * (self.width - 1) - padding
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1,) * self.dims if self.transposed else stride,
            [(padding, padding)] * self.dims,
            lhs_dilation=stride if self.transposed else None,
            rhs_dilation=(self.dilation,) * self.dims,
            feature_group_count=self.groups,
        )


CASES = {
    "plain": Case(32, 3, 1, 1),
    "unpadded": Case(32, 3),
    "a point": Case(32, 1, 2),
    "every second": Case(32, 3, 2, 1),
    "every fourth": Case(32, 7, 4, 3),
    "patches": Case(32, 4, 4),
    "whole": Case(7, 7),
    "dilated": Case(32, 3, dilation=2),
    "line": Case(64, 5, 2, 2, dims=1),
    "volume": Case(16, 3, 2, 1, dims=3),
    "grouped": Case(32, 3, 2, 1, groups=16),
    "transposed": Case(16, 4, 2, 1, transposed=True),
    "transposed, plain": Case(16, 3, 1, 1, transposed=True),
    "transposed, of a point": Case(1, 4, transposed=True),
    "transposed, grouped": Case(16, 4, 2, 1, groups=4, transposed=True),
}


class Loss(torch.nn.Module):  # type: ignore[misc]
    """Its image depends on parameters, so that it has a gradient."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.image, self.inner = torch.nn.Parameter(torch.empty(case.image)), case.module

    def forward(self, factor: Any) -> Any:
        return (self.inner(self.image * factor) ** 2).mean()


def counted(case: Case) -> int:
    """Multiplications in a forward pass, as PyTorch counts."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        case.module(torch.empty(case.image))
    return int(counter.get_total_flops()) // 2


def in_torch(case: Case) -> Program:
    with torch.device("meta"):
        return from_torch(Loss(case), torch.empty(()), gradient=True)


def in_jax(case: Case) -> Program:
    loss = jax.value_and_grad(lambda x, w: (case.in_jax(x, w) ** 2).mean(), (0, 1))
    return from_jax(loss, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in (case.image, case.filter)))


def products(program: Program) -> list[Operation]:
    return [op for op in clean(program).operations if op.kind == "product"]


def multiplications(op: Operation, split: int = -1, devices: int = 1) -> int:
    """On one of so many devices, with one factor split over them."""
    (loops,) = loops_of_products([(op, np.array([[split]]))], (devices,))
    return int(loops.sizes.prod())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("read", [in_torch, in_jax])
def test_gradients_multiply_as_often_as_the_forward_pass(name: str, read: Any) -> None:
    case = CASES[name]
    assert [multiplications(op) for op in products(read(case))] == [counted(case)] * 3


def test_pytorch_counts_the_same_in_the_backward_pass() -> None:
    case = CASES["every second"]
    with torch.device("meta"):
        loss = Loss(case)(torch.ones(()))
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() == 2 * 2 * counted(case)


@pytest.mark.parametrize("read", [in_torch, in_jax])
def test_devices_share_the_multiplications_of_a_strided_convolution(read: Any) -> None:
    for op in products(read(CASES["every second"])):
        assert all(multiplications(op, f, 2) * 2 == multiplications(op) for f in splittable(op))


def test_channels_of_a_grouped_transposed_convolution_are_split_by_group() -> None:
    op = products(in_torch(CASES["transposed, grouped"]))[0]
    assert {op.sizes[f] for f in splittable(op)} == {4, BATCH, OUT // 4}


def test_a_program_in_a_file_multiplies_as_often() -> None:
    program = in_torch(CASES["every second"])
    assert Program.model_validate_json(program.to_json()) == program


def test_each_device_multiplies_its_part() -> None:
    case = CASES["every second"]
    part = jax.shard_map(
        case.in_jax, mesh=AbstractMesh((2,), ("data",)), in_specs=(P("data"), P()), out_specs=P("data")
    )
    loss = jax.value_and_grad(lambda x, w: (part(x, w) ** 2).mean(), (0, 1))
    shapes = (jax.ShapeDtypeStruct(s, jnp.float32) for s in (case.image, case.filter))
    assert [multiplications(op) for op in products(from_jax(loss, *shapes))] == [counted(case)] * 3


def test_a_loop_over_time_counts_each_window_once() -> None:
    """A strided convolution of each frame."""
    case, steps, state = Case(16, 3, 2, 1), 6, (BATCH, OUT, 8, 8)

    def loss(w: Any, frames: Any, y: Any) -> Any:
        def step(before: Any, frame: Any) -> Any:
            return jnp.tanh(before + case.in_jax(frame, w)), None

        last, _ = jax.lax.scan(step, jnp.zeros(state), frames.swapaxes(0, 1))
        return ((last - y) ** 2).mean()

    shapes = (case.filter, (BATCH, steps, *case.image[1:]), state)
    program = from_jax(loss, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    assert BATCH * forward_flops(graph_of(program), 1) == 2 * steps * counted(case)
