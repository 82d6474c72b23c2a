"""Closed forms of pipeline schedules: idle time, makespan and micro-batches in flight.

The simulator's witnesses: written from the papers, not from the simulator. Symbols: ``p`` ranks, ``m``
micro-batches, ``v`` chunks per rank; ``F``, ``B``, ``W`` seconds of the forward, backward-input and
backward-weight of one micro-batch on one rank (over all its chunks).

Sources: GPipe arXiv:1811.06965; 1F1B arXiv:1806.03377 and 2104.04473 (interleaved); breadth-first
arXiv:2211.05953; zero bubble arXiv:2401.10241 (table 2, section 3); ZB-V arXiv:2405.15362; DualPipe and
DualPipeV deepseek-ai/DualPipe@3da1bbe README; Chimera arXiv:2107.06925 (table 2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.errors import InputError, UnknownName


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """A pipeline whose ranks all take the same time."""

    ranks: int
    num_microbatches: int
    forward: float
    """Of one micro-batch on one rank, all its chunks [s]."""
    backward_input: float
    """Gradient of the inputs [s]."""
    backward_weight: float
    """Gradient of the weights [s]."""
    virtual_stages: int = 1
    """Chunks per rank."""

    @property
    def work(self) -> float:
        """Busy seconds of one rank: ``m (F + B + W)``."""
        return self.num_microbatches * self.microbatch

    @property
    def microbatch(self) -> float:
        """``F + B + W`` [s]."""
        return self.forward + self.backward_input + self.backward_weight


class InFlight(NamedTuple):
    """Micro-batches whose activations a rank holds at its peak, in units of one on the whole rank."""

    activations: float
    """Waiting for their backward-input."""
    weight_inputs: float = 0.0
    """Of which only what backward-weight needs is left."""


class ClosedForm(NamedTuple):
    """What is known of one schedule."""

    bubble: Callable[[PipelineShape], float]
    """Makespan less one rank's work [s]."""
    in_flight: Callable[[PipelineShape, int], InFlight]
    """On rank ``s``."""


def bubble_seconds(schedule: str, shape: PipelineShape) -> float:
    """Idle seconds of a rank from the first start to the last end, transfers taken as free.

    Raises ``UnknownName`` for a schedule, ``InputError`` where its closed form does not cover the shape.
    """
    return closed_form(schedule).bubble(shape)


def makespan(schedule: str, shape: PipelineShape) -> float:
    """Seconds from the first start to the last end: work plus bubble."""
    return shape.work + bubble_seconds(schedule, shape)


def idle_fraction(schedule: str, shape: PipelineShape) -> float:
    """Bubble over makespan; 0 for a pipeline without work."""
    span = makespan(schedule, shape)
    return bubble_seconds(schedule, shape) / span if span else 0.0


def in_flight(schedule: str, shape: PipelineShape, rank: int) -> InFlight:
    """Micro-batches held by a rank at its peak; never more than there are."""
    if not 0 <= rank < shape.ranks:
        raise InputError(f"rank {rank} is not among the {shape.ranks} ranks of the pipeline")
    held = closed_form(schedule).in_flight(shape, rank)
    activations = min(held.activations, shape.num_microbatches)
    return InFlight(activations, min(held.weight_inputs, shape.num_microbatches - activations))


