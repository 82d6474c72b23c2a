"""What a microbatch keeps on a stage, and until when: the split that zero-bubble schedules live on.

The forward saves activations. The input gradient frees what only it needs, and leaves behind the gradients of every
matrix product's output; with the product's input they wait for the weight gradient.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """Bytes of one microbatch on each stage."""

    until_input: tuple[float, ...]
    """Freed by B or I, less what I leaves behind in addition; negative where that is more (recomputation)."""
    until_weight: tuple[float, ...]
    """Freed by B or W."""


class MatrixProduct(NamedTuple):
    """Elements per token of a weight's input and output; ``shared`` where another product counts the input."""

    inputs: float
    outputs: float
    shared: bool = False


def until_weight_bytes(products: Sequence[MatrixProduct], tokens: float, element_bytes: float) -> float:
    """What waits for the weight gradients [B]: every product's input and the gradient of its output.

    A GPT layer (query-key-value 3h, projection h, feed-forward 4h) comes to 32 s b h bytes in 16 bits: 14 of inputs
    and 18 of gradients. Source: zero bubble, arXiv:2401.10241, table 1.
    """
    elements = sum(product.outputs + (0.0 if product.shared else product.inputs) for product in products)
    return elements * tokens * element_bytes


def gpt_products(hidden: float) -> tuple[MatrixProduct, ...]:
    """The matrix products of the layer that zero bubble's table 1 counts."""
    return (
        MatrixProduct(hidden, 3 * hidden),
        MatrixProduct(hidden, hidden),
        MatrixProduct(hidden, 4 * hidden),
        MatrixProduct(4 * hidden, hidden),
    )


GPT_SHARE = 32 / 34
"""Of 34 s b h bytes that a GPT layer saves without its attention matrix, 32 are held from I to W.

Source: arXiv:2401.10241, table 1 (34h + 5as until the input gradient, 32h until the weight gradient).
"""


def split_saved(saved_bytes: Sequence[float], share: float = GPT_SHARE) -> Held:
    """The default split of what each stage saves: ``share`` of it is held until W.

    Right for dense layers whose attention matrix is not kept. Where a policy recomputes, the input gradient leaves
    behind as much as without, so give `held` the bytes of `until_weight_bytes` instead.
    """
    return held(saved_bytes, [share * saved for saved in saved_bytes])


def held(saved_bytes: Sequence[float], until_weight: Sequence[float]) -> Held:
    """The split where ``until_weight`` bytes are there between input and weight gradient of each stage."""
    early = tuple(saved - late for saved, late in zip(saved_bytes, until_weight, strict=True))
    return Held(early, tuple(until_weight))
