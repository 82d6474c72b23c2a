"""What ZeRO of flat arrays holds: DeepSpeed's updates, and the buffers of its collectives.

Gradients in 16 bits stay whole until the backward ends, when a bucket of them is reduced at a time and each rank's
shard is flattened and cast. Sums in fp32 are flat from the start, but what a micro-batch makes is there beside them.
Flat arrays are larger than any that a layer frees, so that PyTorch's allocator has blocks of their own for them.

Source: deepspeedai/DeepSpeed@v0.5.10 ``runtime/zero/stage_1_and_2.py`` (``reduce_gradients``, ``step``) and @27e5b9564
``runtime/bf16_optimizer.py`` (``update_hp_grads``); replayed by ``benchmarks/replaying_flat.py``.
"""

from collections.abc import Sequence

from cluster_specs.software import SoftwareSpec
from planner.evaluation.rank import Moment, Rank
from planner.evaluation.states import gradient_bytes, weight_bytes
from planner.plans import Job


def sums_wider(job: Job, software: SoftwareSpec) -> bool:
    """Whether gradients are added to flat sums of a wider type, which the update reads as they are."""
    return software.flat_buffers is not None and gradient_bytes(job) > weight_bytes(job)


def flattened(rank: Rank) -> float:
    """Bytes of each element of a rank's shard that the update makes of gradients in 16 bits, beside those in fp32."""
    flat = rank.software.flat_buffers
    return flat.copies * rank.weight if flat is not None and not sums_wider(rank.job, rank.software) else 0.0


def made_beside_sums(rank: Rank) -> float:
    """Gradients as they were made, which keep their memory beside such sums [bytes]."""
    return rank.elements * rank.weight if sums_wider(rank.job, rank.software) else 0.0


def held_by_flat(rank: Rank, moments: Sequence[Moment]) -> float:
    """Bytes over the live tensors of the fullest moment: blocks of flat arrays are beside those of all others."""
    flat = rank.software.flat_buffers
    if flat is None:
        return 0.0
    of_update = [sum(at.passing.values()) for at in moments if at.phase == "optimizer"]
    of_layers = [sum(at.passing.values()) for at in moments if at.phase != "optimizer"]
    buffers = flat.reduced * gradient_bytes(rank.job)
    if rank.plan.shard_degree > 1:
        buffers += rank.elements / max(1, rank.elements // flat.gathered) * rank.weight
    most, least = max(of_layers), max(of_update)
    return min(most, least) + buffers
