"""Copies between parameters and the buffers of their collectives, where every parameter is sharded by itself.

Ranks have a part of each weight, so that what they gather lies rank by rank, and has to be sorted by weights; gradients
are cut the other way before they are scattered, and cast to the type in which they travel. The stream that computes
does both, so that nothing hides them.

Source: pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`` (``split_with_sizes_copy`` and
``_chunk_cat`` of ``foreach_all_gather_copy_out`` and ``foreach_reduce_scatter_copy_in``, both on the current stream).
Pull request 120678 measures the latter on H100: 500 G elements/s of two bytes, read and written, which is two thirds of
what its memory copies, and 278 to four bytes. Both are taken at the rate of a copy.

Weights of the first FSDP are views of one flat parameter: nothing is sorted, but their gradients, which come one by
one, are joined to that of the flat one (``torch/distributed/fsdp/_flat_param.py``, `planner.evaluation.flat_units`).
What is done to it then has a stream of its own (``_runtime_utils.py``, ``_post_backward_hook``).
"""

from collections.abc import Iterable

from cost_models.roofline import memory_seconds
from planner.evaluation.setting import Setting
from planner.evaluation.states import Sync, lie_whole, shards_of, weight_bytes
from planner.evaluation.syncing import WireWidths
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh


def with_staging(
    sync: Sync,
    weights: Iterable[WeightGroup],
    frozen: Iterable[FrozenGroup],
    setting: Setting,
    plan: Parallelism,
    mesh: Mesh,
    wire: WireWidths,
) -> Sync:
    """``sync`` with the time of sorting what is gathered of ``weights`` and ``frozen``, and what is scattered."""
    software, device, degree = setting.software, setting.cluster.device, plan.shard_degree
    if lie_whole(plan, software):
        return sync
    shared = [g for g in weights if shards_of(g, mesh, degree).inner.size > 1]
    elements, gathered = sum(g.elements for g in shared), sum(wire.gathered(g) for g in shared)
    if not software.sorts_shards:
        joined = elements if software.joins_gradients else 0.0
        return sync._replace(pack=memory_seconds(2 * joined * weight_bytes(setting.job), device))
    untrained = sum(g.data for g in frozen if shards_of(g, mesh, degree).inner.size > 1)
    return sync._replace(
        unpack=memory_seconds(2 * (gathered + untrained), device),
        pack=memory_seconds(elements * (weight_bytes(setting.job) + wire.gradients), device),
    )
