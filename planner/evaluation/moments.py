"""What comes and goes at each moment of a step that can be its peak, beside states and gradients.

The moments are those that trackers and compilers show: the end of the forward (``loss``), the way back through the
head, and through the first layers (``backward``). There the stacks differ by when gradients come into being, so each
``gradient_life`` has a rule of its own.

Source: torch.distributed FSDPMemTracker of torch 2.13; buffer assignments of XLA compiled for TPU topologies; order of
events within FSDP2: pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cost_models.memory import gathered_bytes
from planner.evaluation.rank import Rank
from planner.evaluation.stages import loss_copies
from planner.evaluation.states import gradient_bytes
from planner.plans import Parallelism


class Moment(NamedTuple):
    """What is there at one moment, by component [bytes]."""

    phase: str
    passing: dict[str, float]


def moments(rank: Rank) -> Iterator[Moment]:
    """All of them but the optimizer's; the largest is the peak."""
    for phase, passing in _of_one_stage(rank):
        gathered = passing.get("gathered_weights", 0.0)
        held = max(gathered, min(rank.whole, gathered + rank.left_gathered))
        passing["gathered_weights"] = held
        yield Moment(phase, passing)


def _of_one_stage(rank: Rank) -> Iterator[Moment]:
    yield Moment("loss", {"activations": rank.activations} | _at_loss(rank))
    if rank.software.gradient_life == "backward":
        yield Moment("head", _at_head(rank))
    yield from (Moment("backward", at) for at in BACKWARD[rank.software.gradient_life](rank))


def _at_loss(rank: Rank) -> dict[str, float]:
    """The end of the forward: logits and their loss, before any layer is gathered again.

    The root's weights are still gathered; where embedding and head are units of their own, only the head's. The buffer
    that the last layer was gathered in goes with the root's forward, which the loss may be a part of.
    """
    gathered = 0.0
    if rank.plan.zero_stage == 2:
        gathered = rank.whole
    elif rank.shards_weights:
        gathered = max(rank.gathered_ends, default=0.0) if rank.software.wraps_ends else rank.root
        gathered += rank.layer if rank.software.loss_in_root else 0.0
    loss = sum(stage.loss_bytes for stage in rank.stages)
    if rank.postpones_gradients:
        loss -= loss_copies(rank.plan, rank.software) * rank.logits
    return {"gathered_weights": gathered, "logits_and_loss": loss}


