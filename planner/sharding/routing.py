"""What routing costs experts beyond their tokens: rows that kernels compute for nobody, masks, and copies."""

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cluster_specs.cluster import DeviceSpec
from cluster_specs.habits import GroupedGrid, RoutingKernels
from cluster_specs.software import SoftwareSpec
from cost_models.compute import aligned_rows, matmul_seconds, stream_seconds, visited_rows
from planner.graph import BATCH, Block, Op
from planner.operators import ROUTING_KINDS
from planner.plans import Job
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy, input_spec

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer

PICK_PASSES = 3
"""Over the gradient of copies that an index picked: what it is added to is cleared, it is read, and added."""


def has_experts(op: Op, block: Block) -> bool:
    """Whether ``op`` has weights of which every expert has its own."""
    return any("experts" in block.tensor[name].dims for name in op.weights) and any(
        "experts" in block.tensor[name].dims for name in op.inputs
    )


def expert_rows(pricer: "Pricer", tokens: float, experts: float, element_bytes: float) -> float:
    """Rows that a product computes for each of ``experts`` with so many ``tokens``.

    Experts with a capacity have arrays of their own; others share one, cut where the routing says.
    """
    tile = pricer.software.grouped_tile
    if tile and pricer.job.expert_capacity is None:
        return visited_rows(tokens, experts, tile)
    return aligned_rows(tokens, element_bytes)


def grid_on(software: SoftwareSpec, device: DeviceSpec) -> GroupedGrid | None:
    """The grid of grouped products on a device; None where they have all rows of their own."""
    known = software.grouped_grid.items()
    return next((grid for pattern, grid in known if fnmatchcase(device.name, pattern)), None)


def device_of_groups(software: SoftwareSpec, device: DeviceSpec) -> DeviceSpec:
    """The device with the rate that grouped products have."""
    known = software.grouped_share.items()
    share = next((share for pattern, share in known if fnmatchcase(device.name, pattern)), 1.0)
    slower = device.efficiency.model_copy(update={"matmul": device.efficiency.matmul * share})
    return device.model_copy(update={"efficiency": slower}) if share < 1 else device


def leaving_seconds(
    grid: GroupedGrid, device: DeviceSpec, rows: float, columns: float, groups: float
) -> float:
    """Of programs without rows, where every block of ``groups`` times ``rows`` has one for each group [s].

    Gradients of weights have blocks of their own group only.
    """
    blocks = math.ceil(groups * rows / grid.rows) * math.ceil(columns / grid.columns)
    return blocks * max(0.0, groups - 1) * grid.leaving / device.compute_units


def routes_by_masks(pricer: "Pricer", op: Op) -> bool:
    """Whether ``op`` multiplies tokens by a mask of their places in experts."""
    capacity = pricer.job.expert_capacity is not None
    return capacity and op.kind in ROUTING_KINDS and bool(pricer.software.routes_by_masks)


def routing_kernels(software: SoftwareSpec, job: Job) -> RoutingKernels | None:
    """The kernels that go over routed tokens one after the other; None where they are not known by themselves."""
    return software.routing_kernels if job.token_exchange == "all_to_all" else None


def kernel_passes(
    pricer: "Pricer", block: Block, op: Op, strategy: Strategy, kernels: RoutingKernels
) -> OpCost:
    """Time of the passes of ``kernels`` over the copies of tokens that ``op`` sorts by expert, or back."""
    combine = op.kind == "combine"
    routed = block.tensor[op.inputs[0] if combine else op.outputs[0]]
    copies = pricer.tensor_bytes(routed, input_spec(pricer.graph, routed, strategy))
    forward, backward = (
        (kernels.combine_forward, kernels.combine_backward)
        if combine
        else (kernels.dispatch_forward, kernels.dispatch_backward)
    )
    device = pricer.mesh.cluster.device
    back = stream_seconds(backward * copies, device).seconds
    elements = copies / pricer.element_bytes(routed)
    if combine:
        back += max(0.0, elements * kernels.outer_element - stream_seconds(2 * copies, device).seconds)
    else:
        picks = kernels.dispatch_backward / PICK_PASSES
        back = max(back, picks * elements * kernels.picked_element)
    return OpCost(
        stream_seconds(forward * copies, device).seconds,
        back,
        0.0,
        held_backward=kernels.unweighed * copies if combine else 0.0,
    )


