"""Operators of an exported module whose derivative cannot be traced as they stand, put so that it can.

Of those that a library defines (``torch.library.custom_op``), ``torch.func`` refuses what ``register_autograd`` was
given, because it does not know it as a function with a context of its own: the same two functions are put into one.
``copy``, as ``torch.export`` writes what was copied in place, has none: it is a conversion and a broadcast. Nor has
``slice_scatter``, as it writes what was assigned to a slice, of complex numbers: that is a concatenation.
Others are made of operators that there are rules for: sums of products (``addbmm``), a distance.
"""

from typing import Any

import torch
from torch._library.custom_ops import OPDEFS


def with_derivatives(exported: Any) -> Any:
    """An exported module in which such operators are called in a way that has a derivative."""
    graph = exported.graph_module.graph
    for node in graph.nodes:
        name = str(getattr(node.target, "_schema", "")).partition("(")[0].partition(".")[0]
        definition = OPDEFS.get(name) if node.op == "call_function" else None
        if definition is not None and definition._backward_fn is not None:
            node.target = _differentiable(definition)
        else:
            node.target = INSTEAD.get(node.target, node.target)
    exported.graph_module.recompile()
    return exported


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return source.to(target.dtype).expand(target.shape)


def _written(
    target: torch.Tensor,
    source: torch.Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> torch.Tensor:
    if not target.is_complex() or step > 1:
        return torch.slice_scatter(target, source, dim, start, end, step)
    size = target.shape[dim]
    first, last, _ = slice(start, end).indices(size)
    return torch.cat([target.narrow(dim, 0, first), source, target.narrow(dim, last, size - last)], dim)


def _added(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    rows, columns = left.transpose(0, 1).flatten(1), right.flatten(0, 1)
    return torch.addmm(bias, rows, columns, beta=beta, alpha=alpha)


def _distance(left: torch.Tensor, right: torch.Tensor, order: float = 2) -> torch.Tensor:
    return torch.linalg.vector_norm(left - right, order)


INSTEAD = {
    torch.ops.aten.addbmm.default: _added,
    torch.ops.aten.copy.default: _copied,
    torch.ops.aten.dist.default: _distance,
    torch.ops.aten.slice_scatter.default: _written,
}
"""What is called instead of an operator."""


def _differentiable(definition: Any) -> Any:
    class Operator(torch.autograd.Function):  # type: ignore[misc]
        """The operator and its derivative."""

        @staticmethod
        def forward(*given: Any) -> Any:
            with torch.no_grad():
                return definition._opoverload(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            if definition._setup_context_fn is not None:
                definition._setup_context_fn(ctx=ctx, inputs=inputs, output=output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            with torch.no_grad():
                return definition._backward_fn(ctx, *gradients)

    def call(*given: Any) -> Any:
        return Operator.apply(*given)

    return call
