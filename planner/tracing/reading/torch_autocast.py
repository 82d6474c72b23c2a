"""``torch.autocast`` in an exported module: what it casts on a GPU, as operators of the program.

Tensors without storage are on no device, and PyTorch casts nothing of them.

Source: PyTorch documentation, "CUDA Op-Specific Behavior" (docs.pytorch.org/docs/stable/amp.html); pytorch/pytorch
``aten/src/ATen/autocast_mode.h``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from planner.tracing.reading.torch_functions import replaced

NARROW = """
    _convolution _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr
    baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution einsum gru_cell layers linalg_matmul linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu
    rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
"""
"""Operators that read 16 bits, with those that are made of such, and recurrent layers as they are called here."""

WIDE = """
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cross_entropy_loss
    dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm
    linalg_norm log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    native_layer_norm nll_loss nll_loss2d nll_loss_nd norm nuclear_norm pairwise_distance pdist poisson_nll_loss pow
    reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softplus square tan triplet_margin_loss
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
"""
"""Operators that read fp32, with those that are made of such."""

WIDENED = "cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax prod softmax sum"
"""Operators that make fp32 of what they read as it is, unless they are told what to make."""

WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot"
"""Operators that read all in the widest type among it."""

CASTS: Mapping[str, str] = {
    name: how
    for how, names in (("narrow", NARROW), ("wide", WIDE), ("widened", WIDENED), ("widest", WIDEST))
    for name in names.split()
}
"""Operator -> how it reads."""


_REGION = torch.ops.higher_order.wrap_with_autocast


@contextmanager
def kept_autocast() -> Iterator[None]:
    """Regions of ``torch.autocast`` on GPUs stay such regions where there is no GPU."""
    common = torch.cuda.amp.common
    with ExitStack() as stack:
        stack.enter_context(replaced(common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(replaced(torch.cuda, "is_bf16_supported", lambda *given: True))
        yield


def with_casts(module: Any, dtype: Any = None) -> None:
    """Call operators of ``module`` as autocast to ``dtype`` does, and what is in regions of it as these say."""
    for node in module.graph.nodes:
        if node.target is _REGION:
            _, given, enabled, _, body, *operands = node.args
            with_casts(getattr(module, body.target), given if enabled else None)
            node.op, node.target, node.args = "call_module", body.target, tuple(operands)
            module.graph.erase_node(body)
        elif dtype is not None and _name(node) in CASTS:
            node.target = _cast(node.target, dtype)
    for node in module.graph.nodes:
        part = getattr(module, node.target, None) if node.op == "get_attr" else None
        if isinstance(part, torch.fx.GraphModule):  # a branch, or what has no gradient
            with_casts(part, dtype)
    module.recompile()


def _name(node: Any) -> str:
    """Of an operator, without its library."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.partition("::")[2] if schema else ""


def _cast(operator: Any, dtype: Any) -> Callable[..., Any]:
    """Called as autocast calls it."""
    names = [a.name for a in operator._schema.arguments]
    how = CASTS[operator._schema.name.partition("::")[2]]
    told = names.index("dtype") if "dtype" in names else 0
    kinds = {"narrow": dtype, "wide": torch.float32}

    def run(*given: Any, **named: Any) -> Any:
        if how == "widened":
            free = _floating(given[0]) and len(given) <= told and named.get("dtype") is None
            return operator(*given, **({**named, "dtype": torch.float32} if free else named))
        to = kinds[how] if how in kinds else _widest((given, named), dtype)
        return operator(*_cast_to(given, to), **_cast_to(named, to))

    return run


def _floating(x: Any) -> bool:
    """Whether autocast touches it."""
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64


def _cast_to(tree: Any, dtype: Any) -> Any:
    return tree_map(lambda x: x.to(dtype) if _floating(x) else x, tree)


def _widest(tree: Any, dtype: Any) -> Any:
    return reduce(torch.promote_types, (x.dtype for x in tree_leaves(tree) if _floating(x)), dtype)
