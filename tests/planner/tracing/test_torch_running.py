"""Modules that take gradients in their forward pass: gradients of these beside those of autograd."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch_layers import Module, compared  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.reading.torch_lifted import traced_running  # noqa: E402
from planner.tracing.reading.torch_running import NOTE  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def forces(m: Any, x: Any) -> Any:
    """As a potential has them: a gradient that has a gradient."""
    places = x.clone().requires_grad_()
    energy = m.second(m.first(places).tanh().sum(0))
    return torch.autograd.grad(energy.sum(), places, create_graph=True)[0] + energy


def steps(m: Any, x: Any) -> Any:
    """Down a gradient that has none."""
    for _ in range(2):
        x = x.detach().requires_grad_()
        x = x - torch.autograd.grad(m.first(x).tanh().sum(), x)[0]
    return m.second(x.detach())


def inner_step(m: Any, x: Any) -> Any:
    """As meta-learning has it, weights and all."""
    weights = dict(m.first.named_parameters())

    def loss(weights: Any) -> Any:
        return torch.func.functional_call(m.first, weights, x).square().mean()

    found = torch.func.grad(loss)(weights)
    return m.second(torch.func.functional_call(m.first, {n: weights[n] - found[n] for n in weights}, x))


def by_row(m: Any, x: Any) -> Any:
    each = torch.func.vmap(torch.func.grad(lambda row: m.second(m.first(row).tanh()).sum()))
    return each(x)


def curvature(m: Any, x: Any) -> Any:
    """As equations have it."""
    return torch.func.vmap(torch.func.hessian(lambda row: m.second(m.first(row).tanh()).sum()))(x)


def attended(m: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    rows = m.first(x).unsqueeze(0)
    with sdpa_kernel(SDPBackend.MATH):
        made = F.scaled_dot_product_attention(rows, rows, m.second(x).unsqueeze(0))
    return torch.autograd.grad(made.square().sum(), x, create_graph=True)[0]


TAKEN: dict[str, Callable[..., Any]] = {
    "forces": forces,
    "steps": steps,
    "inner step": inner_step,
    "by row": by_row,
    "curvature": curvature,
    "attention": attended,
}


@pytest.mark.parametrize("name", TAKEN)
def test_gradients_that_a_module_takes_have_gradients(name: str) -> None:
    torch.manual_seed(0)
    module, x = Module(TAKEN[name]), torch.randn(4, 8)
    compared(module, x, traced_running(module, (x,), gradient=True))
    assert NOTE in from_torch(module, x).applied


def backward_inside(m: Any, x: Any) -> Any:
    m.first(x).sum().backward()
    return m.second(x) - m.first.weight.grad


def narrow_penalty(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return by_row(m, x)


REFUSED: dict[str, Callable[..., Any]] = {
    r"the module calls backward\(\) in its forward pass": backward_inside,
    "takes gradients within torch.autocast": narrow_penalty,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_read_as_it_runs_is_refused(said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_torch(Module(REFUSED[said]), torch.zeros(4, 8), gradient=True)
