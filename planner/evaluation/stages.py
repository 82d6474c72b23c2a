"""Time of one pipeline stage for one micro-batch: compute, exposed communication, gathers of sharded weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import BlockCost, Midway
from planner.evaluation.compiled import LayerBack, layer_back, most, ring_is_loop
from planner.evaluation.setting import Setting
from planner.evaluation.states import Sync, gathers_stepped
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.pipeline.generators import splits_backward
from planner.plans import Parallelism

PARTS = ("compute", "recompute", "tensor", "context", "expert", "data", "overlap_slowdown", "launch")
"""Where the time of a stage goes; communication by the axis it crosses, and only what is exposed."""

Place = Literal["first", "layer", "last"]
"""Embedding, one of the layers, or head and loss."""


class Host(NamedTuple):
    """What the host does to a stage."""

    bandwidth: float | None
    """Of a device's link to it [bytes/s]."""
    check: float = 0.0
    """Time for each rank of a tensor-parallel collective, where the stack checks these [s]."""


class UnitCost(NamedTuple):
    """A block with what its weights' communication costs under the plan's ZeRO stage."""

    block: BlockCost
    sync: Sync
    place: Place = "layer"
    looked_up: bool = False
    """Its table is not gathered: ranks exchange what they find."""
    in_rows: float = 0.0
    """Elements, and padding, of a rank's part of such a table that is laid out again by rows."""


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


class _Pass(NamedTuple):
    """One direction through one block."""

    seconds: float
    exposed_data: float
    slowdown: float


def _overlapped(compute: float, other: float, hidden: float, copied: float, software: SoftwareSpec) -> _Pass:
    """``hidden`` collectives and ``copied`` offload run beside ``compute`` as far as they can; the rest is exposed.

    Collectives slow what runs beside them, as they use its units; copies have engines of their own.
    """
    moved = hidden + copied
    beside = min(moved, software.overlap_data * compute)
    slowdown = software.overlap_slowdown * beside * hidden / moved if moved else 0.0
    return _Pass(compute + other + slowdown + moved - beside, moved - beside, slowdown)


def _activation_copy_seconds(unit: UnitCost, plan: Parallelism, bandwidth: float | None) -> float:
    """Time to move a layer's kept activations to the host, or back; beside compute like a gather.

    Logits stay: the backward begins with them.
    """
    if "activations" not in plan.offload or bandwidth is None or unit.place != "layer":
        return 0.0
    return plan.offload_share * unit.block.saved_bytes / bandwidth


def host_of(setting: Setting, plan: Parallelism) -> Host:
    """The host's part in the plan."""
    software = setting.software
    inside = plan.tensor <= setting.cluster.devices_per_node
    check = software.host_check if inside else software.host_check_network
    return Host(setting.cluster.device.host_bandwidth, check)


def gathers_weights(plan: Parallelism, software: SoftwareSpec) -> tuple[bool, bool]:
    """Whether each micro-batch gathers weights (before forward, again before backward).

    ZeRO-3 frees them after each pass, as does offload. ZeRO-2 as FSDP's SHARD_GRAD_OP keeps them from forward to
    backward; in a pipeline they stay for the whole step (`gathers_stepped`).
    """
    if "weights" in plan.offload:
        return True, True
    frees = plan.zero_stage == 3
    return frees or (plan.zero_stage == 2 and not gathers_stepped(plan, software)), frees