def makespan_1f1b(
    ranks: int,
    num_microbatches: int,
    forward: float,
    backward_input: float,
    backward_weight: float,
    p2p: float = 0.0,
) -> float:
    """Makespan of 1F1B with a transfer of ``p2p`` seconds per hop, sent without blocking [s].

    ``(m + p - 1)(F + B + W) + 2 p2p (p - 1 + floor((p-1)(m-1)/p))``: transfers fill and drain the pipeline,
    and all but one in ``p`` micro-batches wait for the loop there and back. Exact while a transfer is shorter
    than a pass; agrees with the published bubbles of arXiv:2401.10241, table 5.
    """
    p, m = ranks, num_microbatches
    hops = 2 * (p - 1 + (p - 1) * (m - 1) // p)
    return (m + p - 1) * (forward + backward_input + backward_weight) + p2p * hops


def closed_form(schedule: str) -> ClosedForm:
    """The row of `CLOSED_FORMS`; raises ``UnknownName``."""
    if schedule not in CLOSED_FORMS:
        raise UnknownName("schedule", schedule, CLOSED_FORMS)
    return CLOSED_FORMS[schedule]


def _fill_and_drain(shape: PipelineShape) -> float:
    """``(p-1)(F+B+W)/v``; rounds of fewer than ``p`` micro-batches wait for the ring of ranks as well."""
    p, v = shape.ranks, shape.virtual_stages
    waiting = (v - 1) * max(0, p - shape.num_microbatches)
    return (p - 1 + waiting) * shape.microbatch / v


def _zb_h1(shape: PipelineShape) -> float:
    """``(p-1) F + (p-1) B`` less the ``W`` that fill it, ``min(m, p) - 1`` of them."""
    p, filled = shape.ranks, min(shape.num_microbatches, shape.ranks) - 1
    unfilled = (p - 1) * shape.backward_input - filled * shape.backward_weight
    return (p - 1) * shape.forward + max(0.0, unfilled)


def _zb_h2(shape: PipelineShape) -> float:
    """``(p-1)(F + max(0, B - 2W))``: ranks start, and so end, one forward apart.

    The paper's ``(p-1)(F+B-2W)`` is within a rank's own span: it lets each rank step the optimizer when it is
    done and validates afterwards; a step that waits for the gradient norm pays the stagger.
    """
    _needs_microbatches("zb-h2", shape, 2 * shape.ranks - 1)
    return (shape.ranks - 1) * (shape.forward + max(0.0, shape.backward_input - 2 * shape.backward_weight))


def _zb_v(shape: PipelineShape) -> float:
    """``(p-1)`` forwards of one of the two chunks, where all passes take the same."""
    f, b, w = shape.forward, shape.backward_input, shape.backward_weight
    if not (isclose(f, b) and isclose(b, w)):
        raise InputError(f"the closed form of zb-v needs equal passes, found F={f:g}, B={b:g}, W={w:g} s")
    _needs_microbatches("zb-v", shape, 2 * shape.ranks - 1)
    return (shape.ranks - 1) * f / 2


def _interleaved_zb(shape: PipelineShape) -> float:
    """``(p-1)(F + max(0, B - W))/v``."""
    _needs_microbatches("interleaved-zb", shape, shape.ranks)
    idle = shape.forward + max(0.0, shape.backward_input - shape.backward_weight)
    return (shape.ranks - 1) * idle / shape.virtual_stages


def _dualpipe(shape: PipelineShape) -> float:
    """``(p/2 - 1)(F&B + B - 3 W)``; micro-batches of both directions are counted."""
    _needs_even_ranks("dualpipe", shape)
    _needs_microbatches("dualpipe", shape, 2 * shape.ranks)
    return (shape.ranks / 2 - 1) * _serial_pair(shape)


def _dualpipev(shape: PipelineShape) -> float:
    """``(p - 1)(F&B + B - 3 W)`` of one of the two chunks."""
    _needs_microbatches("dualpipev", shape, 2 * shape.ranks)
    return (shape.ranks - 1) * _serial_pair(shape) / 2


def _serial_pair(shape: PipelineShape) -> float:
    """``F&B + B - 3 W`` of DualPipe's README, whose B has both halves; F&B = F + B where nothing overlaps."""
    backward = shape.backward_input + shape.backward_weight
    return shape.forward + 2 * backward - 3 * shape.backward_weight


def _chimera(shape: PipelineShape) -> float:
    """``(p/2 - 1)(F+B+W)``: a share ``(p-2)/(2m+p-2)`` of the makespan.

    For whole rounds of p micro-batches whose forward takes as long as their backward; else there is more.
    """
    _needs_even_ranks("chimera", shape)
    return (shape.ranks / 2 - 1) * shape.microbatch


def _needs_microbatches(schedule: str, shape: PipelineShape, least: int) -> None:
    if shape.num_microbatches < least:
        raise InputError(
            f"the closed form of {schedule} on {shape.ranks} ranks needs at least {least} micro-batches, "
            f"found {shape.num_microbatches}"
        )


def _needs_even_ranks(schedule: str, shape: PipelineShape) -> None:
    if shape.ranks % 2:
        raise InputError(f"{schedule} needs an even number of ranks, found {shape.ranks}")


def _all(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.num_microbatches)


def _one_per_later_rank(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.ranks - rank)


def _interleaved(shape: PipelineShape, rank: int) -> InFlight:
    """``2 (p-1-s) + (v-1) g + 1`` chunks, with ``g`` micro-batches to a round (``p`` where they divide)."""
    p, m, v = shape.ranks, shape.num_microbatches, shape.virtual_stages
    per_round = m // max(1, m // p)
    return InFlight((2 * (p - rank - 1) + (v - 1) * per_round + 1) / v)


def _interleaved_zb_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    v = shape.virtual_stages
    return InFlight(shape.ranks - rank / v, rank / v)


def _h1_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.ranks - rank, rank)


def _h2_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(2 * (shape.ranks - rank) - 1, 2 * rank)


def _v_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.ranks)


def _dualpipe_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.ranks + 1)


def _dualpipev_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    return InFlight(shape.ranks + 1 / 2)


def _chimera_in_flight(shape: PipelineShape, rank: int) -> InFlight:
    """``p/2 + 1`` at either end, one more per rank inwards: ``p`` in the middle, where both directions wait long."""
    return InFlight(shape.ranks // 2 + 1 + min(rank, shape.ranks - 1 - rank))


CLOSED_FORMS: Mapping[str, ClosedForm] = MappingProxyType(
    {
        "gpipe": ClosedForm(_fill_and_drain, _all),
        "1f1b": ClosedForm(_fill_and_drain, _one_per_later_rank),
        "interleaved": ClosedForm(_fill_and_drain, _interleaved),
        "breadth-first": ClosedForm(_fill_and_drain, _all),
        "zb-h1": ClosedForm(_zb_h1, _h1_in_flight),
        "zb-h2": ClosedForm(_zb_h2, _h2_in_flight),
        "zb-v": ClosedForm(_zb_v, _v_in_flight),
        "interleaved-zb": ClosedForm(_interleaved_zb, _interleaved_zb_in_flight),
        "dualpipe": ClosedForm(_dualpipe, _dualpipe_in_flight),
        "dualpipev": ClosedForm(_dualpipev, _dualpipev_in_flight),
        "chimera": ClosedForm(_chimera, _chimera_in_flight),
    }
)
"""By name of schedule."""
