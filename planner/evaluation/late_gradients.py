"""Moments of FSDP's steps: weights come layer by layer, gradients are made so, and leave each layer for their shards.

Source: torch.distributed FSDPMemTracker of torch 2.13; order of events within FSDP2: pytorch/pytorch
``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``.
"""

import math
from collections.abc import Iterator

from cost_models.memory import gathered_bytes
from planner.evaluation.early_steps import in_units, one_by_one, stepped_layer
from planner.evaluation.flat_units import layer_done, root_done
from planner.evaluation.rank import Rank, passing, reduces


def as_weights_are_gathered(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP2's forward: parameters that are sharded one by one are copied out of the buffer that they are gathered in.

    That of the unit before goes only once this copy is done. So it is as the first layer's weights come, and the last
    one's, or the head's where it is a unit of its own.
    """
    if not (rank.shards_weights and rank.software.pads_shards and rank.layers):
        return
    layer, head = rank.layer, rank.gathered_head
    keeps = rank.plan.zero_stage == 2
    if rank.software.wraps_ends:
        embedding = rank.root - head
        first = embedding + max(embedding, (embedding if keeps else 0.0) + 2 * layer)
        last = head + layer + (rank.whole if keeps else head)
    else:
        first = 2 * (rank.root + layer)
        last = 2 * layer + (rank.whole if keeps else rank.root + layer)
    yield passing(rank.earlier_activations, first, 0.0, rank.boundary)
    if rank.layers > 1:
        left = rank.activations - (0.0 if rank.software.wraps_ends else rank.layer_activations)
        yield passing(left, last, 0.0, 0.0) | {"cast_weights": rank.cached_casts}


def as_they_are_made(rank: Rank) -> Iterator[dict[str, float]]:
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
    if rank.job.step_in_backward and not rank.frees_gradients:
        yield from one_by_one(rank)
        return
    if not rank.frees_gradients:
        apart = reduces(plan) and not rank.software.buckets_all
        bucket = min(rank.software.gradient_bucket, rank.largest * rank.reduced) if apart else 0.0
        yield passing(rank.activations, gathered, bucket, rank.workspace)
        return
    head = rank.head * (rank.reduced if rank.software.wraps_ends else rank.weight)
    own = 0.0 if rank.adds_up_whole else rank.made
    if not rank.software.pads_shards:
        yield from _flat_units(rank, gathered, (head, rank.made))
        return
    yield from _inside(rank, rank.activations, min(gathered, rank.whole), (head, own))
    if rank.software.wraps_ends:
        yield from _head_reduced(rank)
    if rank.software.wraps_ends and not rank.adds_up_whole:
        # The head's buffer stays until the last layer's gradients are copied into theirs.
        left = rank.activations - rank.layer_activations
        waiting = head + rank.made
        yield passing(left, min(gathered, rank.whole), waiting, rank.boundary) | rank.sharded(rank.head)
    following = rank.whole - layer if plan.zero_stage == 2 else gathered
    yield from _later_layers(rank, following, 0.0 if rank.software.wraps_ends else head)
    yield from _backward_done(rank)


def _flat_units(rank: Rank, gathered: float, gradients: tuple[float, float]) -> Iterator[dict[str, float]]:
    """The first FSDP: the backward of its first two and last two layers, and the end of the whole.

    ``gathered`` while the last layer computes, ``gradients`` that wait and a layer's own [bytes]. Between the second
    and the last but one, activations go and shards come evenly.
    """
    layers = int(rank.layers)
    for done in sorted({0, 1, layers - 2, layers - 1} & set(range(layers))):
        left = max(0.0, rank.activations - done * rank.layer_activations)
        there = min(gathered, rank.whole - rank.gathered_layers(done * rank.largest))
        after = layer_done(rank, max(0.0, left - rank.layer_activations), there)
        shards = rank.sharded(done * rank.largest)
        yield from (at | shards for at in (*_inside(rank, left, there, gradients), *after))
    yield from root_done(rank)


def _head_reduced(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP where the head is a unit: its gradients, and their reduction.

    The last layer is gathered ahead; the head until its gradients are made, which stay until they are in the buffer.
    The result of the reduction has memory beside it; sums of several micro-batches are that buffer, but for the type.
    """
    ahead, head = (rank.layer, rank.gathered_head) if rank.shards_weights else (0.0, 0.0)
    whole = rank.whole if rank.plan.zero_stage == 2 else 0.0
    own, reduced = rank.head * rank.weight, rank.head * rank.reduced
    yield passing(rank.activations, whole or head + ahead, own, 0.0)
    kept = 0.0 if rank.adds_up_whole and rank.reduced == rank.weight else own
    result = in_units(rank, rank.head, rank.head) or reduced / rank.plan.shard_degree
    yield passing(rank.activations, whole - head if whole else ahead, kept + reduced + result, 0.0)


def _later_layers(rank: Rank, following: float, head: float) -> Iterator[dict[str, float]]:
    """FSDP after the last layer's backward: its gradients wait whole; then the layer before it, and the second one.

    Between these two, activations go and sharded gradients come evenly. ``head`` is what the root's gradients take,
    which stay to the end. Where gradients of several micro-batches are added up whole, the buffer takes their place.
    """
    layer = rank.layer
    buffer, own = rank.largest * rank.reduced, rank.made
    waiting = rank.last_reduced * rank.reduced
    if rank.adds_up_whole:
        waiting = own = 0.0
    left = rank.activations - rank.layer_activations
    ahead = rank.whole - layer if rank.plan.zero_stage == 2 else following - layer
    yield passing(left, ahead, head + buffer + max(own, stepped_layer(rank)), rank.boundary)
    yield from _next_layer(rank, left, following, (head + waiting, own), rank.largest)
    before = rank.layers - 2
    if before > 1:
        left = max(0.0, rank.activations - before * rank.layer_activations)
        if rank.plan.zero_stage == 2:
            following -= (before - 1) * layer
        yield from _next_layer(rank, left, following, (head + waiting, own), before * rank.largest)


def _inside(
    rank: Rank, left: float, gathered: float, gradients: tuple[float, float]
) -> Iterator[dict[str, float]]:
    """Backward of a layer: of what holds most in it, then of its attention beside gradients of the weights behind it.

    ``left`` bytes of activations, of which attention's backward may find fewer; ``gradients`` are those that wait and,
    once the layer is done, its own [bytes]. Its part of a secondary copy goes as its weights are copied out of their
    gather (``FSDPParam.to_unsharded``).
    """
    waiting, own = gradients
    parts = max(0.0, rank.secondary_weights(left) - rank.layer / (rank.plan.secondary_degree or math.inf))
    over = rank.midway.workspace_bytes
    kept = max(0.0, left + min(0.0, over))
    made = waiting + rank.midway.made * own
    yield passing(left, gathered, waiting, rank.workspace) | {"secondary_weights": parts}
    yield passing(kept, gathered, made, max(0.0, over)) | {"secondary_weights": parts}


def _next_layer(
    rank: Rank, left: float, gathered: float, gradients: tuple[float, float], done: float
) -> Iterator[dict[str, float]]:
    """A layer's weights leave the buffer of their gather; its backward, and that of its attention beside gradients of
    the weights behind it; its end, with its own gradients whole.

    ``left`` bytes of activations; ``gradients`` are those that wait and its own [bytes]; ``done`` elements before it.
    """
    waiting, own = gradients
    sharded = rank.sharded(done + (rank.head if rank.software.wraps_ends else 0.0))
    during = min(gathered, rank.whole - rank.gathered_layers(done))
    saved = rank.layer_activations
    yield passing(left, gathered, waiting, rank.boundary) | sharded
    yield from (at | sharded for at in _inside(rank, left, during, gradients))
    yield passing(max(0.0, left - saved), during, waiting + own, rank.boundary) | sharded


def _backward_done(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP at the end of the backward: gradients of the first layer, then of the root, wait whole; others are sharded.

    Where embedding and head are units of their own, the embedding's gradients come last.
    """
    layer = max(rank.made, stepped_layer(rank)) + rank.largest * rank.reduced
    others = rank.elements - rank.ends
    embedding, left = rank.ends - rank.head, rank.earlier_activations
    if rank.adds_up_whole:
        yield from _sums_complete(rank)
        return
    if rank.software.wraps_ends:
        ahead = rank.root - rank.gathered_head if rank.shards_weights else 0.0
        both = ahead + (rank.layer if rank.shards_weights else 0.0)
        yield passing(left, both, layer, rank.boundary) | rank.sharded(
            rank.elements - embedding - rank.largest
        )
        yield passing(left, ahead, layer, 0.0) | rank.sharded(rank.elements - embedding - rank.largest)
        made = rank.looked_up * rank.weight + rank.last_reduced * rank.reduced
        yield passing(left, ahead, made, 0.0) | rank.sharded(others + rank.head)
        last = _last_reduced(rank, embedding) + _made_whole(rank) * rank.weight
        yield passing(left, 0.0, last, 0.0) | rank.sharded(others + rank.head)
        return
    root = rank.root if rank.shards_weights else 0.0
    yield passing(left, root, rank.head * rank.weight + layer, 0.0) | rank.sharded(others - rank.largest)
    yield passing(left, root, _of_ends(rank) + rank.last_reduced * rank.reduced, 0.0) | rank.sharded(others)
    yield passing(left, 0.0, _last_reduced(rank, rank.ends), 0.0) | rank.sharded(others)


def _of_ends(rank: Rank) -> float:
    """Gradients of the root as a backward ends [bytes]; of a table that both ends use, two and their sum.

    Beside these is the one that tensor ranks make whole, of which each takes its part.
    """
    shared = sum(stage.shared_elements for stage in rank.stages)
    whole = rank.plan.tensor * shared if rank.plan.tensor > 1 else 0.0
    part = rank.ends - rank.head if _made_whole(rank) else 0.0
    return max(rank.head + rank.looked_up + part, whole + 3 * shared) * rank.weight


def _made_whole(rank: Rank) -> float:
    """Elements of the embedding's gradient that tensor ranks make whole; 0 where each makes its part.

    It is dealt out as it is reduced (``FSDPParam._get_grad_inner_tensor``), which a unit of its own is while autograd
    still holds it; the root is reduced once the backward is over.
    """
    return rank.looked_up if rank.looked_up > rank.ends - rank.head else 0.0


def _sums_complete(rank: Rank) -> Iterator[dict[str, float]]:
    """The end of a backward beside the sums of all gradients, which only the last micro-batch reduces.

    The first one's gradients become the sums; where these are wider, the last unit's are there in both types.
    """
    apart, kept = rank.software.wraps_ends, rank.whole if _keeps_without_sums(rank) else 0.0
    if apart and rank.reduced > rank.weight:
        made = rank.looked_up * rank.weight
        yield passing(rank.earlier_activations, kept, made, 0.0) | rank.sharded(rank.elements)
    if rank.plan.num_microbatches > 2:
        made = rank.looked_up * rank.weight if apart else _of_ends(rank)
        last = rank.root - rank.gathered_head if apart else rank.root
        gathered = kept or (last if rank.shards_weights or rank.keeps_gathered else 0.0)
        yield passing(rank.earlier_activations, gathered, made, 0.0) | rank.sharded(rank.elements)


def _keeps_without_sums(rank: Rank) -> bool:
    """Whether weights that the forward kept outlast a backward that reduces nothing.

    Those of FSDP2's units are freed (``FSDPParamGroup.post_backward``) but in pipelines, which ask for them to stay
    (``set_reshard_after_backward``); those of the first FSDP's are not (``_should_free_in_backward``).
    """
    frees = rank.software.pads_shards and rank.plan.pipeline == 1
    return rank.plan.zero_stage == 2 and not frees


def _last_reduced(rank: Rank, elements: float) -> float:
    """Whole gradients with the buffer of their reduction; then its result, beside those that were made last [bytes]."""
    made_last = (rank.ends - rank.head) * rank.weight
    largest = max(rank.head, rank.ends - rank.head) if elements == rank.ends else elements
    result = in_units(rank, elements, largest) or elements * rank.reduced / rank.plan.shard_degree
    return elements * rank.reduced + max(elements * rank.weight, made_last + result)
