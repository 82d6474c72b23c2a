"""What comes and goes at each moment of a step that can be its peak, beside states and gradients.

The moments are those that trackers and compilers show: gathers of weights that are copied (``forward``), the end of the
forward (``loss``), the way back through the head, and through the first layers (``backward``). There the stacks differ
by when gradients come into being, so each ``gradient_life`` has a rule of its own.

Source: torch.distributed FSDPMemTracker of torch 2.13; buffer assignments of XLA compiled for TPU topologies; order of
events within FSDP2: pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from cost_models.memory import gathered_bytes
from planner.evaluation.compiled import most
from planner.evaluation.late_gradients import as_they_are_made, as_weights_are_gathered
from planner.evaluation.rank import Moment, Rank, passing, reduces
from planner.evaluation.stages import loss_copies
from planner.evaluation.states import gradient_bytes
from planner.sharding.widths import DTYPE_BYTES

LATE_NORM = 2
"""Arrays of what layers hand on that wait for the end of XLA's step: the norm before the head is the last to have its
weight's gradient, which reads what the layers made and the gradient of its own result."""


def moments(rank: Rank) -> Iterator[Moment]:
    """All of them but the optimizer's; the largest is the peak."""
    for phase, there in _of_one_stage(rank):
        gathered = there.get("gathered_weights", 0.0)
        there["gathered_weights"] = max(gathered, min(rank.whole, gathered + rank.left_gathered))
        there.setdefault("secondary_weights", rank.secondary_weights(there.get("activations", 0.0)))
        yield Moment(phase, there)


def _of_one_stage(rank: Rank) -> Iterator[Moment]:
    yield from (Moment("forward", at) for at in as_weights_are_gathered(rank))
    loss = {"activations": rank.activations} | _at_loss(rank)
    if rank.cached_casts:
        yield Moment("loss", _under_autocast(rank, loss))
    yield Moment("loss", loss)
    by_compiler = rank.software.gradient_life == "backward"
    if by_compiler and rank.head_gradient != "late":
        yield Moment("head", _at_head(rank))
    yield from (Moment("backward", at) for at in BACKWARD[rank.software.gradient_life](rank))
    if rank.head_gradient in ("waiting", "late"):
        yield Moment("backward", _head_after_layers(rank))


def _at_loss(rank: Rank) -> dict[str, float]:
    """The end of the forward: logits and their loss, before any layer is gathered again.

    The root's weights are still gathered; where embedding and head are units of their own, only the head's. The buffer
    that the last layer was gathered in goes with the root's forward, which the loss may be a part of.
    """
    gathered = 0.0
    if rank.keeps_gathered:
        gathered = rank.whole
    elif rank.shards_weights:
        gathered = max(rank.gathered_ends, default=0.0) if rank.software.wraps_ends else rank.root
        gathered += rank.layer if rank.software.loss_in_root else 0.0
    loss = sum(stage.loss_bytes for stage in rank.stages)
    by_compiler = rank.software.gradient_life == "backward"
    fused = rank.head_gradient != "early" and not any(stage.hands_back_in_ring for stage in rank.stages)
    fused |= bool(rank.ring_parts) and not rank.loops_ring
    if fused or (by_compiler and not rank.frees_gradients):
        loss -= loss_copies(rank.plan.tensor > 1, rank.software) * rank.logits
    return {"gathered_weights": gathered, "logits_and_loss": loss, "gradient_buffers": rank.early_parts}


def _under_autocast(rank: Rank, after: Mapping[str, float]) -> dict[str, float]:
    """The end of the forward where autocast still has casts of weights, before what is there ``after`` it.

    Logits are there in 16 bits and in fp32, and not yet their gradients.
    """
    gradients = loss_copies(rank.plan.tensor > 1, rank.software) * rank.logits
    logits = (1 + DTYPE_BYTES[rank.job.precision] / DTYPE_BYTES["fp32"]) * rank.logits
    cast = {
        "logits_and_loss": after["logits_and_loss"] - gradients + logits,
        "cast_weights": rank.cached_casts,
    }
    return {**after, **cast}


def _at_head(rank: Rank) -> dict[str, float]:
    """The head's gradient, in the type of its accumulation, beside the gradient of the logits in fp32.

    A ring has two sums on their way and two parts to add to them at a time, of as many parts as ranks. Without one the
    gradient is there whole, and this rank's part of the sum beside it; but one that waits for its sum is made when the
    head's weights are gone, beside what the head read and the gradient of that. Where a loop has left the logits'
    gradient as an array of 16 bits, the logits are gone.
    """
    gathered = rank.head * rank.weight if rank.shards_weights else 0.0
    gradient = rank.head * gradient_bytes(rank.job)
    if rank.head_gradient in ("waiting", "summed"):
        return passing(rank.activations, 0.0, gradient, 2 * rank.boundary) | {"logits_and_loss": rank.logits}
    if rank.postpones_gradients and any(stage.hands_back_in_ring for stage in rank.stages):
        return _beside_unrolled_ring(rank, gathered, gradient)
    if rank.ring_parts:
        gradient *= min(1.0, rank.ring_parts / rank.plan.shard_degree)
    elif rank.frees_gradients:
        gradient *= 1 + 1 / rank.plan.shard_degree
    return passing(rank.activations, gathered, gradient, 0.0) | {"logits_and_loss": _read_logits(rank)}


