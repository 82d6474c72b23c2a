"""Keys and values that tensor ranks with the same heads of them make in parts, where a rank has few tokens.

Parts of their weights have changed places between data ranks and such tensor ranks (`planner.evaluation.syncing`). To
gather these takes the bytes of a weight, to multiply by parts and sum what that makes over the same ranks twice those
of the result. The partitioner does the latter where it is less: for ``t`` tokens and ``k`` contracted elements where
``2 t < k``. It does so as often as keys and values are made; their gradient reads whole weights, gathered for it alone.

Source: steps compiled for TPU v5e and v5p (jax 0.10.2, libtpu 0.0.52), of 8,192 elements and 1,024 to 4,096 tokens, of
4,096 and 1,024; some are in ``tests/published/xla_*.jsonl``.
"""

from cost_models.collectives import COLLECTIVES, wire_bytes
from planner.evaluation.rematerialisation import rematerialised
from planner.evaluation.states import shards_of
from planner.evaluation.syncing import phase_of, swaps
from planner.evaluation.units import UnitCost
from planner.evaluation.weights import WeightGroup
from planner.graph import Block, Op
from planner.plans import Parallelism
from planner.sharding.costs import Comm
from planner.sharding.depths import copied_parts
from planner.sharding.pricing import Pricer
from planner.sharding.widths import DTYPE_BYTES


def with_few_tokens(unit: UnitCost, pricer: Pricer, block: Block, plan: Parallelism, policy: str) -> UnitCost:
    """``unit`` of ``block`` under a rematerialisation ``policy`` as it is, or with sums in place of gathers."""
    if pricer.partitioned is None or plan.zero_stage < 3:
        return unit
    width = DTYPE_BYTES[pricer.partitioned.partitioner.habits.product_dtype]
    makers = [op for op in block.ops if _is_alike(pricer, block, op)]
    again = any(op.name in rematerialised(pricer, block, policy).repeated for op in makers)
    tokens = plan.micro_batch * pricer.job.seq_len / plan.context
    for group in unit.block.weights:
        if swaps(group, shards_of(group, pricer.mesh, plan.shard_degree)) and 2 * tokens < _depth(group):
            among = pricer.mesh.inner_outer(("tensor",), group.alike)[0]
            made = width * group.elements / _depth(group) * tokens
            seconds = COLLECTIVES["all_reduce"](made, among).seconds
            summed = Comm("all_reduce", ("tensor",), seconds, wire_bytes("all_reduce", made, among.size))
            gather = phase_of("all_gather", width * group.elements, among, "gather")
            sync = unit.sync._replace(late=gather.gather, late_bytes=gather.gather_bytes)
            unit = unit.exchanging((summed,), (summed,) if again else ())._replace(sync=sync)
    return unit


def _is_alike(pricer: Pricer, block: Block, op: Op) -> bool:
    """Whether several tensor ranks make the same of what ``op`` makes by weights."""
    ranks = pricer.mesh.size("tensor")
    return any(copied_parts(pricer.graph, block.tensor[name], ranks) for name in op.weights)


def _depth(group: WeightGroup) -> float:
    """Elements that products of the group's weights contract, all as many."""
    return max((shape[0][0] for shape in group.shapes if len(shape) > 1), default=0.0)