def _as_they_are_made(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP: gradients are copied into a buffer in the type of the wire, which stays until the next layer's are.

    The layer after the one that computes is gathered ahead, or as many as there are.
    """
    plan = rank.plan
    layer, root = rank.layer, 0.0 if rank.software.wraps_ends else rank.root
    gathered = 0.0
    if plan.zero_stage == 2:
        gathered = rank.whole
    elif rank.shards_weights:
        gathered = gathered_bytes(layer, root, 1.0, rank.software.prefetch_units)
    if not rank.frees_gradients:
        bucket = min(rank.software.gradient_bucket, rank.largest * rank.reduced) if _reduces(plan) else 0.0
        yield _passing(rank.activations, gathered, bucket, rank.workspace)
        return
    head = rank.head * (rank.reduced if rank.software.wraps_ends else rank.weight)
    yield _passing(rank.activations, min(gathered, rank.whole), head, rank.workspace)
    if rank.adds_up_whole and rank.software.wraps_ends:
        yield from _head_added(rank)
    elif rank.software.wraps_ends:
        # The head's buffer stays until the last layer's gradients are copied into theirs.
        left = rank.activations - rank.layer_activations
        waiting = head + rank.made
        yield _passing(left, min(gathered, rank.whole), waiting, rank.boundary) | rank.sharded(rank.head)
    following = rank.whole - layer if plan.zero_stage == 2 else gathered
    yield from _later_layers(rank, following, 0.0 if rank.software.wraps_ends else head)
    yield from _backward_done(rank)


def _head_added(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP where the head is a unit, and sums of gradients wait whole: its gradients, and their reduction.

    The last layer is gathered ahead; the head until its gradients are made. The result of the reduction has memory
    beside the buffer, and gradients of another type than the sums stay until it is there.
    """
    ahead, head = (rank.layer, rank.gathered_head) if rank.shards_weights else (0.0, 0.0)
    whole = rank.whole if rank.plan.zero_stage == 2 else 0.0
    own, reduced = rank.head * rank.weight, rank.head * rank.reduced
    yield _passing(rank.activations, whole or head + ahead, own, 0.0)
    kept = own if rank.reduced != rank.weight else 0.0
    yield _passing(rank.activations, whole or ahead, kept + reduced + reduced / rank.plan.shard_degree, 0.0)


def _later_layers(rank: Rank, following: float, head: float) -> Iterator[dict[str, float]]:
    """FSDP after the last layer's backward: its gradients wait whole; then the layer before it, and the second one.

    Between these two, activations go and sharded gradients come evenly. ``head`` is what the root's gradients take,
    which stay to the end. Where gradients of several micro-batches are added up whole, the buffer takes their place.
    """
    layer, inner = rank.layer, rank.elements - rank.ends
    buffer, own = rank.largest * rank.reduced, rank.made
    waiting = buffer
    if rank.adds_up_whole:
        waiting = own = 0.0
    left = rank.activations - rank.layer_activations
    ahead = rank.whole - layer if rank.plan.zero_stage == 2 else following - layer
    yield _passing(left, ahead, head + buffer + own, rank.boundary)
    yield from _next_layer(rank, left, following, (head + waiting, own), rank.largest)
    before = inner / rank.largest - 2 if rank.largest else 0.0
    if before > 1:
        left = max(0.0, rank.activations - before * rank.layer_activations)
        if rank.plan.zero_stage == 2:
            following -= (before - 1) * layer
        yield from _next_layer(rank, left, following, (head + waiting, own), before * rank.largest)


def _next_layer(
    rank: Rank, left: float, gathered: float, gradients: tuple[float, float], done: float
) -> Iterator[dict[str, float]]:
    """A layer's weights leave the buffer of their gather; its backward; its end, with its own gradients whole.

    ``left`` bytes of activations; ``gradients`` are those that wait and its own [bytes]; ``done`` elements before it.
    """
    waiting, own = gradients
    sharded = rank.sharded(done)
    during = min(gathered, rank.whole - rank.layers(done))
    saved = rank.layer_activations
    yield _passing(left, gathered, waiting, rank.boundary) | sharded
    yield _passing(left, during, waiting, rank.workspace) | sharded
    yield _passing(max(0.0, left - saved), during, waiting + own, rank.boundary) | sharded


def _backward_done(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP at the end of the backward: gradients of the first layer, then of the root, wait whole; others are sharded.

    Where embedding and head are units of their own, the embedding's gradients come last. A table that both use has two
    whole gradients and then their sum, before it is freed.
    """
    if rank.adds_up_whole:
        return
    others, layer = rank.elements - rank.ends, rank.made + rank.largest * rank.reduced
    embedding = rank.ends - rank.head
    if rank.software.wraps_ends:
        ahead = embedding * rank.weight if rank.shards_weights else 0.0
        yield _passing(0.0, ahead, layer, 0.0) | rank.sharded(rank.elements - embedding - rank.largest)
        yield _passing(0.0, 0.0, _last_reduced(rank, embedding), 0.0) | rank.sharded(others + rank.head)
        return
    root = rank.root if rank.shards_weights else 0.0
    yield _passing(0.0, root, rank.head * rank.weight + layer, 0.0) | rank.sharded(others - rank.largest)
    whole = max(rank.ends, 3 * sum(stage.shared_elements for stage in rank.stages)) * rank.weight
    yield _passing(0.0, root, whole + rank.largest * rank.reduced, 0.0) | rank.sharded(others)
    yield _passing(0.0, 0.0, _last_reduced(rank, rank.ends), 0.0) | rank.sharded(others)


def _last_reduced(rank: Rank, elements: float) -> float:
    """Whole gradients with the buffer of their reduction; then its result, beside those that were made last [bytes]."""
    made_last = (rank.ends - rank.head) * rank.weight
    result = elements * rank.reduced / rank.plan.shard_degree
    return elements * rank.reduced + max(elements * rank.weight, made_last + result)


def _at_head(rank: Rank) -> dict[str, float]:
    """The head's gradient, in the type of its accumulation, beside the gradient of the logits in fp32.

    A ring has two sums on their way and two parts to add to them at a time, of as many parts as ranks. Without one the
    gradient is there whole, and this rank's part of the sum beside it.
    """
    gathered = rank.head * rank.weight if rank.shards_weights else 0.0
    gradient = rank.head * gradient_bytes(rank.job)
    if rank.ring_parts:
        gradient *= min(1.0, rank.ring_parts / rank.plan.shard_degree)
    elif rank.frees_gradients:
        gradient *= 1 + 1 / rank.plan.shard_degree
    return _passing(rank.activations, gathered, gradient, 0.0) | {"logits_and_loss": rank.logits}


def _by_compiler(rank: Rank) -> Iterator[dict[str, float]]:
    """XLA: layers, gathered one by one, each with its gradients before they are reduced."""
    ahead = rank.software.prefetch_units
    layer = gathered_bytes(rank.largest, 0.0, rank.weight, ahead) if rank.shards_weights else 0.0
    logits = rank.logits if rank.postpones_gradients else 0.0
    reduced = rank.largest * rank.reduced if rank.frees_gradients else 0.0
    yield _passing(rank.activations, layer, reduced, rank.workspace) | {"logits_and_loss": logits}


def _in_their_place(rank: Rank) -> Iterator[dict[str, float]]:
    """Gradients have memory all along; those of a sharded layer wait whole, and in a buffer, to be reduced.

    Where modules gather their own weights, so does what waits: one weight's, and a bucket of them.
    """
    plan, software = rank.plan, rank.software
    one, live = rank.largest_weight, software.live_parameters
    gathered = 0.0
    if plan.zero_stage == 2:
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
    elif _reduces(plan):
        buffers = min(software.gradient_bucket, rank.largest * rank.reduced)
    yield _passing(rank.activations, gathered, buffers, rank.workspace)


BACKWARD: Mapping[str, Callable[[Rank], Iterator[dict[str, float]]]] = MappingProxyType(
    {"late": _as_they_are_made, "backward": _by_compiler, "step": _in_their_place}
)
"""``gradient_life`` of a stack -> moments of its backward."""


def _reduces(plan: Parallelism) -> bool:
    return plan.data * plan.context > 1


def _passing(activations: float, gathered: float, buffers: float, workspace: float) -> dict[str, float]:
    return {
        "activations": activations,
        "gathered_weights": gathered,
        "gradient_buffers": buffers,
        "workspace": workspace,
    }
