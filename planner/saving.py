"""What each kind of operator keeps for its backward pass: names of tensors of its block."""

from planner.flops import AttentionKernel
from planner.graph import Block, Op, trained_weights


def named(op: Op, *attributes: str) -> tuple[str, ...]:
    """Auxiliary tensors: made inside the operator, read only by its backward, named by an attribute."""
    return tuple(str(op.attributes[a]) for a in attributes if a in op.attributes)


def weight_casts(op: Op) -> tuple[str, ...]:
    """Casts of its weights that a product under autocast reads, in either direction."""
    return tuple(str(op.attributes.get("weight_casts", "")).split())


KEEPS_INPUTS = "keeps_inputs"
"""Attribute of frozen products that keep their inputs all the same."""


def reads_own_norm(op: Op, block: Block) -> bool:
    """Whether a norm is one module with the product that alone reads its result, and hands it on to an adapter.

    Frozen or not, such a module keeps what it hands on.

    Source: NVIDIA/TransformerEngine@v2.8 ``transformer_engine/pytorch/module/layernorm_linear.py``
    (``return_layernorm_output``), which NVIDIA-NeMo/Megatron-Bridge@2afd2d34 ``src/megatron/bridge/peft/utils.py`` sets
    (``get_adapter_attributes_from_linear``).
    """
    read = op.inputs[0]
    normed = any(read in other.outputs and other.kind == "norm" for other in block.ops)
    return normed and sum(read in other.inputs for other in block.ops) == 1


def saves_inputs(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """Products read their inputs for the gradients of weights: not where all of these are frozen."""
    casts = weight_casts(op)
    if op.weights and not trained_weights(op, block) and not op.attributes.get(KEEPS_INPUTS):
        return casts
    return (*(block.seen.get(name, name) for name in op.inputs), *casts)


def saves_factors(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """Each operand, for the gradient of the other: data and constants have none."""
    pairs = zip(op.inputs, reversed(op.inputs), strict=True)
    return tuple(block.seen.get(n, n) for n, other in pairs if block.tensor[other].role != "input")


def saves_nothing(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """Its gradient is that of its result."""
    return ()


def saves_mask(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """Its gradient is that of its result, but for what a residual sum drops (Megatron's ``bias_dropout_add``)."""
    return named(op, "mask")


def saves_normalised(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """What is normalised, and its statistics."""
    return (op.inputs[0], *named(op, "statistics"))


def saves_elementwise(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """A linear function (rotary positions, a mean) needs none of its inputs; dropout its mask; a scan its levels."""
    return named(op, "mask") if op.attributes.get("linear") else named(op, "kept") or op.inputs


def saves_attention(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """A fused kernel keeps its result and a number for each row, plain attention its probabilities, and a mask of those
    that it drops.
    """
    if kernel == "plain":
        return (*op.inputs, *named(op, "score_cap", "probabilities", "mask"))
    return (*op.inputs, *op.outputs, *named(op, "log_sum_exp"))


def saves_listed(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """What a kernel's own backward is written to read, whatever else it reads forward."""
    return tuple(str(op.attributes["kept"]).split())


def saves_steps(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """What each step keeps."""
    return named(op, "kept")


def saves_loss(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """Labels and log-probabilities."""
    return (*op.inputs[1:], *named(op, "log_probabilities"))


def saves_routing(op: Op, block: Block, kernel: AttentionKernel) -> tuple[str, ...]:
    """The router's result, and who goes where."""
    return (op.inputs[1], *named(op, "routing"))
