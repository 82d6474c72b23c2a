"""Bytes on one device: model states, gathered copies, loss.

Activations of real models come from their graph; the published formula of a GPT layer is kept here as an
independent witness.
"""

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Literal, NamedTuple

from cluster_specs.errors import InputError, UnknownName
from cost_models.optimizers import optimizer_rule

Recompute = Literal["none", "selective", "full"]

WEIGHT_BYTES: Mapping[str, float] = MappingProxyType(
    {"bf16": 2.0, "fp16": 2.0, "fp8": 2.0, "fp4": 2.0, "fp32": 4.0}
)
"""Bytes per stored weight by training precision; fp8 and fp4 recipes keep 16 bits, and cast them to multiply.

Source: NVIDIA Transformer Engine user guide, "Using FP8"; pytorch/ao ``float8`` README.
"""

GRADIENT_BYTES: Mapping[str, float] = MappingProxyType({"bf16": 2.0, "fp16": 2.0, "fp32": 4.0})
"""Bytes per gradient by the type that it is accumulated in."""

LOSS_BYTES = 3 * 4.0
"""Per token and vocabulary entry at the peak of an fp32 cross-entropy [bytes]: log-probabilities, their
gradient, and the gradient of the logits. Source: torch.distributed FSDPMemTracker of torch 2.13."""


class StateBytes(NamedTuple):
    """Model states of one rank [bytes]."""

    weights: float
    master: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them [bytes]."""
        return sum(self)


def weight_bytes(precision: str) -> float:
    """Bytes per stored weight; raises ``UnknownName`` for an unknown precision."""
    if precision not in WEIGHT_BYTES:
        raise UnknownName("precision", precision, WEIGHT_BYTES)
    return WEIGHT_BYTES[precision]


def gradient_bytes(dtype: str) -> float:
    """Bytes per gradient; raises ``UnknownName`` for an unknown type."""
    if dtype not in GRADIENT_BYTES:
        raise UnknownName("gradient type", dtype, GRADIENT_BYTES)
    return GRADIENT_BYTES[dtype]


def state_bytes(
    parameters: float,
    precision: str = "bf16",
    optimizer: str = "adamw",
    master_weights: bool = True,
    grad_dtype: str = "fp32",
    zero_stage: int = 0,
    shard_degree: float = 1,
    keeps_copy: bool = True,
    shards_weights_from: int = 3,
) -> StateBytes:
    """Bytes of weights, master weights, gradients and optimizer states of one rank.

    ``zero_stage`` 1 shards optimizer and master weights over ``shard_degree`` ranks, 2 gradients as well,
    3 weights as well; the degree is a fraction where shards are padded. ``keeps_copy`` False is a stack that
    stores only the masters, which are whole where weights are, as what products read comes from them. FSDP
    ``shards_weights_from`` stage 2 on, and keeps them gathered from forward to backward.
    Without masters, states have the type of the weights, as in PyTorch; fp32 weights are their own masters.
    Raises ``InputError`` for a stage that does not exist, ``UnknownName`` for names.
    Source: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3 and table 1.
    """
    if zero_stage not in (0, 1, 2, 3):
        raise InputError(f"zero_stage is 0, 1, 2 or 3, found {zero_stage}")
    if shard_degree < 1:
        raise InputError(f"shard_degree is at least 1, found {shard_degree}")
    weight = weight_bytes(precision)
    master = 4.0 if master_weights and weight < 4 else 0.0
    state = optimizer_rule(optimizer).state_bytes(master or weight)
    held = 1 / shard_degree
    own = keeps_copy or not master
    lies = held if zero_stage >= shards_weights_from else 1
    return StateBytes(
        weights=parameters * own * weight * lies,
        master=parameters * master * (held if keeps_copy and zero_stage else lies),
        gradients=parameters * gradient_bytes(grad_dtype) * (held if zero_stage >= 2 else 1),
        optimizer=parameters * state * (held if zero_stage >= 1 else 1),
    )


def gathered_bytes(
    unit_parameters: float, root_parameters: float, element: float, prefetched: int = 1
) -> float:
    """Full copies that exist while a sharded block runs: its own, those gathered ahead, and the root unit.

    ``(root + (1 + prefetched) unit) element``; the root unit (embedding, head, last norm) stays gathered.
    """
    return (root_parameters + (1 + prefetched) * unit_parameters) * element


def loss_bytes(tokens: float, vocabulary: float, chunks: int = 1) -> float:
    """Peak of logits and cross-entropy in fp32: ``12 tokens vocabulary / chunks`` [bytes].

    ``vocabulary`` is this rank's part where the loss is vocabulary-parallel; a fused loss has `loss_chunks`.
    """
    return LOSS_BYTES * tokens * vocabulary / chunks


def loss_chunks(vocabulary: float, hidden: float) -> int:
    """Chunks of tokens of a fused linear cross-entropy: so many that logits are as large as its input.

    Source: linkedin/Liger-Kernel, ``ops/fused_linear_cross_entropy.py`` (``ceil(V / H)``).
    """
    return max(1, ceil(vocabulary / hidden))


def transformer_layer_activation_bytes(
    seq: float,
    micro_batch: float,
    hidden: float,
    heads: float,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> float:
    """Activations kept by one GPT layer in 16 bits with dropout and unfused attention [bytes].

    Per token and hidden unit: 10 of norms, residuals and dropout masks (split only by sequence
    parallelism), 24 of attention and MLP (split by ``tensor``), and ``5 a s / h`` of scores (dropped by
    ``selective``); ``full`` keeps the layer's input, 2. With sequence parallelism ``(34 + 5 a s / h) / t``.
    Source: Korthikanti et al., arXiv:2205.05198, table 2.
    """
    if recompute == "full":
        return 2 * seq * micro_batch * hidden
    if recompute not in ("none", "selective"):
        raise UnknownName("recomputation", recompute, ("none", "selective", "full"))
    outside = 10 / tensor if sequence_parallel else 10
    scores = 5 * heads * seq / hidden if recompute == "none" else 0.0
    return seq * micro_batch * hidden * (outside + (24 + scores) / tensor)
