"""What a rematerialisation policy does to a block, whatever its strategies."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.edges import Edge, edges_of
from planner.graph import Block
from planner.operators import AttentionKernel, operator_rule, recomputed_shares, saved_tensors
from planner.sharding.pricing import Pricer


class Rematerialised(NamedTuple):
    """A block under a policy."""

    repeated: Mapping[str, float]
    """Operator -> share of it that runs again."""
    kept: tuple[str, ...]
    """Tensors kept from forward to backward, in the block's order: sums over them are the same on any machine."""
    moved_again: frozenset[Edge]
    """Reshardings that the backward repeats."""


def rematerialised(pricer: Pricer, block: Block, policy: str) -> Rematerialised:
    """``block`` under ``policy``; the same for every mesh, so derived once. Raises ``Unsupported`` for the policy."""
    key = ("rematerialised", block.name, policy)
    found: Rematerialised | None = pricer.tables.get(key)
    if found is None:
        kernel, software = pricer.job.attention, pricer.software
        fused, listed = software.activation_residuals == 0, software.stores_listed
        repeated = recomputed_shares(pricer.graph, block, policy, kernel)
        kept = saved_tensors(block, policy, kernel, fused_activation=fused, stores_listed=listed)
        again = _moved_again(block, repeated, kernel, software) if policy == "full" else frozenset[Edge]()
        found = pricer.tables[key] = Rematerialised(repeated, kept, again)
    return found


def _moved_again(
    block: Block, repeated: Collection[str], kernel: AttentionKernel, software: SoftwareSpec
) -> frozenset[Edge]:
    """Edges that full recomputation needs again: into operators that run again, or whose backward reads the tensor.

    All of the block's where the stack does not stop early.
    """
    if not software.stops_early:
        return frozenset(edges_of(block))
    by_name = {op.name: op for op in block.ops}
    return frozenset(
        edge
        for edge in edges_of(block)
        if edge.consumer in repeated
        or edge.tensor in operator_rule(by_name[edge.consumer]).saved(by_name[edge.consumer], block, kernel)
    )
