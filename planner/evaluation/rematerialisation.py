"""What a rematerialisation policy does to a block, whatever its strategies."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.edges import Edge, edges_of
from planner.graph import Block, Graph, Run
from planner.operators import (
    RECOMPUTE_POLICIES,
    ROUTING_KINDS,
    UNWRAPPED_POLICIES,
    AttentionKernel,
    operator_rule,
    recompute_flops,
    recomputed_shares,
    saved_tensors,
)
from planner.sharding.mesh import EXPERT_AXES
from planner.sharding.pricing import Pricer

Layers = tuple[tuple[str, int], ...]
"""Block name and how many of it, in the order of a stage."""


LOCAL: Mapping[str, str] = MappingProxyType({"alternate": "alternate_local"})
"""Policy whose list has the exchange of tokens -> the same without it."""


class Rematerialised(NamedTuple):
    """A block under a policy."""

    repeated: Mapping[str, float]
    """Operator -> share of it that runs again."""
    kept: tuple[str, ...]
    """Tensors kept from forward to backward, in the block's order: sums over them are the same on any machine."""
    moved_again: frozenset[Edge]
    """Reshardings that the backward repeats."""
    exchanged_again: tuple[str, ...]
    """Operators whose own communication it repeats."""


def under_policy(layers: Layers, policy: str, every: int) -> tuple[tuple[str, str, int], ...]:
    """Layers by (block, policy, count), where only the first of ``every`` so many of a block is under ``policy``."""
    runs = []
    for name, count in layers:
        own = -(-count // every)
        runs += [(name, policy, own), (name, "none", count - own)]
    return tuple(run for run in runs if run[2])


def repeated_flops(
    graph: Graph, batch: int, stages: Mapping[tuple[Layers, str], int], every: int, software: SoftwareSpec
) -> float:
    """What recomputation adds for ``batch`` sequences; ``stages`` counts those of equal layers and policy."""
    total = 0.0
    for (layers, policy), count in stages.items():
        runs = under_policy(layers, policy, every)
        own = graph.model_copy(
            update={"layers": tuple(Run(block=name, count=n) for name, p, n in runs if p == policy)}
        )
        again = partial(_repeated, graph, policy=policy, kernel="flash", software=software)
        total += count * recompute_flops(own, batch, again)
    return total


def _repeated(
    graph: Graph, block: Block, policy: str, kernel: AttentionKernel, software: SoftwareSpec
) -> dict[str, float]:
    """Operators that run again -> share of each."""
    shares = recomputed_shares(graph, block, policy, kernel, stops_early=software.stops_early)
    results = _results_again(block, policy, software)
    return shares | {name: 1.0 for edge in results for name in (edge.producer, edge.consumer) if name}


def rematerialised(pricer: Pricer, block: Block, policy: str) -> Rematerialised:
    """``block`` under ``policy``. Raises ``Unsupported`` for the policy.

    Where no ranks exchange tokens, there is no exchange on a policy's list whose results could be kept.

    What a program pins as gathered is gathered again where the block is wrapped, as the policy keeps results only.
    """
    exchanges = any(pricer.mesh.size(axis) > 1 for axis in EXPERT_AXES)
    found = _on_any_mesh(pricer, block, policy if exchanges else LOCAL.get(policy, policy))
    products = {op.name for op in block.ops if pricer.pins_gathered(block, op)}
    if not products or policy in UNWRAPPED_POLICIES:
        return found
    pinned = {e for e in edges_of(block) if e.consumer in products and e.producer is not None}
    return found._replace(moved_again=found.moved_again | pinned)


def _on_any_mesh(pricer: Pricer, block: Block, policy: str) -> Rematerialised:
    """The same, but for what depends on the mesh: derived once."""
    key = ("rematerialised", block.name, policy)
    found: Rematerialised | None = pricer.tables.get(key)
    if found is None:
        kernel, software = pricer.job.attention_kernel, pricer.software
        fused, listed = software.activation_residuals == 0, software.stores_listed
        repeated = _repeated(pricer.graph, block, policy, kernel, software)
        kept = saved_tensors(block, policy, kernel, fused_activation=fused, stores_listed=listed)
        if policy in ("full", "all_but_attention"):
            again, exchanged = _moved_again(block, repeated, kernel, software), tuple(repeated)
        else:
            again, exchanged = _exchanged_again(block, repeated), _keys_again(block, policy, software)
        again |= _sent_back_again(block, policy, _results_again(block, policy, software))
        found = pricer.tables[key] = Rematerialised(repeated, kept, again, exchanged)
    return found


def _keys_again(block: Block, policy: str, software: SoftwareSpec) -> tuple[str, ...]:
    """Attention of which a wrapped block of a compiled program keeps results, not gathered keys and values."""
    dropped = software.partitioner is not None and policy not in UNWRAPPED_POLICIES
    return tuple(op.name for op in block.ops if op.kind == "attention" and dropped)


def _exchanged_again(block: Block, repeated: Collection[str]) -> frozenset[Edge]:
    """Edges that leave routing that runs again: its tokens travel once more."""
    routing = (op for op in block.ops if op.name in repeated and op.kind in ROUTING_KINDS)
    routed = {name for op in routing for name in op.outputs}
    return frozenset(edge for edge in edges_of(block) if edge.tensor in routed)


def _results_again(block: Block, policy: str, software: SoftwareSpec) -> tuple[Edge, ...]:
    """Edges from experts to the sum of what they make, of which a stack repeats both, though nothing reads the sum."""
    keeps, makers = RECOMPUTE_POLICIES[policy], {op.name: op for op in block.ops}
    whole = software.repeats_experts or not software.stops_early
    results = {op.name: op.inputs[0] for op in block.ops if op.kind == "combine" and whole}
    return tuple(
        edge
        for edge in edges_of(block)
        if results.get(edge.consumer) == edge.tensor
        and edge.producer is not None
        and not keeps(block, makers[edge.producer], edge.tensor)
    )


def _sent_back_again(block: Block, policy: str, results: Iterable[Edge]) -> frozenset[Edge]:
    """Those of ``results`` that travel once more: where the policy does not keep what has arrived."""
    keeps, readers = RECOMPUTE_POLICIES[policy], {op.name: op for op in block.ops}
    return frozenset(e for e in results if not keeps(block, readers[e.consumer], e.tensor))


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
