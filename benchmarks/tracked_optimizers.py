"""Optimizers of the steps that are tracked, by the names that cases have for them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def _adamw(model: Any) -> tuple[Any, ...]:
    from torch.optim import AdamW

    return (AdamW(model.parameters(), fused=True),)


def _adamw_foreach(model: Any) -> tuple[Any, ...]:
    from torch.optim import AdamW

    return (AdamW(model.parameters(), foreach=True),)


def _sgd(model: Any, momentum: float = 0.0) -> tuple[Any, ...]:
    from torch.optim import SGD

    return (SGD(model.parameters(), momentum=momentum, foreach=False),)


def _muon(model: Any) -> tuple[Any, ...]:
    """As published: matrices of layers, and AdamW for all else."""
    from torch.optim import AdamW, Muon

    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    return Muon(matrices), AdamW([w for w in model.parameters() if id(w) not in chosen], fused=True)


def _adamw_8bit(model: Any) -> tuple[Any, ...]:
    """Its update is compiled: here one weight's temporaries have memory, too, so that peaks must be elsewhere."""
    import torch

    torch.compile = lambda function, **options: function
    torch.Tensor.item = lambda number: 1.0
    from torchao.optim import AdamW8bit

    return (AdamW8bit(model.parameters()),)


OPTIMIZERS: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "adamw_fused": _adamw, "adamw_foreach": _adamw_foreach, "sgd": _sgd, "sgd_momentum": partial(_sgd, momentum=0.9),
    "muon": _muon, "adamw8bit": _adamw_8bit,
}  # fmt: skip
"""``optim`` -> the optimizers that share the weights of a model."""
