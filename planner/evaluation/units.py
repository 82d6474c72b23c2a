"""Time of one block under a plan, for one micro-batch: with its gathers, its reductions and what the host adds."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import BlockCost
from planner.evaluation.setting import Setting
from planner.evaluation.states import Sync, gathers_stepped
from planner.graph import Graph
from planner.plans import Parallelism
from planner.sharding.costs import Comm

Place = Literal["first", "layer", "last"]
"""Embedding, one of the layers, or head and loss."""


def place_of(graph: Graph, name: str) -> Place:
    """Where the block is in the model."""
    return "first" if name == graph.first else "last" if name == graph.last else "layer"


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

    def exchanging(self, there: Iterable[Comm], back: Iterable[Comm]) -> "UnitCost":
        """The unit with further collectives in the forward and in the backward."""
        block = self.block
        forward, backward, sent = dict(block.comm_forward), dict(block.comm_backward), dict(block.sent_bytes)
        for comms, seconds in ((there, forward), (back, backward)):
            for comm in comms:
                add_all(seconds, {comm.axes[-1]: comm.seconds}, 1)
                add_all(sent, {comm.collective: comm.sent_bytes}, 1)
        return self._replace(
            block=block._replace(comm_forward=forward, comm_backward=backward, sent_bytes=sent)
        )


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
    share = software.overlap_data if software.overlap_copies is None else software.overlap_copies
    beside = min(moved, share * compute)
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


class UnitTime(NamedTuple):
    """One block for one micro-batch [s]."""

    forward: float
    backward_input: float
    backward_weight: float
    parts: Mapping[str, float]


def _unit_time(unit: UnitCost, plan: Parallelism, software: SoftwareSpec, host: Host) -> UnitTime:
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
    gathered = (sync.gather - sync.late) * gather_forward + sync.ring * gathers_in_rings(unit, plan, software)
    again = gathered_again(sync, place, plan, software)[0] * (1 + block.lone.apart)
    reduces = reduces_every_microbatch(plan, software)
    reduced, alone = again + (sync.reduce - sync.reduce_alone) * reduces, sync.reduce_alone * reduces
    gradients = block.backward_input + block.backward_weight
    comm_forward, comm_backward = sum(block.comm_forward.values()), sum(block.comm_backward.values())
    unpacked = sync.unpack * gather_forward
    sorted_back = sync.unpack * gather_backward + sync.pack * reduces
    front = _overlapped(block.forward, comm_forward + unpacked, gathered, copied_forward, software)
    other = comm_backward + alone + sorted_back
    back = _overlapped(gradients + block.recompute, other, reduced, copied_backward, software)
    hooks = (software.host_hook or 0.0) * block.tensors if plan.zero_stage == 3 else 0.0
    issue_forward = block.host_forward + host.check * block.ranks_forward + hooks
    issue_backward = block.host_backward + host.check * block.ranks_backward
    issue_backward += hooks * (2 if block.recompute else 1)
    issue_forward += software.host_collective * gather_forward
    issue_backward += software.host_collective * gather_backward
    waits_forward = max(0.0, max(issue_forward, block.paced.forward) - front.seconds)
    waits_backward = max(0.0, max(issue_backward, block.paced.backward) - back.seconds)
    parts = {
        "launch": waits_forward + waits_backward,
        "compute": block.forward + gradients,
        "recompute": block.recompute,
        "data": unpacked + front.exposed_data + back.exposed_data + alone + sorted_back,
        "overlap_slowdown": front.slowdown + back.slowdown,
    }
    add_all(parts, block.comm_forward, 1)
    add_all(parts, block.comm_backward, 1)
    forward, backward = front.seconds + waits_forward, back.seconds + waits_backward
    return UnitTime(forward, backward - block.backward_weight, block.backward_weight, parts)


class TimedUnit(NamedTuple):
    """A unit, and what any stage of a plan has of each that is like it."""

    unit: UnitCost
    time: UnitTime
    gathered_bytes: float
    """Brought by the gathers of one micro-batch."""
    sent_bytes: Mapping[str, float]
    """For these gathers as rings and sums [bytes]."""

    @property
    def seconds(self) -> float:
        """Forward and backward within a stage, for one micro-batch."""
        return self.time.forward + self.time.backward_input + self.time.backward_weight


def timed(unit: UnitCost, plan: Parallelism, software: SoftwareSpec, host: Host) -> TimedUnit:
    """The unit under the plan."""
    return TimedUnit(unit, _unit_time(unit, plan, software, host), *_gathered(unit, plan, software))


def _gathered(unit: UnitCost, plan: Parallelism, software: SoftwareSpec) -> tuple[float, dict[str, float]]:
    """What a unit's gathers bring for one micro-batch, and what is sent for them as rings and sums [bytes]."""
    first = gathers_weights(plan, software)[0]
    again = gathered_again(unit.sync, unit.place, plan, software)[1] * (1 + unit.block.lone.apart)
    times = first + gathers_again(unit.place, plan, software)
    rings = gathers_in_rings(unit, plan, software) * unit.sync.ring_bytes
    further = {"send": rings + times * unit.sync.swapped_bytes, "all_reduce": times * unit.sync.summed_bytes}
    brought = first * (unit.sync.gather_bytes - unit.sync.late_bytes) + again
    return brought, {name: more for name, more in further.items() if more}


def add_all(total: dict[str, float], parts: Mapping[str, float], count: float) -> None:
    """Add ``count`` times the parts to those of the total."""
    for name, value in parts.items():
        total[name] = total.get(name, 0.0) + count * value
