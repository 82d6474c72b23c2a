"""A module of two layers, and its traced gradients beside those of autograd."""

from collections.abc import Callable
from typing import Any

import torch


class Module(torch.nn.Module):
    """``function`` of two layers and the input; ``shift`` is no parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False)
        self.register_buffer("shift", torch.zeros(8))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self, x).square().mean()


def compared(module: Any, x: Any, found: Any, **how: float) -> None:
    """The traced graph's gradients and loss beside those of autograd."""
    weights = dict(module.named_parameters())
    given = [{**weights, "shift": module.shift, "x": x}[n].detach().clone() for n, _ in found.roles]
    for node in found.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", x.device)
    *gradients, loss = torch.fx.Interpreter(found.graph.owning_module).run(*given)
    want = module(x)
    want.backward()
    torch.testing.assert_close(loss, want.detach(), **how)
    assert len(gradients) == len(weights)
    for (path, role), gradient in zip(found.roles, gradients, strict=False):
        assert (role == "frozen") == (gradient is None) == (weights[path].grad is None)
        torch.testing.assert_close(gradient, weights[path].grad, **how)
