"""What comes and goes at each moment of a step that can be its peak, beside states and gradients.

The moments are those that trackers and compilers show: the end of the forward (``loss``), the way back through the
head, and through the first layers (``backward``). There the stacks differ by when gradients come into being, so each
``gradient_life`` has a rule of its own.

Source: torch.distributed FSDPMemTracker of torch 2.13; buffer assignments of XLA compiled for TPU topologies; order of
events within FSDP2: pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.memory import gathered_bytes
from planner.evaluation.stages import StageCost, gathers_weights, loss_copies, reduces_every_microbatch
from planner.evaluation.states import gradient_bytes, reduced_bytes, weight_bytes
from planner.plans import Job, Parallelism


def kept_share(plan: Parallelism) -> float:
    """Share of what layers save that stays on the device."""
    return 1 - plan.offload_share if "activations" in plan.offload else 1.0


def adds_up_whole(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether gradients of several micro-batches wait whole for the last one."""
    several = plan.zero_stage >= 2 and plan.num_microbatches > 1
    return several and not reduces_every_microbatch(plan, software)


def stages_gathered(plan: Parallelism, software: SoftwareSpec) -> int:
    """Stages of a rank of which PyTorch's pipelines leave all but one gathered after a backward; else 1.

    Source: pytorch/pytorch ``torch/distributed/pipelining/stage.py`` (``set_reshard_after_backward(False)``).
    """
    left = software.accumulates_whole == "in pipelines" and plan.zero_stage == 3
    return plan.virtual_stages if plan.pipeline > 1 and left else 1


class Moment(NamedTuple):
    """What is there at one moment, by component [bytes]."""

    phase: str
    passing: dict[str, float]


