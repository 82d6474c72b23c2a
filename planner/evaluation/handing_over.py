"""What pipeline stages hold of what they hand to each other, and of losses that wait for their backward."""

from dataclasses import replace

from planner.evaluation.rank import Rank
from planner.evaluation.stages import StageCost
from planner.pipeline.generators import splits_backward
from planner.sharding.widths import DTYPE_BYTES


def in_flight(rank: Rank) -> float:
    """Micro-batches of which a rank holds activations; of several stages, each as many.

    One where these do not tell: some are on the host, or parts wait for gradients of weights.
    """
    kept = sum(stage.saved_bytes for stage in rank.stages)
    tells = kept and "activations" not in rank.plan.offload and not splits_backward(rank.plan.schedule)
    return rank.activations / kept if tells else 1.0


def backwards(rank: Rank) -> tuple[Rank, ...]:
    """The rank as it is in each backward of which any may be the fullest: one, if what is in flight comes again.

    Where all micro-batches are in flight at once, as under GPipe, they are so before the first backward only, which
    makes the sums of gradients; the second has these, and one micro-batch less.

    Source: pytorch/pytorch ``torch/distributed/pipelining/schedules.py`` (``ScheduleGPipe``), ``_fsdp_param.py`` of
    FSDP2 (``to_accumulated_grad_if_needed``).
    """
    plan = rank.plan
    once = plan.num_microbatches > 1 and in_flight(rank) > plan.num_microbatches - 0.5
    if not (once and plan.virtual_stages == 1 and rank.software.gradient_life == "late"):
        return (rank,)
    return replace(rank, begins=True), replace(rank, activations=rank.earlier_activations)


def receive_buffers(rank: Rank) -> float:
    """For every micro-batch, throughout the run [bytes]: none before the first stage, none behind the last."""
    if not (rank.software.receives_apart and rank.plan.pipeline > 1):
        return 0.0
    ways = sum(2 - _is_first(stage) - _is_last(stage) for stage in rank.stages)
    return ways * rank.plan.num_microbatches * rank.boundary


def handed_on(rank: Rank) -> float:
    """What micro-batches in flight have left behind: results, less inputs that are in `receive_buffers` [bytes].

    The last stage's results are logits, in the type of its products.
    """
    if not (rank.software.receives_apart and rank.plan.pipeline > 1):
        return 0.0
    logits = rank.logits * rank.weight / DTYPE_BYTES["fp32"]
    first = any(_is_first(stage) for stage in rank.stages) * rank.boundary
    last = any(map(_is_last, rank.stages)) * (logits - rank.boundary)
    return max(
        0.0, in_flight(rank) * first + (in_flight(rank) if rank.plan.virtual_stages == 1 else 1.0) * last
    )


def waiting_losses(rank: Rank) -> float:
    """Logarithms of probabilities in fp32 of micro-batches whose backward is yet to come, but for one [bytes].

    Of a rank's several stages the last begins its backward at once.
    """
    several = rank.plan.pipeline > 1 and rank.plan.virtual_stages == 1
    return max(0.0, in_flight(rank) - 1) * rank.logits if several else 0.0


def _is_last(stage: StageCost) -> bool:
    return stage.loss_bytes > 0


def _is_first(stage: StageCost) -> bool:
    return bool(stage.end_units) and not _is_last(stage)
