"""Layouts that people know by name, as points of the strategy space.

The *named layout* of a plan's degrees is Megatron's: the batch over ``data`` and ``expert``, the sequence over
``context``, and over ``tensor`` the output dim of the first product and the contracted dim of the second, with
norms and residuals split along the sequence in between (sequence parallelism) or replicated.

Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.
"""

from collections.abc import Mapping

from planner.graph import BATCH, HEAD_DIMS, TOKEN_DIMS, Block, Op
from planner.models.adapter_steps import GATHERED, RANK, narrow_product
from planner.operators import operator_rule
from planner.sharding.mesh import EXPERT_AXES
from planner.sharding.spec import Sizes, Strategy

ROLES: Mapping[str, tuple[str, ...]] = {
    "data": (BATCH,),
    "expert": ("experts", BATCH),
    "context_expert": ("experts", *TOKEN_DIMS),
    "context": TOKEN_DIMS,
    "tensor": (
        *HEAD_DIMS,
        "state_groups",
        "ffn",
        "shared_ffn",
        "expert_ffn",
        "vocab",
        "experts",
        "hidden",
        "q_lora",
        "kv_lora",
        "channels",
    ),
}
"""Dims that each axis may split, in the order in which the named layout prefers them."""


def _tensor_dim(
    op: Op, dims: frozenset[str], sequence_parallel: bool, experts_over_tensor: bool
) -> str | None:
    """Dim that the tensor axis splits in Megatron's layout."""
    if experts_over_tensor and "expert_ffn" in dims:
        return "experts"
    for dim in ROLES["tensor"]:
        if dim in dims and dim not in ("hidden", "experts", "q_lora", "kv_lora"):
            return dim
    if sequence_parallel:
        return next((d for d in TOKEN_DIMS if d in dims), None)
    return None


def adapter_dim(op: Op, block: Block, sizes: Sizes, sequence_parallel: bool) -> str | None:
    """The dim of one of an adapter's two products, or of the dropout before them, that the tensor axis splits.

    Beside a product whose columns are split, the rank and then these columns; beside one whose rows are split, these
    and then the columns of the result. Beside others, which tensor ranks repeat, as those.

    Source: NVIDIA-NeMo/Megatron-Bridge@2afd2d34 ``src/megatron/bridge/peft/utils.py`` (``ParallelLinearAdapter``: what
    ``input_is_parallel`` chooses for ``linear_in``; ``linear_out`` is split by columns always).
    """

    def split(one: Op) -> str | None:
        dims = frozenset(operator_rule(one).splittable(one, block, sizes.graph))
        return _tensor_dim(one, dims, sequence_parallel=False, experts_over_tensor=False)

    if (own := split(op)) is not None:
        return own
    which = narrow_product(op, block)
    if which == "up":
        other = next(o for o in block.ops if o.name == block.producer[op.inputs[0]])
    else:
        down = op if which == "down" else next(o for o in block.ops if op.outputs[0] in o.inputs)
        other = next(o for o in block.ops if down.outputs[0] in o.inputs)
    if split(other) is not None:
        return {"up": "hidden", "down": RANK}.get(which or "")
    return next((d for d in block.tensor[op.inputs[0]].dims if d in TOKEN_DIMS and sequence_parallel), None)


def named_strategy(
    op: Op, block: Block, sizes: Sizes, sequence_parallel: bool, experts_over_tensor: bool = False
) -> Strategy:
    """Megatron's strategy for one operator on the mesh of ``sizes``; an axis that fits no dim replicates."""
    dims = frozenset(operator_rule(op).splittable(op, block, sizes.graph))
    chosen: list[tuple[str, str]] = []
    for axis in sizes.mesh.axes:
        if axis == "tensor" and (narrow_product(op, block) or op.attributes.get(GATHERED)):
            candidates = [adapter_dim(op, block, sizes, sequence_parallel)]
        elif axis == "tensor":
            candidates = [_tensor_dim(op, dims, sequence_parallel, experts_over_tensor)]
        elif axis in EXPERT_AXES and "expert_ffn" not in dims:
            # Routers and dispatchers see a rank's own tokens; only experts are spread.
            candidates = [d for d in ROLES[axis] if d != "experts" and d in dims]
        else:
            candidates = [d for d in ROLES[axis] if d in dims]
        for dim in candidates:
            if dim is not None and sizes.legal(op, (*chosen, (axis, dim))):
                chosen.append((axis, dim))
                break
    return tuple(chosen)


def data_splits_only_batch(assignment: Mapping[str, Strategy]) -> bool:
    """Whether the data axis splits nothing but the batch."""
    return all(dim == BATCH for strategy in assignment.values() for axis, dim in strategy if axis == "data")


def named_layout(
    block: Block, sizes: Sizes, sequence_parallel: bool = True, experts_over_tensor: bool = False
) -> dict[str, Strategy]:
    """Megatron's layout of a whole block: operator name -> strategy.

    ``experts_over_tensor`` gives the tensor ranks whole experts instead of parts of each.
    """
    return {
        op.name: named_strategy(op, block, sizes, sequence_parallel, experts_over_tensor) for op in block.ops
    }