def gathers_again(place: Place, plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether the weights of a unit at ``place`` are gathered for the backward as well."""
    return gathers_weights(plan, software)[1] and (place == "layer" or software.regathers_ends)


def gathered_again(
    sync: Sync, place: Place, plan: Parallelism, software: SoftwareSpec
) -> tuple[float, float]:
    """Seconds and bytes of the gather for the backward of a unit at ``place``: of what is kept of its weights."""
    if not gathers_again(place, plan, software):
        return 0.0, 0.0
    other = plan.secondary_degree is not None
    return (sync.again, sync.again_bytes) if other else (sync.gather, sync.gather_bytes)


def gathers_in_rings(unit: UnitCost, plan: Parallelism, software: SoftwareSpec) -> float:
    """How often a micro-batch gathers all weights of ``unit`` in rings: beside the one product that reads each."""
    if unit.place != "layer":
        return 0.0
    lone, backward = unit.block.lone, gathers_again(unit.place, plan, software)
    return gathers_weights(plan, software)[0] * lone.forward + backward * lone.backward


def reduces_every_microbatch(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether gradients are reduce-scattered after every micro-batch: they are stored sharded, or on the host."""
    whole = software.accumulates_whole == "always"
    whole |= software.accumulates_whole == "in pipelines" and plan.pipeline > 1
    return not whole if plan.zero_stage >= 2 else "weights" in plan.offload


def sums_every_microbatch(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether gradients are summed over copies of states, or of shards of them, after every micro-batch."""
    if software.sums_copies == "scattered":
        return reduces_every_microbatch(plan, software)
    return software.sums_copies == "always"


class _UnitTime(NamedTuple):
    """One block for one micro-batch [s]."""

    forward: float
    backward_input: float
    backward_weight: float
    parts: Mapping[str, float]


def _unit_time(unit: UnitCost, plan: Parallelism, software: SoftwareSpec, host: Host) -> _UnitTime:
    """Forward beside its gather, backward beside the next gather and the reduction of its gradients.

    A compiled program may run nothing beside some of that reduction (`SoftwareSpec.sums_alone`).
    Whatever the backward waits for delays the gradient of the inputs, on which the stage before waits.
    """
    block, sync, place = unit.block, unit.sync, unit.place
    gather_forward = gathers_weights(plan, software)[0]
    gather_backward = gathers_again(place, plan, software)
    activations = _activation_copy_seconds(unit, plan, host.bandwidth)
    # The link works in both directions at once: weights come while activations leave, gradients leave while both come.
    copied_forward = max(activations, sync.fetch * gather_forward)
    copied_backward = max(activations + sync.fetch * gather_backward, sync.store)
    gathered = sync.gather * gather_forward + sync.ring * gathers_in_rings(unit, plan, software)
    again, _ = gathered_again(sync, place, plan, software)
    reduces = reduces_every_microbatch(plan, software)
    reduced, alone = again + (sync.reduce - sync.reduce_alone) * reduces, sync.reduce_alone * reduces
    gradients = block.backward_input + block.backward_weight
    comm_forward, comm_backward = sum(block.comm_forward.values()), sum(block.comm_backward.values())
    unpacked = sync.unpack * gather_forward
    sorted_back = sync.unpack * gather_backward + sync.pack * reduces
    front = _overlapped(block.forward, comm_forward + unpacked, gathered, copied_forward, software)
    other = comm_backward + alone + sorted_back
    back = _overlapped(gradients + block.recompute, other, reduced, copied_backward, software)
    issue_forward = block.host_forward + host.check * block.ranks_forward
    issue_backward = block.host_backward + host.check * block.ranks_backward
    waits_forward = max(0.0, issue_forward + software.host_collective * gather_forward - front.seconds)
    waits_backward = max(0.0, issue_backward + software.host_collective * gather_backward - back.seconds)
    parts = {
        "launch": waits_forward + waits_backward,
        "compute": block.forward + gradients,
        "recompute": block.recompute,
        "data": unpacked + front.exposed_data + back.exposed_data + alone + sorted_back,
        "overlap_slowdown": front.slowdown + back.slowdown,
    }
    _add_all(parts, block.comm_forward, 1)
    _add_all(parts, block.comm_backward, 1)
    forward, backward = front.seconds + waits_forward, back.seconds + waits_backward
    return _UnitTime(forward, backward - block.backward_weight, block.backward_weight, parts)


def unit_seconds(unit: UnitCost, plan: Parallelism, software: SoftwareSpec, host: Host) -> float:
    """Forward and backward of a unit within a stage, for one micro-batch [s]."""
    time = _unit_time(unit, plan, software, host)
    return time.forward + time.backward_input + time.backward_weight


def _add_all(total: dict[str, float], parts: Mapping[str, float], count: float) -> None:
    for name, value in parts.items():
        total[name] = total.get(name, 0.0) + count * value


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


def _gathered(unit: UnitCost, plan: Parallelism, software: SoftwareSpec) -> tuple[float, dict[str, float]]:
    """What a unit's gathers bring in a step, and what is sent for them as rings and sums [bytes]."""
    first = gathers_weights(plan, software)[0]
    _, again = gathered_again(unit.sync, unit.place, plan, software)
    times = first + gathers_again(unit.place, plan, software)
    rings = gathers_in_rings(unit, plan, software) * unit.sync.ring_bytes
    further = {"send": rings, "all_reduce": times * unit.sync.summed_bytes}
    return first * unit.sync.gather_bytes + again, {name: more for name, more in further.items() if more}


def stage_cost(
    units: Sequence[tuple[UnitCost, int]], plan: Parallelism, software: SoftwareSpec, host: Host
) -> StageCost:
    """Add up the blocks of one stage, each with its count; its first gather has nothing to hide behind."""
    times = [(_unit_time(unit, plan, software, host), count) for unit, count in units]
    blocks = [(unit.block, count) for unit, count in units if unit.place != "last"]
    heads = [unit.block for unit, _ in units if unit.place == "last"]
    layers = [unit.block for unit, _ in units if unit.place == "layer"]
    syncs = (unit.sync for unit, _ in units if unit.sync.gather or unit.sync.fetch)
    waited = next(syncs, Sync()) if gathers_weights(plan, software)[0] else Sync()
    first_gather = waited.fetch + waited.gather
    parts = dict.fromkeys(PARTS, 0.0) | {"data": first_gather}
    sent: dict[str, float] = {}
    gathered = 0.0
    weights: dict[tuple[str, ...], float] = {}
    frozen: list[FrozenGroup] = []
    sync = Sync()
    for (unit, count), (time, _) in zip(units, times, strict=True):
        _add_all(parts, time.parts, count)
        _add_all(sent, unit.block.sent_bytes, count)
        for group in unit.block.weights:
            weights[group.sync_axes] = weights.get(group.sync_axes, 0.0) + count * group.elements
        frozen += [group.times(count) for group in unit.block.frozen]
        sync = sync.plus(unit.sync.times(count))
        brought, further = _gathered(unit, plan, software)
        gathered += count * brought
        _add_all(sent, further, count)
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
        end_units=tuple(_elements(unit.block) for unit, _ in units if unit.place != "layer"),
        weights=tuple(WeightGroup(axes, elements) for axes, elements in weights.items()),
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
