"""What autocast casts in a traced module, beside what PyTorch casts on a GPU."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._C import (  # noqa: E402
    _dispatch_get_all_op_names,
    _dispatch_has_kernel_for_dispatch_key,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.tracing.program import Program  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.reading.torch_autocast import CASTS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ROWS, WIDTH = 6, 8

Function = Callable[[Any, Any, Any], Any]

FUNCTIONS: dict[str, Function] = {
    "product": lambda net, x, y: net.layer(x),
    "matmul": lambda net, x, y: x @ x.T,
    "einsum": lambda net, x, y: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda net, x, y: F.scaled_dot_product_attention(*[x.unsqueeze(0)] * 3),
    "prelu": lambda net, x, y: F.prelu(x, x.mean().reshape(1)),
    "relu": lambda net, x, y: net.layer(x).relu(),
    "gelu": lambda net, x, y: F.gelu(net.layer(x)),
    "mean": lambda net, x, y: net.layer(x).mean(),
    "residual": lambda net, x, y: net.layer(x) + x,
    "concatenated": lambda net, x, y: torch.cat([net.layer(x), x]),
    "layer norm": lambda net, x, y: net.norm(net.layer(x)),
    "rms norm": lambda net, x, y: F.rms_norm(net.layer(x), (WIDTH,)),
    "group norm": lambda net, x, y: F.group_norm(net.layer(x), 2),
    "square": lambda net, x, y: net.layer(x).square(),
    "power": lambda net, x, y: net.layer(x) ** 3,
    "exponential": lambda net, x, y: net.layer(x).exp(),
    "inverse root": lambda net, x, y: net.layer(x).abs().rsqrt(),
    "inverse": lambda net, x, y: 1 / net.layer(x),
    "log of sums": lambda net, x, y: net.layer(x).logsumexp(-1),
    "norm": lambda net, x, y: net.layer(x).norm(),
    "vector norm": lambda net, x, y: torch.linalg.norm(net.layer(x), dim=-1),
    "softmax": lambda net, x, y: net.layer(x).softmax(-1),
    "softmax of a type": lambda net, x, y: net.layer(x).softmax(-1, torch.bfloat16),
    "log of softmax": lambda net, x, y: F.log_softmax(net.layer(x), -1),
    "sum": lambda net, x, y: net.layer(x).sum(-1),
    "running sum": lambda net, x, y: net.layer(x).cumsum(-1),
    "product of all": lambda net, x, y: net.layer(x).prod(),
    "cross-entropy": lambda net, x, y: F.cross_entropy(net.layer(x), y),
    "square error": lambda net, x, y: F.mse_loss(net.layer(x), x),
    "smooth error": lambda net, x, y: F.smooth_l1_loss(net.layer(x), net.layer(x)),
    "odds": lambda net, x, y: F.binary_cross_entropy_with_logits(net.layer(x), x),
    "likeness": lambda net, x, y: F.cosine_similarity(net.layer(x), net.layer(x)),
    "distance": lambda net, x, y: F.pairwise_distance(net.layer(x), net.layer(x)),
    "weighted": lambda net, x, y: torch.addcmul(x, net.layer(x), net.layer(x)),
    "added where": lambda net, x, y: torch.scatter_add(x, 0, y.unsqueeze(1).expand(-1, WIDTH), net.layer(x)),
    "looked up": lambda net, x, y: net.words(y),
    "widened by hand": lambda net, x, y: net.layer(x).float(),
    "of another's type": lambda net, x, y: net.layer(x).type_as(x),
    "whole numbers": lambda net, x, y: y * 2,
    "resized": lambda net, x, y: F.interpolate(net.layer(x).unsqueeze(0), scale_factor=2),
    "resized smoothly": lambda net, x, y: F.interpolate(
        net.layer(x).reshape(1, 1, ROWS, WIDTH), scale_factor=2, mode="bilinear"
    ),
    "convolved": lambda net, x, y: F.conv1d(x.unsqueeze(0), x.T.unsqueeze(2)),
    "convolved and padded": lambda net, x, y: F.conv1d(x.unsqueeze(0), x.T.unsqueeze(2), padding="same"),
}


class Net(torch.nn.Module):  # type: ignore[misc]
    """A function of some layers under autocast."""

    def __init__(self, function: Function, dtype: Any = torch.bfloat16, device: str = "cuda") -> None:
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.words = torch.nn.Embedding(ROWS, WIDTH)
        self.function, self.dtype, self.device = function, dtype, device

    def forward(self, x: Any, y: Any) -> Any:
        with torch.autocast(self.device, dtype=self.dtype):
            return self.function(self, x, y)


def on_gpu() -> tuple[Any, Any, Any]:
    """Layers and inputs on a GPU that need not be there, without gradients."""
    many = partial(torch.empty, device="cuda")
    square, row, table = many(WIDTH, WIDTH), many(WIDTH), many(ROWS, WIDTH)
    net = SimpleNamespace(
        layer=lambda x: F.linear(x, square, row),
        norm=lambda x: F.layer_norm(x, (WIDTH,), row, row),
        words=lambda y: F.embedding(y, table),
    )
    return net, many(ROWS, WIDTH), torch.empty(ROWS, dtype=torch.int64, device="cuda")


def read(net: Any, **how: Any) -> Program:
    with torch.device("meta"):
        return from_torch(net, torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64), **how)


def types(program: Program, *primitives: str) -> set[str]:
    """Of what operators make."""
    values = {v.name: v.dtype for v in program.values}
    return {values[n] for op in program.operations if op.primitive in primitives for n in op.outputs}


def results(program: Program) -> list[str]:
    values = {v.name: v.dtype for v in program.values}
    return [values[n] for n in program.outputs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_the_type_that_they_have_on_a_gpu(name: str, dtype: Any) -> None:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = on_gpu()
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            theirs = FUNCTIONS[name](*given)
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
    with torch.device("meta"):
        ours = read(Net(FUNCTIONS[name], dtype))
    assert results(ours) == [str(theirs.dtype).removeprefix("torch.")]


def test_every_operator_that_autocast_knows_has_a_rule() -> None:
    """But those that it refuses, and that a module has no call of."""
    known = {
        n for n in _dispatch_get_all_op_names() if _dispatch_has_kernel_for_dispatch_key(n, "AutocastCUDA")
    }
    names = {n.removeprefix("aten::").partition(".")[0] for n in known}
    assert names - {*CASTS} == {"binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"}


def test_gradients_of_weights_are_as_wide_as_these() -> None:
    with torch.device("meta"):
        net = Net(lambda net, x, y: F.cross_entropy(net.layer(x), y))
    program = read(net, gradient=True)
    assert set(results(program)) == {"float32"}
    assert types(program, "mm") == {"bfloat16"}
    assert types(program, "_log_softmax", "_log_softmax_backward_data") == {"float32"}


def test_regions_within_regions_say_what_holds() -> None:
    def function(net: Any, x: Any, y: Any) -> Any:
        with torch.autocast("cuda", enabled=False):
            wide = net.layer(x)
        with torch.autocast("cuda", dtype=torch.float16), torch.no_grad():
            half = net.layer(x)
        return wide, half, net.layer(x)

    with torch.device("meta"):
        program = read(Net(function))
    assert results(program) == ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_modules_on_the_cpu_are_read_alike(device: str) -> None:
    net = Net(lambda net, x, y: net.layer(x).softmax(-1), device=device)
    program = from_torch(net, torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64))
    assert types(program, "mm") == {"bfloat16"}
    assert results(program) == ["float32"]


def test_a_region_around_the_reading_is_refused() -> None:
    net = Net(lambda net, x, y: net.layer(x))
    with torch.autocast("cpu"), pytest.raises(InputError, match="put the region into the module's forward"):
        from_torch(net, torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64))


def test_recurrent_layers_multiply_narrow_rows() -> None:
    with torch.device("meta"):
        net = Net(lambda net, x, y: net.steps(x)[0].sum())
        net.steps = torch.nn.LSTM(WIDTH, WIDTH)
    assert types(read(net, gradient=True), "mm") == {"bfloat16"}
