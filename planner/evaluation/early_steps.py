"""Weights that are stepped within the backward, each once its gradient is there, which is freed then.

A gradient waits for nothing but its own update, beside whose temporaries it is. Of FSDP2's units it is the shard, once
all of the unit is reduced: the shards are parts of one result, which stays until the last of them is stepped.

Source: torchtitan 0.2.2 ``torchtitan/components/optimizer.py`` (``OptimizersInBackwardContainer``); torch 2.13
``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`` (``foreach_reduce`` calls ``_post_accumulate_grad_hooks``
of sharded parameters); ``torch/csrc/autograd/input_buffer.cpp`` (what is used twice waits for both gradients).
"""

from collections.abc import Iterator

from planner.evaluation.rank import Rank, passing
from planner.evaluation.states import gradient_bytes, update_bytes


def in_units(rank: Rank, elements: float, largest: float) -> float:
    """What replaces a unit's gradients once they are reduced: shards, and temporaries of the ``largest`` [bytes].

    Nothing where gradients wait for the end of the backward, which counts them as sharded.
    """
    if not rank.job.step_in_backward:
        return 0.0
    return (elements * rank.reduced + largest * _temporaries(rank)) / rank.plan.shard_degree


def stepped_layer(rank: Rank) -> float:
    """The same of the largest layer."""
    return in_units(rank, rank.largest, max(stage.largest_in_layers for stage in rank.stages))


def one_by_one(rank: Rank) -> Iterator[dict[str, float]]:
    """Without units: the head's gradient beside that of the logits, in 16 bits of fp32, and its update; a layer; at
    last the embedding's.

    Of a table that both ends use the head's part waits until the embedding's is made, and both until their sum is.
    """
    shared, weight = sum(stage.shared_elements for stage in rank.stages), gradient_bytes(rank.job)
    made = passing(rank.activations, 0.0, rank.head * weight, rank.boundary)
    yield made | {"logits_and_loss": rank.logits / 2}
    yield made | _updating(rank, 0.0 if shared else rank.head)
    for gradients, there in _in_layer(rank):
        yield there | {"gradient_buffers": shared * weight + gradients}
    left, last = rank.earlier_activations, shared or rank.looked_up
    yield passing(left, 0.0, (3 * shared or last) * weight, 0.0)
    yield passing(left, 0.0, last * weight, 0.0) | _updating(rank, last)


def _in_layer(rank: Rank) -> Iterator[tuple[float, dict[str, float]]]:
    """Gradients [bytes] beside all else in the backward of a layer: where most is in flight, at its attention, and
    where most is beside its largest weight.

    One that is compiled is one function of autograd, which gives all its gradients once it is done (torch 2.13
    ``torch/_functorch/_aot_autograd/runtime_wrappers.py``, ``AOTDispatchAutograd``).
    """
    largest, all_there = max(stage.largest_in_layers for stage in rank.stages), rank.activations
    gradient = gradient_bytes(rank.job)
    whole = rank.made / rank.weight * gradient if rank.software.fused_elementwise else 0.0
    midway = max(-all_there, rank.midway.workspace_bytes)
    yield 0.0, passing(all_there, 0.0, 0.0, rank.workspace)
    yield rank.midway.made * whole, passing(all_there, 0.0, 0.0, midway)
    if whole:
        left, beside = all_there - rank.layer_activations, rank.boundary
    else:
        left, beside = all_there, max(stage.beside_weights for stage in rank.stages)
    yield whole or largest * gradient, passing(left, 0.0, 0.0, beside) | _updating(rank, largest)


def _updating(rank: Rank, elements: float) -> dict[str, float]:
    return {"optimizer_temporaries": elements * _temporaries(rank)}


def _temporaries(rank: Rank) -> float:
    return update_bytes(rank.job, rank.plan, rank.software)
