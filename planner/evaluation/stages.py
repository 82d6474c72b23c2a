"""Time of one pipeline stage for one micro-batch: compute, exposed communication, gathers of sharded weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import BlockCost, Midway
from planner.evaluation.compiled import LayerBack, layer_back, most, ring_is_loop
from planner.evaluation.rematerialisation import under_policy
from planner.evaluation.states import Sync
from planner.evaluation.units import TimedUnit, UnitCost, add_all, gathers_weights
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.graph import Graph, counted
from planner.pipeline.generators import splits_backward
from planner.plans import Parallelism

PARTS = ("compute", "recompute", "tensor", "context", "expert", "data", "overlap_slowdown", "launch")
"""Where the time of a stage goes; communication by the axis it crosses, and only what is exposed."""


class StageShape(NamedTuple):
    """What a stage is made of; equal shapes cost the same."""

    layers: tuple[tuple[str, int], ...]
    """(block, count)."""
    first: bool
    last: bool


def shapes_of(sequence: tuple[str, ...], cuts: tuple[int, ...]) -> tuple[StageShape, ...]:
    """What the stages between ``cuts`` are made of; where an end has no layers, the stage beside it is an end, too."""
    last = len(cuts) - 2
    return tuple(_shape(sequence, part, (s == 0, s == last)) for s, part in enumerate(pairwise(cuts)))


@lru_cache(maxsize=1 << 14)
def _shape(sequence: tuple[str, ...], part: tuple[int, int], ends: tuple[bool, bool]) -> StageShape:
    return StageShape(counted(sequence[slice(*part)]), *ends)


def parts_of(
    graph: Graph, shape: StageShape, policy: str, every: int, keepers: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[tuple[str, str, tuple[str, ...]], int]]:
    """Blocks of a stage in order: each with its policy and the ends beside it that keep weights of it; its count."""
    first, last = graph.first if shape.first else None, graph.last if shape.last else None
    layers = under_policy(shape.layers, policy, every)
    before, after = (((end, "none", 1),) if end else () for end in (first, last))
    for name, own, count in (*before, *layers, *after):
        yield (name, own, tuple(end for end in keepers[name] if end in (first, last))), count


class StageCost(NamedTuple):
    """One stage for one micro-batch [s], in parts, and what it holds [bytes]."""

    forward: float
    backward_input: float
    backward_weight: float
    parts: Mapping[str, float]
    saved_bytes: float
    """Kept from forward to backward, but for head and loss."""
    largest_saved: float
    """What the one layer keeps that keeps most."""
    until_weight_bytes: float
    """There between input and weight gradient of a split backward; those of head and loss with it."""
    boundary_bytes: float
    workspace_bytes: float
    """Most that is alive for a moment inside one block, but for head and loss."""
    largest_unit: float
    """Elements of the largest layer, the unit that a framework gathers at once."""
    largest_gradients: float
    """The same without padding: what its gradients are made with."""
    weights: tuple[WeightGroup, ...]
    sync: Sync
    """All of the stage's weights, once."""
    gathered_bytes: float
    """Sent for the gathers of one micro-batch; none where weights are not sharded, or gathered once a step."""
    sent_bytes: Mapping[str, float]
    """By collective, every micro-batch."""
    loss_bytes: float = 0.0
    """What head and loss keep, and need for a moment."""
    logits_bytes: float = 0.0
    """One array of logits in fp32, or of a fused loss's chunk of them."""
    head_in_ring: bool = False
    """Its head's gradient is summed part by part as it is made."""
    hands_back_in_ring: bool = False
    """The gradient of what its head reads is summed over tensor ranks in one, too."""
    head_summed_whole: bool = False
    """It is summed whole."""
    end_units: tuple[float, ...] = ()
    """Elements of the embedding and of the head, where the stage has them."""
    tensors: float = 0.0
    """Operators with weights, each of which frameworks keep as one."""
    largest_weight: float = 0.0
    """Elements of the weight that has most."""
    largest_in_layers: float = 0.0
    """Of those in layers."""
    beside_weights: float = 0.0
    """As a layer's."""
    last_reduced: float = 0.0
    """Elements of the largest layer whose gradients are reduced last: all, but for experts that are a unit."""
    first_run: float = 0.0
    """Elements of the layers up to the end of the first loop over several that are alike."""
    frozen: tuple[FrozenGroup, ...] = ()
    """Weights that are not trained; all fields of elements count trained ones only."""
    frozen_unit: float = 0.0
    """Of the largest layer, as gathered [bytes]."""
    frozen_ends: tuple[float, ...] = ()
    """Of embedding and head, as ``end_units`` [bytes]."""
    tied_elements: float = 0.0
    """Weights that another stage holds too."""
    shared_elements: float = 0.0
    """Weights that embedding and head of the stage share."""
    midway: Midway = Midway()
    """Of the layer that holds most inside."""
    in_rows: float = 0.0
    """As of its embedding."""
    back: LayerBack = LayerBack()
    """Of its layers, under a compiler."""

    @property
    def looked_up(self) -> float:
        """Elements of the embedding, where its table is not the head's."""
        return sum(self.end_units) - (max(self.end_units, default=0.0) if self.loss_bytes else 0.0)

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward + self.backward_input + self.backward_weight


