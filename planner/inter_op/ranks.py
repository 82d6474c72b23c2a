"""Pipeline ranks that may run their stages in several ways, and the order in which they do."""

from typing import NamedTuple

import numpy as np

from planner.inter_op.partition import Array
from planner.pipeline.generators import splits_backward, stage_to_rank
from planner.pipeline.simulator import Path


class Rates(NamedTuple):
    """One way to run stages on a rank: what each kind of layer adds to a stage, and what there is without any."""

    seconds: Array
    """[kind, pass]: forward, input gradient and weight gradient of a layer [s]."""
    fixed: Array
    """[pass]: of a stage without embedding and head, besides its layers [s]."""
    after: Array
    """[kind]: what a layer adds to the time after the last backward [s]."""
    states: Array
    """[kind]: what a layer takes throughout [bytes]."""
    kept: Array
    """[kind]: what a layer keeps for each micro-batch in flight [bytes]."""
    memory: Array
    """What there is without layers, and what the embedding and the head add [bytes]."""


class Rank(NamedTuple):
    """A pipeline rank: how it may run its stages, and its memory."""

    offers: tuple[Rates, ...]
    first: Array
    """[pass]: of the stage with the embedding besides its layers, at least [s].

    It may be less than the fixed part of other stages: the embedding's first gather waits for nothing as long.
    """
    last: Array
    """[pass]: of the stage with the head, likewise."""
    room: float
    """Memory [bytes]."""

    def taken(self, first: bool, last: bool) -> Array:
        """By offer, of a rank with embedding or head or neither, but without layers [bytes]."""
        ends = np.array((1.0, first, last))
        return np.array([offer.memory @ ends for offer in self.offers])


class Order(NamedTuple):
    """A schedule by name, as `planner.pipeline.generators.generate` takes it."""

    schedule: str
    ranks: int
    virtual_stages: int
    microbatches: int


def rank_paths(order: Order) -> list[Path]:
    """For each rank all of its work, after the first micro-batch has come to it, and before the last has gone back.

    Where backwards are split, nothing has to come after a rank's own.
    """
    homes = np.array(stage_to_rank(*order[:3]))
    found = []
    for rank in range(order.ranks):
        own = homes == rank
        before = np.arange(len(homes)) < np.flatnonzero(own)[0]
        back = np.zeros_like(before) if splits_backward(order.schedule) else before
        passes = order.microbatches * own[:, None] + np.stack((before, back, back), axis=1)
        crossed = np.where(before & (homes != np.append(homes[1:], homes[-1])), 1.0 + back, 0.0)[:-1]
        found.append(Path(0.0, passes.astype(np.float64), crossed))
    return found
