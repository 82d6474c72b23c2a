"""What is kept of activations that operators read in 8 or 4 bits: casts of them, where their stack keeps these.

Each product casts what it reads by itself, and keeps that for its weights' gradient, beside what other operators keep
of the same. Megatron Core has it keep their copy in place of its own, but for delayed scaling.

Source: NVIDIA/TransformerEngine@v2.8 ``transformer_engine/pytorch/module/linear.py`` (``own_quantized_input``,
``save_original_input``); NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/transformer/attention.py``
(``set_save_original_input``).
"""

from collections.abc import Collection

from cost_models.compute import element_bytes
from planner.graph import Block, Op
from planner.operators import operator_rule
from planner.sharding.pricing import Pricer


def kept_shares(pricer: Pricer, block: Block, repeated: Collection[str] = ()) -> dict[str, float]:
    """What is kept of activations over their 16 bits, of those that are cast: casts, and themselves if any is read so.

    Operators that run again, ``repeated``, read their inputs as they were.
    """
    job, software = pricer.job, pricer.software
    if job.precision not in software.saves_narrow:
        return {}
    shares: dict[str, float] = {}
    whole = {name for op in block.ops if op.name in repeated for name in op.inputs}
    for op in (op for op in block.ops if op.name not in repeated):
        cast, read = _cast(pricer, block, op), {block.seen.get(name, name) for name in op.inputs}
        for name in operator_rule(op).saved(op, block, job.attention_kernel):
            if cast and name in read:
                shares[name] = shares.get(name, 0.0) + cast
            else:
                whole.add(name)
    beside = not software.keeps_originals or (job.precision, job.fp8_scaling) == ("fp8", "delayed")
    return {name: share * beside + 1 if name in whole else share for name, share in shares.items()}


def _cast(pricer: Pricer, block: Block, op: Op) -> float:
    """The same of what one product casts by itself; 0 of operators that read their inputs as they are."""
    if operator_rule(op).arithmetic != "matmul":
        return 0.0
    read, made = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    narrow = pricer.matmul_dtype(block, read, made) == pricer.job.precision
    return element_bytes(pricer.job.precision) / element_bytes("bf16") if narrow else 0.0
