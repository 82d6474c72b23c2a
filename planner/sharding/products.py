"""What products of activations with weights cost on one device."""

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cost_models.compute import cast_seconds, matmul_seconds, product_dtype
from planner.graph import Block, Op
from planner.plans import NARROW
from planner.sharding.costs import OpCost
from planner.sharding.routing import device_of_groups, expert_rows, grid_on, leaving_seconds
from planner.sharding.spec import Strategy

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def matmul_cost(
    pricer: "Pricer", block: Block, op: Op, strategy: Strategy, dtype: str | None = None
) -> OpCost:
    """Products (or convolutions) with each weight; weights that share their contracted dims run as one.

    Rows are the tokens or output points, columns the weight's output dims, depth its contracted dims (filter
    taps too); a dim that input, weight and output share (experts) is a batch of products. In ``dtype``, or in
    what its tensors say.
    """
    sizes = pricer.sizes
    left, right = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    cut = frozenset(d for name in op.weights for d in block.tensor[name].dims) - {
        d for name in op.outputs for d in block.tensor[name].dims
    }
    products: dict[tuple[str, ...], float] = {}
    batches: set[str] = set()
    for weight in (block.tensor[name] for name in op.weights):
        inner = tuple(d for d in weight.dims if d in cut)
        if not inner:
            continue
        batches |= {d for d in weight.dims if d in left.dims and d not in cut}
        outer = [d for d in weight.dims if d not in cut and d not in batches]
        products[inner] = products.get(inner, 0.0) + weight.scale * math.prod(
            sizes.local(d, strategy) for d in outer
        )
    points = right if op.kind == "conv" else left
    weight_dims = {d for name in op.weights for d in block.tensor[name].dims}
    rows = points.scale * math.prod(sizes.local(d, strategy) for d in points.dims if d not in weight_dims)
    grouped = math.prod(sizes.local(d, strategy) for d in batches)
    dtype = dtype or pricer.matmul_dtype(block, left, right)
    device, width = pricer.mesh.cluster.device, pricer.element_bytes(left)
    grid = None
    if "experts" in points.dims:
        rows = expert_rows(pricer, rows * sizes.load(points, strategy), grouped, width)
        grid = grid_on(pricer.software, device)
        device = device_of_groups(pricer.software, device)
    forward = dgrad = wgrad = 0.0
    for inner, columns in products.items():
        depth = math.prod(sizes.local(d, strategy) for d in inner)
        forward += matmul_seconds(rows, columns, depth, device, dtype, grouped, width).seconds
        dgrad += matmul_seconds(rows, depth, columns, device, dtype, grouped, width).seconds
        wgrad += matmul_seconds(depth, columns, rows, device, dtype, grouped, width).seconds
        if grid is not None:
            forward += leaving_seconds(grid, device, rows, columns, grouped)
            dgrad += leaving_seconds(grid, device, rows, depth, grouped)
        if dtype in NARROW:
            forward += cast_seconds(grouped * rows * depth, device, dtype).seconds
            dgrad += cast_seconds(grouped * rows * columns, device, dtype).seconds
    return OpCost(forward, 0.0 if left.role == "input" else dgrad, wgrad)


def with_logits_again(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of a head whose loss is fused: logits are made again for their gradient, tile by tile.

    Source: marin-community/marin ``lib/levanter/src/levanter/kernels/pallas/fused_cross_entropy_loss``, of which pull
    request 8368 (August 2026) tells why gradients were multiplied in fp32.
    """
    software, device = pricer.software, pricer.mesh.cluster.device
    if not (software.repeats_logits and pricer.job.fused_loss and _makes_logits(pricer, block, op)):
        return cost
    wide = any(fnmatchcase(device.name, pattern) for pattern in software.wide_logits or ())
    found = matmul_cost(pricer, block, op, strategy, product_dtype(device, "fp32")) if wide else cost
    return cost._replace(
        backward_input=found.backward_input + cost.forward, backward_weight=found.backward_weight
    )


def _makes_logits(pricer: "Pricer", block: Block, op: Op) -> bool:
    outputs = (block.tensor[name] for name in op.outputs)
    return bool(op.weights) and block.name == pricer.graph.last and any("vocab" in t.dims for t in outputs)