def _add_group(weights: dict[tuple[str, ...], WeightGroup], more: WeightGroup) -> None:
    """To those over the same axes."""
    weights[more.sync_axes] = weights.get(more.sync_axes, WeightGroup(more.sync_axes, 0.0)).plus(more)


def _elements(block: BlockCost) -> float:
    return sum(group.elements for group in block.weights)


def _last_reduced(block: BlockCost, software: SoftwareSpec) -> float:
    """Elements that ranks of all experts have, where these are spread and a unit of their own; else all."""
    beside = sum(group.elements for group in block.weights if "expert" in group.sync_axes)
    return beside if beside and software.experts_apart else _elements(block)


def _first_loop(units: Iterable[tuple[UnitCost, int]]) -> float:
    """Elements of the layers up to the end of the first loop over several that are alike; of all, if there is none."""
    elements = 0.0
    for block, count in ((unit.block, count) for unit, count in units if unit.place == "layer"):
        elements += count * _elements(block)
        if count > 1:
            break
    return elements


def _most_back(units: Iterable[tuple[UnitCost, int]], plan: Parallelism, software: SoftwareSpec) -> LayerBack:
    loops, found = ring_is_loop(plan, software), list[LayerBack]()
    for block, sync in ((unit.block, unit.sync) for unit, _ in units if unit.place == "layer"):
        weights = _elements(block), block.largest_weight
        found.append(layer_back(block.compiled, weights, block.lone.backward, sync, loops))
    return most(found)


def _unlooped(block: BlockCost, count: int, plan: Parallelism) -> float:
    """What a layer that is alone keeps less than in a loop; stages of pipelines are taken to be loops."""
    return block.compiled.looped if count == 1 and plan.pipeline == 1 else 0.0


def _frozen_bytes(block: BlockCost) -> float:
    return sum(group.data for group in block.frozen)


def loss_copies(splits_loss: bool, software: SoftwareSpec) -> float:
    """Temporary copies of the fp32 logits at the peak of the loss."""
    return software.split_loss_copies if splits_loss else software.loss_copies


