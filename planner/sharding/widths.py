"""Bytes of stored elements."""

from collections.abc import Mapping

from planner.graph import Tensor

DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4,
    "int32": 4,
    "bool": 1,
    "bf16": 2,
    "fp16": 2,
    "fp8": 2,
    "fp4": 2,
}
"""Bytes of a stored element; activations of an fp8 or fp4 job are kept in bf16 and cast where they are multiplied."""


def stored_bytes(tensor: Tensor, precision: str, modules: str | None = None) -> float:
    """Bytes per element of ``tensor`` in a job of this precision, in ``modules`` of someone or the graph's own."""
    computed = tensor.dtype == "compute" or (tensor.narrow and modules == "transformers")
    return DTYPE_BYTES[precision if computed else tensor.dtype]
