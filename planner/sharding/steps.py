"""What a recurrence costs: its steps, one after the other."""

from typing import TYPE_CHECKING

from cost_models.compute import matmul_seconds, stream_seconds
from planner.graph import BATCH, Block, Op
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy, input_spec

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def recurrence_cost(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost:
    """Steps x (products with weights + one kernel that reads a row and the state, and writes both).

    A kernel takes a launch at least, which is most of a small step. Each step of the backward pass has two products
    for every one, adds to the gradients of weights, reads what was kept, and moves the row's and the state's gradients.
    That frameworks sum up gradients of weights after all steps in one product, as cuDNN does, is left out.
    """
    sizes, device = pricer.sizes, pricer.mesh.cluster.device
    steps = pricer.graph.dims[str(op.attributes["over"])]
    width, rows = pricer.element_bytes(block.tensor[op.inputs[0]]), sizes.local(BATCH, strategy)

    def row_bytes(*names: str) -> float:
        tensors = (block.tensor[n] for n in names)
        return sum(pricer.tensor_bytes(t, input_spec(pricer.graph, t, strategy)) for t in tensors) / steps

    made = block.tensor[op.outputs[0]]
    share = sizes.elements(made, input_spec(pricer.graph, made, strategy)) / sizes.elements(
        made, input_spec(pricer.graph, made, ())
    )
    state = 2 * width * float(op.attributes["state"]) * sizes.full(BATCH) * share
    moved = row_bytes(*op.inputs, *op.outputs) + state
    kept = row_bytes(str(op.attributes["kept"])) if "kept" in op.attributes else 0.0
    forward = dgrad = wgrad = 0.0
    for product in str(op.attributes["products"]).split():
        name, _, summed = product.partition("=")
        depth = float(summed)
        columns = pricer.graph.elements(block.tensor[name]) / depth
        dtype = pricer.matmul_dtype(block, block.tensor[op.inputs[0]], made)
        forward += matmul_seconds(rows, columns, depth, device, dtype, 1, width).seconds
        dgrad += matmul_seconds(rows, depth, columns, device, dtype, 1, width).seconds
        wgrad += matmul_seconds(depth, columns, rows, device, dtype, 1, width).seconds
    return OpCost(
        steps * (forward + stream_seconds(moved + kept, device).seconds),
        steps * (dgrad + stream_seconds(moved + kept, device).seconds),
        steps * wgrad,
    )
