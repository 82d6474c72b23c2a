"""Weights that are stored in few bits and widened where they are used.

Source: Dettmers et al., QLoRA, arXiv:2305.14314, section 3 (4-bit NormalFloat in blocks of 64, whose maxima are 8-bit
in blocks of 256 with an fp32 constant each: 0.127 bits a weight); Dettmers et al., LLM.int8(), arXiv:2208.07339
(8 bits, an fp32 constant a row, which is left out); NVIDIA/TransformerEngine ``transformer_engine/pytorch/tensor/
float8_tensor.py`` (8 bits, an fp32 constant a weight, which is left out).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.errors import UnknownName

NF4_BLOCK = 64
"""Weights that share one maximum."""

NF4_CONSTANTS = 256
"""Maxima that share one constant."""


class Quantized(NamedTuple):
    """Bytes per weight."""

    data: float
    scales: float
    """Of constants, which are no parameters: ranks that share the data have all of them."""


QUANTIZED: Mapping[str, Quantized] = MappingProxyType(
    {
        "nf4": Quantized(0.5, (1 + 4 / NF4_CONSTANTS) / NF4_BLOCK),
        "int8": Quantized(1.0, 0.0),
        "fp8": Quantized(1.0, 0.0),
        "bf16": Quantized(2.0, 0.0),
    }
)
"""By the names of ``planner.models.adapters.Base``."""


def quantized_bytes(name: str) -> Quantized:
    """What one weight takes [bytes]; raises ``UnknownName``."""
    if name not in QUANTIZED:
        raise UnknownName("type of stored weights", name, QUANTIZED)
    return QUANTIZED[name]
