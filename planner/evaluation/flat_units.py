"""Moments of the first FSDP's backward: a unit's weights are views of one flat parameter, and so are its gradients.

Gradients of a unit's weights come one by one; autograd joins them to that of the flat parameter, once all are there.
Then the unit's gathered weights go, its gradient is cast to the type of the wire where that is another, and reduced to
a shard of its own memory. The unit before is gathered ahead. Embedding and head, which the root holds, wait for each
other. Within ``no_sync`` the gradient of the flat parameter stays as it is, and later ones are added to it.

Source: pytorch/pytorch ``torch/distributed/fsdp/_flat_param.py`` (``_get_unflat_views_unaligned``: a split, whose
backward joins) and ``torch/distributed/fsdp/_runtime_utils.py`` (``_post_backward_hook`` reshards, then
``_reduce_grad``); held to MemTracker of torch 2.13 (``benchmarks/tracking_flat.py``).
"""

from collections.abc import Iterator

from planner.evaluation.rank import Rank, passing

JOINED = 2
"""Gradients of a unit at once: those of its weights, and the flat one that they are joined to."""


def layer_done(rank: Rank, left: float, gathered: float) -> Iterator[dict[str, float]]:
    """The end of the backward of a layer, whose weights are among those ``gathered``, with activations ``left``."""
    head = rank.head * rank.weight
    yield passing(left, gathered, head + JOINED * rank.made, rank.boundary)
    own = 0.0 if rank.adds_up_whole else rank.made
    reduced = head + own + _reduced(rank, rank.largest)
    yield passing(left, gathered - rank.layer, reduced, rank.boundary)


def root_done(rank: Rank) -> Iterator[dict[str, float]]:
    """The end of the whole: embedding and head, once all layers are reduced."""
    shards = rank.sharded(rank.elements - rank.ends)
    made = rank.ends * rank.weight
    gathered = rank.root if rank.shards_weights else 0.0
    yield passing(rank.earlier_activations, gathered, JOINED * made, 0.0) | shards
    own = 0.0 if rank.adds_up_whole else made
    yield passing(rank.earlier_activations, 0.0, own + _reduced(rank, rank.ends), 0.0) | shards


def _reduced(rank: Rank, elements: float) -> float:
    """Casts of whole gradients to the type of the wire, if it is another, and the shard of their sum [bytes]."""
    cast = elements * rank.reduced if rank.reduced != rank.weight else 0.0
    return cast + elements * rank.reduced / rank.plan.shard_degree
