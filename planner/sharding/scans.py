"""What a linear recurrence over the sequence costs on one device."""

from typing import TYPE_CHECKING

from cost_models.scans import ScanShape, held_bytes, scan_seconds
from planner.graph import BATCH, Block, Op
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy, input_spec

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def scan_cost(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost:
    """Kernels in chunks, on whole sequences of some groups of heads; always of 16 bits or more, as attention."""
    sizes, rule = pricer.sizes, str(op.attributes["rule"])
    groups, sequences = sizes.local("state_groups", strategy), sizes.local(BATCH, strategy)
    shape = ScanShape(
        tokens=sequences * sizes.full("seq"),
        groups=groups,
        heads=groups * sizes.full("group_heads"),
        key_dim=sizes.full("state_keys"),
        value_dim=sizes.full("state_values"),
        chunk=sizes.full("chunk"),
        sequences=sequences,
    )
    device, dtype = pricer.mesh.cluster.device, pricer.job.attention_dtype
    forward = scan_seconds(rule, shape, device, dtype).seconds
    backward = scan_seconds(rule, shape, device, dtype, "backward").seconds
    read = (block.tensor[name] for name in op.inputs)
    gradients = sum(pricer.tensor_bytes(t, input_spec(pricer.graph, t, strategy)) for t in read)
    held = max(0.0, held_bytes(rule, shape, dtype) - gradients)
    return OpCost(forward, backward, 0.0, held_backward=held)
