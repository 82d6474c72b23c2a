"""Operators of an exported module whose derivative cannot be traced as they stand, put so that it can.

Of those that a library defines (``torch.library.custom_op``), ``torch.func`` refuses what ``register_autograd`` was
given, because it does not know it as a function with a context of its own: the same two functions are put into one.
``copy``, as ``torch.export`` writes what was copied in place, has none: it is a conversion and a broadcast.
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
        elif node.target is torch.ops.aten.copy.default:
            node.target = _copied
    exported.graph_module.recompile()
    return exported


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return source.to(target.dtype).expand(target.shape)


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
