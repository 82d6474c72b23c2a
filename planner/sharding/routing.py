"""What routing costs experts beyond their tokens: rows that kernels compute for nobody, and products with masks."""

import math
from typing import TYPE_CHECKING

from cost_models.compute import aligned_rows, matmul_seconds, visited_rows
from planner.graph import BATCH, Block, Op
from planner.operators import ROUTING_KINDS
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def expert_rows(pricer: "Pricer", tokens: float, experts: float, element_bytes: float) -> float:
    """Rows that a product computes for each of ``experts`` with so many ``tokens``.

    Experts with a capacity have arrays of their own; others share one, cut where the routing says.
    """
    tile = pricer.software.grouped_tile
    if tile and pricer.job.expert_capacity is None:
        return visited_rows(tokens, experts, tile)
    return aligned_rows(tokens, element_bytes)


def routes_by_masks(pricer: "Pricer", op: Op) -> bool:
    """Whether ``op`` multiplies tokens by a mask of their places in experts."""
    capacity = pricer.job.expert_capacity is not None
    return capacity and op.kind in ROUTING_KINDS and bool(pricer.software.routes_by_masks)


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