@dataclass(frozen=True)
class Rank:
    """The stages of one pipeline rank under a plan."""

    stages: Sequence[StageCost]
    activations: float
    """In flight at their fullest [bytes]."""
    job: Job
    plan: Parallelism
    software: SoftwareSpec
    gradients: float = 0.0
    """What they come to in the end [bytes]."""

    @cached_property
    def weight(self) -> float:
        """Bytes of a gathered weight, and of its gradient where it is made."""
        return weight_bytes(self.job)

    @cached_property
    def reduced(self) -> float:
        """Bytes of a gradient on the wire."""
        return reduced_bytes(self.job, self.software)

    @cached_property
    def largest(self) -> float:
        """Elements of the largest layer."""
        return max(stage.largest_unit for stage in self.stages)

    @cached_property
    def made(self) -> float:
        """Bytes of the gradients of the largest layer where they are made, which no padding is in."""
        return max(stage.largest_gradients for stage in self.stages) * self.weight

    @cached_property
    def largest_weight(self) -> float:
        """Elements of the largest weight."""
        return max(stage.largest_weight for stage in self.stages)

    @cached_property
    def layer_activations(self) -> float:
        """Kept on the device by one layer for one micro-batch [bytes]."""
        saved = max(stage.largest_saved for stage in self.stages)
        return min(saved * kept_share(self.plan), self.activations)

    @cached_property
    def workspace(self) -> float:
        """Recomputed activations and gradients in flight of one layer [bytes]."""
        return max(stage.workspace_bytes for stage in self.stages)

    @cached_property
    def boundary(self) -> float:
        """What one block hands to the next, or the gradient of it [bytes]."""
        return max(stage.boundary_bytes for stage in self.stages)

    @cached_property
    def ends(self) -> float:
        """Elements of embedding and head."""
        return sum(elements for stage in self.stages for elements in stage.end_units)

    @cached_property
    def head(self) -> float:
        """Elements of the head, or of the table that it shares with the embedding; none on other ranks."""
        return max((e for s in self.stages if s.loss_bytes for e in s.end_units), default=0.0)

    @cached_property
    def shards_weights(self) -> bool:
        """Whether weights are gathered to be used."""
        return any(gathers_weights(self.plan))

    @cached_property
    def frees_gradients(self) -> bool:
        """Whether a layer's gradients leave it once they are made: to their shards, or to the host."""
        sharded = self.plan.zero_stage >= 2 and self.plan.shard_degree > 1
        return sharded or "weights" in self.plan.offload

    @cached_property
    def ring_parts(self) -> int:
        """Parts at a time of gradients that are summed part by part and never there whole; 0 where they are whole."""
        partitioner = self.software.partitioner
        ring = any(stage.head_in_ring for stage in self.stages)
        return partitioner.ring_parts if partitioner is not None and ring else 0

    @cached_property
    def logits(self) -> float:
        """Of the loss, in fp32 [bytes]."""
        return sum(stage.logits_bytes for stage in self.stages)

    @cached_property
    def postpones_gradients(self) -> bool:
        """Whether such a sum beside tensor ranks is no loop: the head's follows the layers' backward; its logits stay.

        Each of its steps makes its part of their gradient in 16 bits, which is never there whole.
        """
        plan, partitioner = self.plan, self.software.partitioner
        if partitioner is None or not self.ring_parts or plan.tensor == 1:
            return False
        return plan.shard_degree == partitioner.unrolled_ranks

    @cached_property
    def elements(self) -> float:
        """Of all weights of the rank, gathered."""
        return sum(g.elements for stage in self.stages for g in stage.weights)

    @cached_property
    def whole(self) -> float:
        """Bytes of all weights of the rank, gathered."""
        return self.elements * self.weight

    @cached_property
    def left_gathered(self) -> float:
        """Weights of the rank's other stages that stay gathered [bytes]."""
        stages = stages_gathered(self.plan, self.software)
        return self.whole * (stages - 1) / stages

    @cached_property
    def loops_over_microbatches(self) -> bool:
        """Whether one program runs micro-batches in a loop, each of which makes gradients beside the sums."""
        compiled = self.software.gradient_life == "backward"
        return compiled and self.plan.num_microbatches > 1 and self.plan.pipeline == 1

    @cached_property
    def adds_up_whole(self) -> bool:
        """As the function of this name."""
        return adds_up_whole(self.plan, self.software)

    def sharded(self, elements: float) -> dict[str, float]:
        """Gradients of so many weights, reduced; with more micro-batches those of all are there all along."""
        if self.plan.num_microbatches > 1 or not self.elements:
            return {}
        return {"gradients": self.gradients * max(0.0, elements) / self.elements}


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
        ends = [elements for stage in rank.stages for elements in stage.end_units]
        gathered = max(ends, default=0.0) if rank.software.wraps_ends else rank.ends
        gathered = (gathered + (rank.largest if rank.software.loss_in_root else 0.0)) * rank.weight
    loss = sum(stage.loss_bytes for stage in rank.stages)
    if rank.postpones_gradients:
        loss -= loss_copies(rank.plan, rank.software) * rank.logits
    return {"gathered_weights": gathered, "logits_and_loss": loss}


def _as_they_are_made(rank: Rank) -> Iterator[dict[str, float]]:
    """FSDP: gradients are copied into a buffer in the type of the wire, which stays until the next layer's are.

    The layer after the one that computes is gathered ahead, or as many as there are.
    """
    plan = rank.plan
    layer, root = rank.largest * rank.weight, 0.0 if rank.software.wraps_ends else rank.ends
    gathered = 0.0
    if plan.zero_stage == 2:
        gathered = rank.whole
    elif rank.shards_weights:
        gathered = gathered_bytes(rank.largest, root, rank.weight, rank.software.prefetch_units)
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
    ahead, head = (rank.largest * rank.weight, rank.head * rank.weight) if rank.shards_weights else (0.0, 0.0)
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
    layer, inner = rank.largest * rank.weight, rank.elements - rank.ends
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
    during = min(gathered, rank.whole - done * rank.weight)
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
    root = rank.ends * rank.weight if rank.shards_weights else 0.0
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