def stage_cost(
    timed: Sequence[tuple[TimedUnit, int]], plan: Parallelism, software: SoftwareSpec
) -> StageCost:
    """Add up the blocks of one stage, each with its count; its first gather has nothing to hide behind."""
    units = [(each.unit, count) for each, count in timed]
    times = [(each.time, count) for each, count in timed]
    blocks = [(unit.block, count) for unit, count in units if unit.place != "last"]
    heads, layers = ([unit.block for unit, _ in units if unit.place == at] for at in ("last", "layer"))
    syncs = (unit.sync for unit, _ in units if unit.sync.gather or unit.sync.fetch)
    waited = next(syncs, Sync()) if gathers_weights(plan, software)[0] else Sync()
    first_gather = waited.fetch + waited.gather
    parts = dict.fromkeys(PARTS, 0.0) | {"data": first_gather}
    sent: dict[str, float] = {}
    gathered, sync = 0.0, Sync()
    weights: dict[tuple[str, ...], WeightGroup] = {}
    frozen: list[FrozenGroup] = []
    for (unit, time, brought, further), count in timed:
        add_all(parts, time.parts, count)
        add_all(sent, unit.block.sent_bytes, count)
        for group in unit.block.weights:
            _add_group(weights, group.times(count))
        frozen += [group.times(count) for group in unit.block.frozen]
        sync = sync.plus(unit.sync.times(count))
        gathered += count * brought
        add_all(sent, further, count)
    return StageCost(
        forward=first_gather + sum(n * t.forward for t, n in times),
        backward_input=sum(n * t.backward_input for t, n in times),
        backward_weight=sum(n * t.backward_weight for t, n in times),
        parts=parts,
        saved_bytes=sum(n * b.saved_bytes - _unlooped(b, n, plan) for b, n in blocks),
        largest_saved=max((b.saved_bytes for b, _ in blocks), default=0.0),
        until_weight_bytes=sum(n * unit.block.until_weight_bytes for unit, n in units),
        boundary_bytes=next((b.boundary_bytes for b, _ in reversed(blocks) if b.boundary_bytes), 0.0),
        workspace_bytes=max((b.workspace_bytes for b, _ in blocks), default=0.0),
        loss_bytes=sum(b.saved_bytes + loss_copies(b.splits_loss, software) * b.widest_bytes for b in heads),
        logits_bytes=sum(b.widest_bytes for b in heads),
        head_in_ring=any(unit.sync.reduce_ring_bytes for unit, _ in units if unit.place == "last"),
        hands_back_in_ring=any(block.sums_in_ring for block in heads),
        head_summed_whole=any(unit.sync.whole_bytes for unit, _ in units if unit.place == "last"),
        largest_unit=max((_elements(b) for b in layers), default=0.0),
        largest_gradients=max((b.elements for b in layers), default=0.0),
        last_reduced=max((_last_reduced(b, software) for b in layers), default=0.0),
        first_run=_first_loop(units),
        midway=max((b.midway for b in layers), default=Midway()),
        back=_most_back(units, plan, software),
        in_rows=max((unit.in_rows for unit, _ in units), default=0.0),
        largest_weight=max((unit.block.largest_weight for unit, _ in units), default=0.0),
        beside_weights=max((b.beside_weights for b in layers), default=0.0),
        largest_in_layers=max((b.largest_weight for b in layers), default=0.0),
        end_units=tuple(_elements(unit.block) for unit, _ in units if unit.place != "layer"),
        weights=tuple(weights.values()),
        frozen=tuple(frozen),
        frozen_unit=max((_frozen_bytes(b) for b in layers), default=0.0),
        frozen_ends=tuple(_frozen_bytes(unit.block) for unit, _ in units if unit.place != "layer"),
        tensors=sum(n * unit.block.tensors for unit, n in units),
        sync=sync,
        gathered_bytes=gathered,
        sent_bytes=sent,
    )


def split_stages(
    stages: Sequence[StageCost], plan: Parallelism, software: SoftwareSpec
) -> tuple[StageCost, ...]:
    """The stages as the plan's schedule runs them: backwards that are split take longer by a measured share."""
    if plan.pipeline == 1 or not splits_backward(plan.schedule):
        return tuple(stages)
    return tuple(_split(stage, software.split_backward) for stage in stages)


def _split(stage: StageCost, share: float) -> StageCost:
    longer = share * (stage.backward_input + stage.backward_weight)
    return stage._replace(
        backward_input=(1 + share) * stage.backward_input,
        backward_weight=(1 + share) * stage.backward_weight,
        parts={**stage.parts, "compute": stage.parts["compute"] + longer},
    )