def with_rows(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of routing where a device goes from row to row: gathers each way, or scatters as of `with_scatters`."""
    device, software = pricer.mesh.cluster.device, pricer.software
    known = software.indexed_rows.items()
    rows = next((rows for pattern, rows in known if fnmatchcase(device.name, pattern)), None)
    if rows is None or op.kind not in ROUTING_KINDS or routes_by_masks(pricer, op):
        return cost
    combine = op.kind == "combine"
    routed = block.tensor[op.inputs[0] if combine else op.outputs[0]]
    elements = pricer.sizes.elements(routed, input_spec(pricer.graph, routed, strategy))
    number = elements / pricer.sizes.local("hidden", strategy)
    summed = rows.scattered if software.scattered_rate else rows.gathered
    forward, backward = (summed, rows.gathered) if combine else (rows.gathered, summed)
    return cost._replace(
        forward=max(cost.forward, number * forward),
        backward_input=max(cost.backward_input, number * backward),
    )


def scatters(pricer: "Pricer") -> bool:
    """Whether copies of tokens are added to one another by atomic additions."""
    exchange, on_gpu = pricer.job.token_exchange, pricer.mesh.cluster.device.kind == "gpu"
    return bool(pricer.software.scattered_rate) and on_gpu and exchange in ("all_to_all", "all_gather")


def with_scatters(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of routing whose sums over a token's experts are scatters: the combine, and the dispatch's gradient.

    Source: marin-community/marin ``lib/levanter/src/levanter/grug/_moe``, ``scatter.py``, ``sonic_cute.py`` and
    ``ep_ring.py`` (``.at[tokens].add``; tokens are taken by ``x[tokens]``, whose gradient JAX scatters likewise).
    """
    rate = pricer.software.scattered_rate
    if op.kind not in ROUTING_KINDS or not rate or not scatters(pricer):
        return cost
    combine = op.kind == "combine"
    routed = block.tensor[op.inputs[0] if combine else op.outputs[0]]
    seconds = pricer.sizes.elements(routed, input_spec(pricer.graph, routed, strategy)) / rate
    if combine:
        return cost._replace(forward=max(cost.forward, seconds))
    return cost._replace(backward_input=max(cost.backward_input, seconds))


def routed_otherwise(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost | None:
    """Cost of an operator that routes by masks, or kernel by kernel; None: as any that memory traffic limits."""
    if op.kind not in ROUTING_KINDS:
        return None
    if routes_by_masks(pricer, op):
        return mask_products(pricer, block, op, strategy)
    kernels = routing_kernels(pricer.software, pricer.job)
    return None if kernels is None else kernel_passes(pricer, block, op, strategy, kernels)


def mask_products(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost:
    """Of each sequence, tokens times places: ``2 S (E C) H`` FLOPs with ``E C = S k capacity`` places.

    The mask of what experts return has weights, and so a gradient. Source: AI-Hypercomputer/maxtext@3eb77db
    ``src/MaxText/layers/moe.py`` (``dense_matmul``: "BSM,BSEC -> EBCM", "EBCM,BSEC -> BSM").
    """
    sizes, device = pricer.sizes, pricer.mesh.cluster.device
    combine = op.kind == "combine"
    routed = block.tensor[op.inputs[0] if combine else op.outputs[0]]
    tokens, hidden = sizes.local("seq", strategy), sizes.local("hidden", strategy)
    places = (
        routed.scale
        * sizes.load(routed, strategy)
        * math.prod(sizes.local(dim, strategy) for dim in ("experts", "seq"))
    )
    seconds = matmul_seconds(
        places, hidden, tokens, device, pricer.job.precision, sizes.local(BATCH, strategy)
    ).seconds
    return OpCost(seconds, 2 * seconds if combine else seconds, 0.0)
