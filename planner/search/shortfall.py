"""What is said of a model that does not fit: how far it is from fitting, what takes the memory, and what makes less.

Nothing is searched for here, so that no change is promised to be enough: `planner.analysis.fit` tries them.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.units import GIB
from cost_models.optimizers import OPTIMIZERS, optimizer_rule
from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import sequence_length
from planner.plans import Estimate, Offload, Parallelism, Pins
from planner.search.pins import check_pins

OFFERED = ("adamw8bit", "adafactor")
"""Optimizers that are named where the states of the job's own are large."""


class Part(NamedTuple):
    """Components of memory that the same changes make smaller."""

    words: str
    components: tuple[str, ...]
    sharded_from: int | None
    """ZeRO stage from which data-parallel ranks share them; None: only ranks that split layers or sequences do."""


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "states": Part("optimizer states", ("optimizer", "master_weights", "optimizer_temporaries"), 1),
        "gradients": Part("gradients", ("gradients", "made_gradients", "gradient_buffers"), 2),
        "weights": Part("weights", ("weights", "frozen_weights", "cast_weights", "kept_casts"), 3),
        "logits": Part("logits and the loss", ("logits_and_loss",), None),
        "activations": Part("activations", ("activations",), None),
    }
)


def shortfall(
    evaluator: Evaluator, pins: Pins, plan: Parallelism, estimate: Estimate, limit: float
) -> Infeasible:
    """Name ``plan``, which needs the least memory, of which ``limit`` [bytes] may be used, and what would help."""
    cluster, need = evaluator.cluster, estimate.memory_bytes
    sizes = {name: _bytes(part, estimate) for name, part in PARTS.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    smaller = " or ".join(_smaller(evaluator, pins, plan, largest))
    size = f"{sizes[largest] / GIB:,.1f} GiB" + (f", which {smaller} makes smaller" if smaller else "")
    needed = f"devices with {need / (1 - evaluator.job.memory_headroom) / GIB:,.0f} GiB"
    times = _times_the_devices(pins, sizes, need, limit)
    more = f"about {times:,.2f} times the devices, or {needed}" if times is not None else needed
    return Infeasible(
        f"{evaluator.graph.name} does not fit on {cluster.num_devices} x {cluster.device.name}: the plan with the "
        f"least memory (tensor {plan.tensor}, pipeline {plan.pipeline}, context {plan.context}, data {plan.data}, "
        f"ZeRO-{plan.zero_stage}, recompute {plan.recompute}, micro-batch {plan.micro_batch}) needs "
        f"{need / GIB:,.1f} GiB per device, {limit / GIB:,.1f} GiB may be used",
        f"the largest part is {PARTS[largest].words}, {size}; unchanged it takes {more}; "
        "`meshwright fit` with the same arguments finds the least change that is enough",
    )


def _bytes(part: Part, estimate: Estimate) -> float:
    return sum(estimate.memory.get(name, 0.0) for name in part.components)


def _smaller(evaluator: Evaluator, pins: Pins, plan: Parallelism, largest: str) -> Iterator[str]:
    """Options that make the largest part smaller, of those that the job does not have yet."""
    job = evaluator.job
    if largest == "states":
        if _may_offload(evaluator, pins, plan):
            yield "--offload optimizer"
        now = optimizer_rule(job.optimizer).state_bytes()
        less = [name for name in OFFERED if OPTIMIZERS[name].state_bytes() < now]
        if less:
            yield f"an optimizer with smaller states (--optimizer {' or '.join(less)})"
    if largest == "logits" and not job.fused_loss:
        yield "--fused-loss (a loss in chunks, where your training code has one)"
    if largest in ("logits", "activations") and sequence_length(evaluator.model) is None:
        yield "a shorter sequence"


def _may_offload(evaluator: Evaluator, pins: Pins, plan: Parallelism) -> bool:
    """Whether the host may have the optimizer's states, and has not."""
    if "optimizer" in plan.offload:
        return False
    offload: tuple[Offload, ...] = ("optimizer", *plan.offload)
    with suppress(InputError):
        check_pins(evaluator, pins.model_copy(update={"offload": offload}))
        return True
    return False


def _times_the_devices(pins: Pins, sizes: Mapping[str, float], need: float, limit: float) -> float | None:
    """How many times the devices have room, if what more of them share is shared evenly; None where none have."""
    shared = sum(size for name, size in sizes.items() if _is_shared(pins, PARTS[name]))
    room = limit - (need - shared)
    return shared / room if shared and room > 0 else None


def _is_shared(pins: Pins, part: Part) -> bool:
    """Whether more devices would each hold less of the part, by what the pins leave open."""
    if part.sharded_from is None:
        return pins.tensor is None or pins.context is None
    stage = {"NO_SHARD": 1, "SHARD_GRAD_OP": 2}.get(pins.sharding or "", 3)
    stage = stage if pins.zero_stage is None else pins.zero_stage
    by_data = pins.data is None and stage >= part.sharded_from
    return by_data or pins.tensor is None or pins.pipeline is None
