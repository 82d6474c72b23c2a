"""One pipeline rank under a plan: the sizes that its memory is made of, at whatever moment.

Elements are those of trained weights, which have gradients; bytes that are gathered are those of frozen ones, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.optimizers import optimizer_rule
from cost_models.roofline import element_bytes
from planner.evaluation.blocks import Midway
from planner.evaluation.compiled import ring_is_loop
from planner.evaluation.stages import StageCost
from planner.evaluation.states import (
    gathered_weight_bytes,
    gradient_bytes,
    lie_whole,
    reduced_bytes,
    shards_frozen,
    summed_bytes,
)
from planner.evaluation.units import gathers_weights, reduces_every_microbatch
from planner.lazy import lazy
from planner.operators import UNWRAPPED_POLICIES
from planner.plans import Job, Parallelism
from planner.sharding.widths import DTYPE_BYTES


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


HeadGradient = Literal["early", "summed", "waiting", "late"]
"""Made and summed before the layers' backward, made before and summed after, or both after."""


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
    device: str = ""
    """Its name."""
    begins: bool = False
    """The backward is that of the first micro-batch: there are no sums of gradients yet."""
    head_gradient: HeadGradient = "early"
    """When it is made and summed, beside the layers' backward."""

    @lazy
    def weight(self) -> float:
        """Bytes of a gathered weight, and of its gradient where it is made."""
        return gathered_weight_bytes(self.job, self.software)

    @lazy
    def layer_weight(self) -> float:
        """Bytes of a gathered weight of layers, of which those that are cast before they are gathered are in 8 bits.

        Source: pytorch/ao@36027d8 ``torchao/float8/fsdp_utils.py`` (``fsdp_post_all_gather``: what was gathered is the
        weight).
        """
        layers = self.elements - self.ends
        narrow = sum(g.narrow for stage in self.stages for g in stage.weights)
        share = min(1.0, narrow / layers) if layers else 0.0
        return self.weight - share * max(0.0, self.weight - element_bytes("fp8"))

    @lazy
    def reduced(self) -> float:
        """Bytes of a gradient on the wire."""
        return reduced_bytes(self.job, self.software)

    @lazy
    def largest(self) -> float:
        """Elements of the largest layer."""
        return max(stage.largest_unit for stage in self.stages)

    @lazy
    def last_reduced(self) -> float:
        """Elements of the unit of a layer that is reduced last."""
        return max(stage.last_reduced for stage in self.stages)

    @lazy
    def first_run(self) -> float:
        """Share of the layers' elements up to the end of the first loop, of which a compiled backward is the last."""
        layers = self.elements - self.ends
        return self.stages[0].first_run / layers if layers else 1.0

    @lazy
    def made(self) -> float:
        """Bytes of the gradients of the largest layer where they are made, which no padding is in."""
        return max(stage.largest_gradients for stage in self.stages) * self.weight

    @lazy
    def largest_weight(self) -> float:
        """Elements of the largest weight."""
        return max(stage.largest_weight for stage in self.stages)

    @lazy
    def layer_activations(self) -> float:
        """Kept on the device by one layer for one micro-batch [bytes]."""
        saved = max(stage.largest_saved for stage in self.stages)
        return min(saved * kept_share(self.plan), self.activations)

    @lazy
    def workspace(self) -> float:
        """Recomputed activations and gradients in flight of one layer [bytes]."""
        return max(stage.workspace_bytes for stage in self.stages)

    @lazy
    def midway(self) -> Midway:
        """The layer that holds most inside, as the backward of its attention runs."""
        return max(stage.midway for stage in self.stages)

    @lazy
    def boundary(self) -> float:
        """What one block hands to the next, or the gradient of it [bytes]."""
        return max(stage.boundary_bytes for stage in self.stages)

    @lazy
    def ends(self) -> float:
        """Elements of embedding and head."""
        return sum(elements for stage in self.stages for elements in stage.end_units)

    @lazy
    def further_states(self) -> float:
        """Optimizer states of embedding and head beyond those of as many other parameters, over all of these."""
        rule = optimizer_rule(self.job.optimizer)
        tables = sum(stage.looked_up + stage.shared_elements for stage in self.stages)
        return (rule.further_at_ends * self.ends + rule.further_at_tables * tables) / max(1.0, self.elements)

    @lazy
    def head(self) -> float:
        """Elements of the head, or of the table that it shares with the embedding; none on other ranks."""
        return max((e for s in self.stages if s.loss_bytes for e in s.end_units), default=0.0)

    @lazy
    def layers(self) -> float:
        """Elements of all layers over those of the largest."""
        return (self.elements - self.ends) / self.largest if self.largest else 0.0

    @lazy
    def earlier_activations(self) -> float:
        """In flight as a micro-batch's forward begins: those of others [bytes]."""
        return max(0.0, self.activations - kept_share(self.plan) * sum(s.saved_bytes for s in self.stages))

    @lazy
    def looked_up(self) -> float:
        """Elements of the embedding's gradient as DTensor makes it: of the whole vocabulary on every tensor rank.

        Source: pytorch/pytorch ``torch/distributed/tensor/_ops/_embedding_ops.py``, which has no rule for a backward
        that is split by rows; the memory tracker agrees.
        """
        whole = self.plan.tensor if self.software.gradient_life == "late" else 1
        return whole * (self.ends - self.head)

    @lazy
    def shards_weights(self) -> bool:
        """Whether weights are gathered to be used."""
        return any(gathers_weights(self.plan, self.software))

    @lazy
    def keeps_gathered(self) -> bool:
        """Whether weights that lie in shards stay gathered from the forward to the backward."""
        return self.plan.zero_stage == 2 and not lie_whole(self.plan, self.software)

    @lazy
    def frees_gradients(self) -> bool:
        """Whether a layer's gradients leave it once they are made: to their shards, or to the host."""
        sharded = self.plan.zero_stage >= 2 and self.plan.shard_degree > 1
        return sharded or "weights" in self.plan.offload

    @lazy
    def ring_parts(self) -> int:
        """Parts at a time of gradients that are summed part by part and never there whole; 0 where they are whole."""
        partitioner = self.software.partitioner
        ring = any(stage.head_in_ring for stage in self.stages)
        return partitioner.ring_parts if partitioner is not None and ring else 0

    @lazy
    def loops_ring(self) -> bool:
        """Whether such a sum of the head's gradient is a loop."""
        return bool(self.ring_parts) and ring_is_loop(self.plan, self.software)

    @lazy
    def sets_aside(self) -> bool:
        """Whether what the end of the step needs has memory from before the loss."""
        partitioner = self.software.partitioner
        return partitioner is not None and partitioner.sets_aside_on(self.device)

    @lazy
    def head_part(self) -> float:
        """A rank's part of the head's gradient [bytes]."""
        return self.head * gradient_bytes(self.job) / self.plan.shard_degree

    @lazy
    def early_parts(self) -> float:
        """Parts of a loop that sums the head's gradient where these have memory before the loss: one each way round."""
        return 2 * self.head_part if self.loops_ring and self.sets_aside else 0.0

    @lazy
    def further_part(self) -> float:
        """A second part of that sum, until both are added up at the end of the step [bytes].

        The first is among gradients. It is there during the layers' backward where the ring was before, or has begun.
        """
        return self.head_part if self.early_parts or (self.postpones_gradients and self.sets_aside) else 0.0

    @lazy
    def tables_in_rows(self) -> float:
        """Elements, with padding, of a looked up table whose states are laid out again before the loss."""
        return max(stage.in_rows for stage in self.stages) if self.sets_aside else 0.0

    @lazy
    def logits(self) -> float:
        """Of the loss, in fp32 [bytes]."""
        return sum(stage.logits_bytes for stage in self.stages)

    @lazy
    def postpones_gradients(self) -> bool:
        """Whether such a sum beside tensor ranks is no loop: the head's follows the layers' backward; its logits stay.

        Each of its steps makes its part of their gradient in 16 bits; at the loss that is not there whole.
        """
        plan, partitioner = self.plan, self.software.partitioner
        if partitioner is None or not self.ring_parts or plan.tensor == 1:
            return False
        return plan.shard_degree == partitioner.unrolled_ranks

    @property
    def head_gradients(self) -> tuple[HeadGradient, ...]:
        """When a compiler may make the head's gradient; it takes the time at which least is alive.

        Late ones are whole and leave only shards, or a ring's that is postponed. Where the end of the step has memory
        from before the loss, such a ring has begun early, and so are whole ones that no tensor ranks split, but a sum
        over all of a slice waits, or is done before the layers' backward where memory is short.
        """
        postponed = self.postpones_gradients and not self.sets_aside
        if not (self.software.heads_sum_last and self.head and self.frees_gradients):
            return ("early",)
        if self.ring_parts:
            return ("late",) if postponed else ("early",)
        if self.sets_aside and self.plan.tensor == 1:
            whole = any(stage.head_summed_whole for stage in self.stages)
            return ("waiting", "summed") if whole else ("early",)
        return ("early", "late")

    @lazy
    def hands_back_array(self) -> bool:
        """Whether the gradient of what the head reads is summed in a loop, which reads the logits' as an array."""
        partitioner = self.software.partitioner
        ring = any(stage.hands_back_in_ring for stage in self.stages)
        return partitioner is not None and ring and self.plan.tensor > partitioner.unrolled_ranks

    @lazy
    def elements(self) -> float:
        """Of all weights of the rank, gathered."""
        return sum(g.elements for stage in self.stages for g in stage.weights)

    @lazy
    def whole(self) -> float:
        """Bytes of all weights of the rank, gathered."""
        frozen = sum(g.data for stage in self.stages for g in stage.frozen) if self.shares_frozen else 0.0
        return self.ends * self.weight + (self.elements - self.ends) * self.layer_weight + frozen

    @lazy
    def shares_frozen(self) -> bool:
        """Whether frozen weights are gathered as well."""
        return shards_frozen(self.plan, self.software)

    @lazy
    def frozen_unit(self) -> float:
        """Bytes of the largest layer's frozen weights, gathered."""
        return max(stage.frozen_unit for stage in self.stages) if self.shares_frozen else 0.0

    @lazy
    def layer(self) -> float:
        """Bytes of the largest layer, gathered."""
        return self.largest * self.layer_weight + self.frozen_unit

    @lazy
    def gathered_ends(self) -> tuple[float, ...]:
        """Bytes of embedding and head, gathered: one after the other, where the rank has them."""
        frozen = [size if self.shares_frozen else 0.0 for s in self.stages for size in s.frozen_ends]
        trained = [elements for stage in self.stages for elements in stage.end_units]
        return tuple(e * self.weight + size for e, size in zip(trained, frozen, strict=True))

    @lazy
    def root(self) -> float:
        """Bytes of both."""
        return sum(self.gathered_ends)

    @lazy
    def gathered_head(self) -> float:
        """Bytes of the head, gathered; none on ranks without it."""
        return max(self.gathered_ends, default=0.0) if any(s.loss_bytes for s in self.stages) else 0.0

    def gathered_layers(self, elements: float) -> float:
        """Bytes of so many elements of layers, gathered with what is frozen of these."""
        frozen = elements / self.largest * self.frozen_unit if self.frozen_unit else 0.0
        return elements * self.layer_weight + frozen

    def secondary_weights(self, activations: float) -> float:
        """Parts of weights that wait for the backward where so many ``activations`` do [bytes].

        A layer's come with its activations and go with them; those of an embedding that is a unit of its own stay.
        """
        degree = self.plan.secondary_degree
        if degree is None or not activations:
            return 0.0
        apart = self.root - self.gathered_head if self.software.wraps_ends else 0.0
        return ((self.whole - self.root) * activations / self.activations + apart) / degree

    @lazy
    def cached_casts(self) -> float:
        """Casts of layers' weights that autocast keeps to the end of the forward, though no activation reads them.

        It keeps none of views, which weights of FSDP1's units are, and layers that are not computed again keep theirs
        with their activations.

        Source: pytorch/pytorch ``aten/src/ATen/autocast_mode.cpp`` (``cached_cast``: leaves that are no views).
        """
        views = self.shards_weights and not self.software.sorts_shards
        if not self.job.autocast or views or self.plan.recompute in UNWRAPPED_POLICIES:
            return 0.0
        share = 1 / self.plan.recompute_every
        return share * (self.elements - self.ends) * DTYPE_BYTES[self.job.precision]

    @lazy
    def left_gathered(self) -> float:
        """Weights of the rank's other stages that stay gathered [bytes]."""
        stages = stages_gathered(self.plan, self.software)
        return self.whole * (stages - 1) / stages

    @lazy
    def loops_over_microbatches(self) -> bool:
        """Whether one program runs micro-batches in a loop, each of which makes gradients beside the sums."""
        compiled = self.software.gradient_life == "backward"
        return compiled and self.plan.num_microbatches > 1 and self.plan.pipeline == 1

    @lazy
    def adds_up_whole(self) -> bool:
        """As the function of this name."""
        return adds_up_whole(self.plan, self.software)

    def sharded(self, elements: float) -> dict[str, float]:
        """Gradients of so many weights, reduced; with more micro-batches those of all are there all along.

        But in the first backward, whose gradients become the sums.
        """
        if not self.elements or (self.plan.num_microbatches > 1 and not self.begins):
            return {}
        if self.adds_up_whole:
            return {"gradients": max(0.0, elements) * summed_bytes(self.job, self.software)}
        return {"gradients": self.gradients * max(0.0, elements) / self.elements}


def reduces(plan: Parallelism) -> bool:
    """Whether ranks have gradients to sum."""
    return plan.data * plan.context > 1


def passing(activations: float, gathered: float, buffers: float, workspace: float) -> dict[str, float]:
    """What comes and goes while weights are gathered and gradients made, by component [bytes]."""
    return {
        "activations": activations,
        "gathered_weights": gathered,
        "gradient_buffers": buffers,
        "workspace": workspace,
    }
