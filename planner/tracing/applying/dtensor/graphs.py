"""Graphs of PyTorch as a plan runs them: what is computed twice once, and what it recomputes a second time."""

from collections.abc import Mapping
from typing import Any

import torch

from planner.tracing.applying.sites import Site
from planner.tracing.reading.from_torch import Reading
from planner.tracing.reading.torch_calls import kind_of
from planner.tracing.reading.torch_functions import HOOKS
from planner.tracing.sharded import ShardedProgram
from planner.tracing.solving.recomputing import late_pairs

TITLE, AGAIN = "title", "again"
"""In the ``meta`` of a node: what its operator is called, and that it is a second run."""


def unlike(reading: Reading) -> str:
    """Why what runs makes other numbers than the module does on one device; empty where it makes the same."""
    if HOOKS in reading.program.applied:
        return "hooks on gradients are left out"
    for node in reading.traced.graph.nodes:
        if by_chance(node) or (kind_of(node.target) == "attention" and node.args[4]):
            return "it draws random numbers (dropout), not those of one device; eval() draws none"
    return ""


def by_chance(node: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def title_of(node: Any) -> str:
    """What the program calls an operator, of which a node may be a second run."""
    return str(node.meta[TITLE])


def planned_graph(graph: Any, sharded: ShardedProgram, sites: Mapping[str, Site], prefix: str) -> Any:
    """A graph that computes what ``graph`` does as the plan has it; titles of its operators begin with ``prefix``."""
    found = torch.fx.Graph(graph.owning_module)
    copies: dict[Any, Any] = {}
    for node in graph.nodes:
        copies[node] = found.node_copy(node, copies.__getitem__)
        copies[node].meta = {**node.meta, TITLE: prefix + node.name}
    _merge_repeats(found)
    _add_second_runs(found, sharded, sites)
    return found


def _merge_repeats(graph: Any) -> None:
    """Let readers of what is computed anew of the same arrays read what was first, as in a cleaned program."""
    first: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not by_chance(node):
            found = first.setdefault(repr((node.target, node.args, sorted(node.kwargs.items()))), node)
            if found is not node:
                node.replace_all_uses_with(found)


def _add_second_runs(graph: Any, sharded: ShardedProgram, sites: Mapping[str, Site]) -> None:
    """Give late readers nodes of their own for what the plan recomputes, just before the first of them."""
    names = {s.name for s in sharded.recomputed}
    pairs = late_pairs(sharded.program, names)
    again: dict[Any, Any] = {}
    makers: dict[Any, str] = {}

    def owner(node: Any) -> str:
        title = title_of(node)
        mine = (sites.get(t) for t in (title, f"{title}.product", *(f"{title}:{k}" for k in range(3))))
        return next((site.operation.name for site in mine if site is not None), "")

    def maker(node: Any) -> str:
        """The operator that makes what ``node`` is, or is a view of."""
        if node not in makers:
            makers[node] = owner(node) or next((m for m in map(maker, node.all_input_nodes) if m), "")
        return makers[node]

    def second(node: Any, reader: Any) -> Any:
        if node not in again and maker(node) in names and not by_chance(node):  # which would draw others
            read = {n: second(n, reader) for n in node.all_input_nodes}
            with graph.inserting_before(reader):
                again[node] = graph.node_copy(node, read.__getitem__)
            again[node].meta = {**node.meta, AGAIN: True}
        return again.get(node, node)

    for reader in list(graph.nodes) if pairs else ():
        for node in reader.all_input_nodes:
            if (maker(node), owner(reader)) in pairs:
                reader.replace_input_with(node, second(node, reader))


def last_readers(graph: Any) -> dict[Any, list[Any]]:
    """Nodes that what is returned needs, each with those that it is the last to read."""
    needed = {graph.output_node()}
    found: dict[Any, list[Any]] = {}
    seen = set[Any]()
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
            found[node] = [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)
    return found