def _beside_unrolled_ring(rank: Rank, gathered: float, gradient: float) -> dict[str, float]:
    """The same where the ring is no loop and the gradient of what the head reads is summed in another beside it.

    Both read the logits' gradient, which is there whole, in 16 bits of fp32, beside the logits if no loop reads it. The
    one begins with a part of zeros; the other's parts are in fp32.
    """
    parts = gradient * (rank.ring_parts + 1) / rank.plan.shard_degree
    handed_back = rank.ring_parts * rank.boundary * DTYPE_BYTES["fp32"] / rank.weight
    logits = rank.logits / 2 + (0.0 if rank.hands_back_array else rank.logits)
    return passing(rank.activations, gathered, parts, handed_back) | {"logits_and_loss": logits}


def _read_logits(rank: Rank) -> float:
    """What the product that makes the head's gradient reads: the logits, or an array of their gradient [bytes]."""
    return rank.logits / 2 if rank.hands_back_array else rank.logits


def _late_logits(rank: Rank) -> float:
    """What of the logits waits for the end of the layers' backward [bytes].

    What a late product reads; beside no tensor ranks their gradient in 16 bits, of fp32, where a ring follows whose
    memory is not set aside before.
    """
    if rank.head_gradient == "late" or rank.postpones_gradients:
        return _read_logits(rank)
    follows = rank.loops_ring and not rank.sets_aside and rank.plan.tensor == 1
    return rank.logits / 2 if follows else 0.0


def _head_after_layers(rank: Rank) -> dict[str, float]:
    """XLA: the head's whole gradient, once the layers have theirs, of which no activation is left.

    Those of a lone micro-batch are gone, too: with them layers are stepped.
    """
    gradient = rank.head * gradient_bytes(rank.job)
    if rank.head_gradient == "waiting":
        gradient += rank.head * rank.reduced
    there = passing(0.0, 0.0, gradient, rank.boundary) | {"logits_and_loss": _late_logits(rank)}
    stepped = {} if rank.loops_over_microbatches else {"gradients": 0.0, "cast_weights": 0.0}
    return there | stepped


def _by_compiler(rank: Rank) -> Iterator[dict[str, float]]:
    """XLA: a layer with its gathered weights, as its backward begins and later (`planner.evaluation.compiled`)."""
    late = {"logits_and_loss": _late_logits(rank)}
    norm, sums = LATE_NORM * rank.boundary, rank.further_part
    sums += rank.head * gradient_bytes(rank.job) if rank.head_gradient == "waiting" else 0.0
    first, workspace, gathered, left, summed, one = most(stage.back for stage in rank.stages)
    gathered, left = (rank.shards_weights * rank.weight * elements for elements in (gathered, left))
    yield passing(rank.activations, gathered, sums, first + norm) | late
    sums += (summed if rank.sets_aside else one) * rank.reduced if rank.frees_gradients else 0.0
    yield passing(rank.activations, left, sums, rank.workspace + workspace + norm) | late


def _in_their_place(rank: Rank) -> Iterator[dict[str, float]]:
    """Gradients have memory all along; those of a sharded layer wait whole, and in a buffer, to be reduced.

    Where modules gather their own weights, so does what waits: one weight's, and a bucket of them.
    """
    plan, software = rank.plan, rank.software
    one, live = rank.largest_weight, software.live_parameters
    gathered = 0.0
    if rank.keeps_gathered:
        gathered = rank.whole
    elif rank.shards_weights:
        gathered = gathered_bytes(rank.largest, rank.ends, rank.weight, software.prefetch_units)
        gathered = min(gathered, (live + one) * rank.weight)
    buffers = 0.0
    if rank.frees_gradients:
        buffers = (rank.largest + rank.ends) * rank.weight + rank.largest * rank.reduced
        if live < math.inf:
            bucket = max(software.gradient_bucket, one * rank.reduced)
            buffers = min(buffers, one * rank.weight + bucket)
    elif reduces(plan) and software.flat_buffers is None:
        buffers = min(software.gradient_bucket, rank.largest * rank.reduced)
    yield passing(rank.activations, gathered, buffers, rank.workspace)


BACKWARD: Mapping[str, Callable[[Rank], Iterator[dict[str, float]]]] = MappingProxyType(
    {"late": as_they_are_made, "backward": _by_compiler, "step": _in_their_place}
)
"""``gradient_life`` of a stack -> moments of its backward."""
