"""``scaled_dot_product_attention`` as one operator of a traced module, forward and backward.

PyTorch runs it as a fused kernel: scores stay inside, and what the backward pass gets is the result and one number
per query. Only shapes matter here; what runs is in `planner.tracing.applying.dtensor.pieces`.

Source: pytorch/pytorch ``aten/src/ATen/native/native_functions.yaml``, ``_scaled_dot_product_flash_attention``.
"""

from typing import Any

import torch
from torch import Tensor

from planner.tracing.reading.torch_stops import DETACH

torch.library.define(
    "meshwright::attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal, float? scale)"
    " -> (Tensor, Tensor)",
)
torch.library.define(
    "meshwright::attention_backward",
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor result, Tensor sums, float dropout,"
    " bool causal, float? scale, bool biased) -> Tensor[]",
)


def _result(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *how: Any
) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of the sum of each query's exponentials."""
    arrays = (query, key, value)
    batch = torch.broadcast_shapes(*(x.shape[:-3] for x in arrays))
    heads = max(x.shape[-3:-2] for x in arrays)  # none of matrices
    shape = (*batch, *heads, query.shape[-2])
    return query.new_empty((*shape, value.shape[-1])), query.new_empty(shape, dtype=torch.float32)


def _gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *rest: Any
) -> list[Tensor]:
    """Of queries, keys and values, and of a mask that biases scores where one is wanted."""
    wanted = (query, key, value, mask) if rest[-1] else (query, key, value)
    return [torch.empty_like(x) for x in wanted if x is not None]


torch.library.impl("meshwright::attention", "CompositeExplicitAutograd", _result)
torch.library.impl("meshwright::attention_backward", "CompositeExplicitAutograd", _gradients)


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """The two, joined by their derivative."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *how: Any) -> Any:
        return torch.ops.meshwright.attention(query, key, value, mask, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        saved, ctx.how = inputs[:4], inputs[4:]
        ctx.save_for_backward(*saved, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        backward = torch.ops.meshwright.attention_backward
        biased = ctx.needs_input_grad[3]
        found = backward(gradients[0], *ctx.saved_tensors, *ctx.how, biased)
        return (*found, *(() if biased else (None,)), *(None for _ in ctx.how))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As ``torch.nn.functional.scaled_dot_product_attention``; heads that are shared are seen by their number."""
    result, _ = _Attention.apply(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return result


def with_attention(exported: Any) -> Any:
    """An exported module in core operators, but attention as one."""
    table = torch.export.default_decompositions()
    fused = torch.ops.aten.scaled_dot_product_attention.default
    table.pop(fused, None)
    table.pop(DETACH, None)  # it would be a view, which has a derivative
    found = exported.run_decompositions(table)
    for node in found.graph_module.graph.nodes:
        if node.op == "call_function" and node.target is fused:
            node.target = attend
    found.graph_module.recompile()
    return found
