"""What the fullest rank holds at least, whatever the cut of the layers into stages."""

from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

from planner.pipeline.looped import round_size
from planner.search.candidates import Candidate


class Load(NamedTuple):
    """What layers of one kind put on the rank that they are on."""

    number: int
    states: float
    """Of one layer [bytes]."""
    activations: float
    """Of one layer for one micro-batch [bytes]."""


def fullest_rank(layers: tuple[Load, ...], ends: tuple[float, float], c: Candidate) -> float:
    """Least bytes of the fullest rank, whatever the cut; ``ends`` are the states of embedding and head [bytes].

    A layer of kind k takes ``s_k + f_r a_k`` on rank r, with ``f_r`` micro-batches in flight: ``p - r`` under 1F1B and
    its kin, at least one. No rank is above M only if ``sum_r x_r h_r <= M sum_r x_r`` for any ``x_r >= 0`` and what the
    ranks hold, ``h_r``. With ``x_r = 1 / (s + f_r a)`` of the commonest kind, each of its layers adds 1 to the left
    wherever it is, and any other at least the least of its bytes over theirs.
    """
    return _fullest(layers, ends, c.pipeline, most_in_flight(c))


def most_in_flight(c: Candidate) -> int:
    """Micro-batches that the first rank surely has in flight; each rank after it has one less, but at least one.

    Beside sums of gradients: where all are in flight at once, one has its backward before these are there.
    """
    return max(1, min(c.num_microbatches - 1, c.pipeline)) if c.schedule in ("1f1b", "interleaved") else 1


@lru_cache(maxsize=1 << 14)
def _fullest(layers: tuple[Load, ...], ends: tuple[float, float], pipeline: int, in_flight: int) -> float:
    """``in_flight`` micro-batches at most on any rank, one less on each rank from the end."""
    main = max(layers, key=lambda load: load.number)
    own = [main.states + min(in_flight, r) * main.activations for r in range(pipeline, 0, -1)]
    if not own[-1]:
        return 0.0
    held = ends[0] / own[0] + ends[1] / own[-1]
    for load in layers:
        # The ratio of two straight lines is least where they begin or end.
        first = (load.states + min(in_flight, pipeline) * load.activations) / own[0]
        held += load.number * min(first, (load.states + load.activations) / own[-1])
    return held / sum(1 / each for each in own)


def fullest_with_whole_layers(layers: tuple[Load, ...], ends: tuple[float, float], c: Candidate) -> float:
    """The same as layers are whole and no stage is without one; 0 of schedules whose moments are not told here [bytes].

    When a rank runs its first backward under 1F1B and interleaved 1F1B, each of its stages but the last has a round of
    micro-batches in flight, the last `in_last_stage`. So each of the former holds a layer that is no lighter than the
    lightest, and all further layers of the commonest kind are on last stages at best: one after the other where the
    rank is then the least full, which no other way is below.
    """
    if c.schedule not in ("1f1b", "interleaved"):
        return 0.0
    size = round_size(c.pipeline, c.num_microbatches) if c.virtual_stages > 1 else most_in_flight(c)
    return _with_whole_layers(layers, ends, c.pipeline, c.virtual_stages, size)


def in_last_stage(rank: int, pipeline: int, virtual_stages: int, size: int) -> int:
    """Micro-batches in flight in a rank's last stage at its first backward; ``size`` at most."""
    behind = pipeline - rank - 1
    return min(size, 1 + (2 * behind if virtual_stages > 1 else behind))


@lru_cache(maxsize=1 << 14)
def _with_whole_layers(
    layers: tuple[Load, ...], ends: tuple[float, float], pipeline: int, virtual_stages: int, size: int
) -> float:
    main = max(layers, key=lambda load: load.number)
    others = virtual_stages - 1
    least = others * min(load.states + size * load.activations for load in layers)
    own = [
        main.states + in_last_stage(rank, pipeline, virtual_stages, size) * main.activations
        for rank in range(pipeline)
    ]
    held = [least] * pipeline
    held[0] += ends[0]
    held[-1] += ends[1]
    ranks = [(before + each, each) for before, each in zip(held, own, strict=True)]
    heapify(ranks)
    fullest = max(held)
    for _ in range(main.number - others * pipeline):
        full, each = ranks[0]
        fullest = max(fullest, full)
        heapreplace(ranks, (full + each, each))
    return fullest
