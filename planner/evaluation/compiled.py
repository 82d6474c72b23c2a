"""A layer's backward as XLA runs it: weights gathered once, gradients scattered as they are made, in rings over arrays.

The weight of the layer's last product is gone once the gradient of what it reads is made; until then nothing else has
one. A ring of a weight's gradient is a loop over parts of its product, which reads arrays: nothing that makes its
operand is fused into it, and what attention made is laid out in rows for it.

Source: buffer assignments of programs compiled for TPU topologies (jax 0.10.2, libtpu 0.0.52).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.states import Sync
from planner.evaluation.terms import BlockTerms
from planner.graph import Block, trained_weights
from planner.plans import Parallelism
from planner.sharding.depths import is_product
from planner.sharding.pricing import Pricer


class CompiledBlock(NamedTuple):
    """What the backward of a block has under a compiler; bytes but for the weight."""

    last_weight: float = 0.0
    """Elements that its last product reads."""
    first: float = 0.0
    """There before anything else has a gradient, over what the block keeps."""
    read: float = 0.0
    """Inputs of products that are no arrays of their own, unless a ring reads them."""
    read_first: float = 0.0
    """The same at the time of ``first``: without that of the last product, whose gradient is being made."""
    looped: float = 0.0
    """Of what the block keeps, that which only a loop over layers does."""


class LayerBack(NamedTuple):
    """The most that one of several layers has in its backward."""

    first: float = 0.0
    """Beside its gathered weights as it begins, over what it keeps [bytes]."""
    workspace: float = 0.0
    """Later [bytes]."""
    gathered: float = 0.0
    """Elements that are gathered whole as it begins."""
    left: float = 0.0
    """Later."""
    summed: float = 0.0
    """Elements whose gradients wait whole for their sum, where sums wait for the end of the layer."""
    one: float = 0.0
    """The same where each is summed once it is made."""


def compiled_block(
    pricer: Pricer, block: Block, terms: BlockTerms, kept: Collection[str], again: float
) -> CompiledBlock:
    """``block``, of which ``kept`` activations are kept, with ``again`` bytes computed again or handed back."""
    products = [op for op in block.ops if is_product(op) and trained_weights(op, block)]
    if pricer.software.gradient_life != "backward":
        return CompiledBlock()
    looped = _looped(block, terms, pricer.software, kept)
    if not products:
        return CompiledBlock(looped=looped)
    last, sizes = products[-1], terms.tensor_bytes
    moving = sum(sizes.get(name, 0.0) for name in (*last.inputs, *last.outputs))
    read = {name for op in products for name in op.inputs if name in sizes}.difference(kept)
    return CompiledBlock(
        terms.last_weight,
        again + moving,
        _sum(sizes, read),
        _sum(sizes, read.difference(last.inputs)),
        looped,
    )


def _sum(sizes: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(sizes[name] for name in sorted(names))


def _looped(block: Block, terms: BlockTerms, software: SoftwareSpec, kept: Collection[str]) -> float:
    """What norms keep beside their inputs because a loop stacks it: outside of one it is fused into what reads it."""
    own = {str(op.attributes.get("statistics")) for op in block.ops if op.kind == "norm"}
    return (
        _sum(terms.residual_bytes, own.intersection(kept, terms.residual_bytes)) * software.fused_elementwise
    )


def written_over(block: Block, terms: BlockTerms, software: SoftwareSpec, kept: Collection[str]) -> float:
    """Input of a gated activation, not ``kept``, over which a compiler writes its gradient; not of both [bytes]."""
    if not software.fused_elementwise or software.gradient_life != "backward":
        return 0.0
    inputs = {op.inputs[0] for op in block.ops if "activated_gate" in op.attributes}
    return max((terms.tensor_bytes[name] for name in inputs.difference(kept)), default=0.0)


def layer_back(
    layer: CompiledBlock, weights: tuple[float, float], ringed: float, sync: Sync, loops: bool
) -> LayerBack:
    """Of one layer whose ``weights`` have so many elements, the largest of them so many.

    Of these a share is gathered ``ringed``: part by part beside the product that reads it. ``loops`` says whether
    rings are loops.
    """
    everything, largest = weights
    rings = bool(sync.reduce_ring_bytes)
    arrays = rings and loops
    gathered = everything * (1 - (ringed if sync.ring_bytes else 0.0))
    return LayerBack(
        first=layer.first + arrays * layer.read_first,
        workspace=arrays * layer.read,
        gathered=gathered,
        left=min(gathered, max(0.0, everything - layer.last_weight)),
        summed=everything if sync.whole_bytes else largest * (not rings),
        one=largest * (not rings),
    )


def ring_is_loop(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether rings over the ranks that share states are loops: those over few are unrolled."""
    return software.partitioner is not None and plan.shard_degree > software.partitioner.unrolled_ranks


def most(layers: Iterable[LayerBack]) -> LayerBack:
    """The most of each kind that any of ``layers`` has."""
    return LayerBack(*(max(kind) for kind in zip(LayerBack(), *layers, strict=True)))
