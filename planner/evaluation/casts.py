"""What is kept of activations that operators read in 8 or 4 bits: casts of them, where their stack keeps these.

Each product casts what it reads by itself, and keeps that for its weights' gradient, beside what other operators keep
of the same. Megatron Core has it keep what it was given in place of that, but for delayed scaling. Attention in 8 bits
keeps what it read so, and its result, as far as its kernels read that so again.

Source: NVIDIA/TransformerEngine@v2.8 ``transformer_engine/pytorch/module/linear.py`` (``own_quantized_input``,
``save_original_input``); NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/transformer/attention.py``
(``set_save_original_input``).
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from cost_models.compute import element_bytes
from planner.graph import Block, Op
from planner.operators import operator_rule
from planner.plans import NARROW
from planner.sharding.pricing import Pricer

ATTENTION: Mapping[str, tuple[float, float | None]] = MappingProxyType(
    {"delayed": (1, 1), "tensorwise": (1, None), "mxfp8": (2 * (1 + 1 / 32), None)}
)
"""Scaling -> bytes that attention in 8 bits keeps of queries, keys and values, and of its result; None: all 16 bits.

With a scale for every 32 elements each lies twice, along rows and columns.

Source: NVIDIA/TransformerEngine ``transformer_engine/pytorch/attention/dot_product_attention/backends.py``
(``FusedAttnFunc``: ``fp8_tensors``, as @v2.2 where scaling is delayed, and as @v2.20 else, with
``NVTE_DPA_FP8CS_O_in_F16`` as it is by default) and ``utils.py`` (``combine_and_quantize``).
"""


def kept_shares(pricer: Pricer, block: Block, repeated: Collection[str] = ()) -> dict[str, float]:
    """What is kept of activations over their 16 bits, of those that are cast: casts, and themselves if any is read so.

    Operators that run again, ``repeated``, read their inputs as they were.
    """
    job, software = pricer.job, pricer.software
    if job.precision not in NARROW:
        return {}
    own: dict[str, float] = {}
    attended: dict[str, float] = {}
    whole = {name for op in block.ops if op.name in repeated for name in op.inputs}
    for op in (op for op in block.ops if op.name not in repeated):
        casts = _casts(pricer, block, op)
        found = attended if op.kind == "attention" else own
        for name in operator_rule(op).saved(op, block, job.attention_kernel):
            if name in casts:
                found[name] = found.get(name, 0.0) + casts[name]
            else:
                whole.add(name)
    if software.keeps_originals and (job.precision, job.fp8_scaling) != ("fp8", "delayed"):
        given = own.keys() & (whole | attended.keys())
        whole |= given
        own = {name: share for name, share in own.items() if name not in given}
    return {
        name: attended.get(name, 0.0) + own.get(name, 0.0) + (name in whole)
        for name in attended.keys() | own.keys()
    }


def _casts(pricer: Pricer, block: Block, op: Op) -> dict[str, float]:
    """Tensors that an operator casts by itself -> what it then keeps of each over its 16 bits."""
    job, wide = pricer.job, element_bytes("bf16")
    if op.kind == "attention" and job.narrow_attention is not None and job.attention_kernel == "flash":
        read, made = ATTENTION[job.narrow_attention]
        result = {} if made is None else dict.fromkeys(op.outputs, made / wide)
        return dict.fromkeys(_seen(block, op.inputs[:3]), read / wide) | result
    if operator_rule(op).arithmetic != "matmul" or job.precision not in pricer.software.saves_narrow:
        return {}
    factor, product = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    if pricer.matmul_dtype(block, factor, product) != job.precision:
        return {}
    return dict.fromkeys(_seen(block, op.inputs), element_bytes(job.precision) / wide)


def _seen(block: Block, names: Collection[str]) -> list[str]:
    """Tensors that views of ``names`` are of."""
    return [block.seen.get(name, name) for name in names]
