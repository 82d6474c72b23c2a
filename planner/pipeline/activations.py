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


def held(saved_bytes: Sequence[float], until_weight: Sequence[float]) -> Held:
    """The split where ``until_weight`` bytes are there between input and weight gradient of each stage."""
    early = tuple(saved - late for saved, late in zip(saved_bytes, until_weight, strict=True))
    return Held(early, tuple(until_weight))
