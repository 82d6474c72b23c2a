"""Where a module stops gradients (``torch.no_grad``), kept for the derivative of its exported graph.

PyTorch drops both kinds of stop when it decomposes: regions without gradients become part of what is around them, and
``detach`` a view, which has a derivative.
"""

from typing import Any

import torch

DETACH = torch.ops.aten.detach.default
COPY = torch.ops.aten.copy_.default


def stopped(module: Any) -> None:
    """Detach what regions without gradients make of an exported ``module``; parts of these may have them on again."""
    for part in module.modules():
        for node in part.graph.nodes:
            if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
                _detach_made(part.get_submodule(node.args[1].target))


def _detach_made(region: Any) -> None:
    """What leaves a region, or is written in place there; what is written to keeps the gradient that it had."""
    for node in list(region.graph.nodes):
        made = node.op == "call_function" and not writes(node)
        users = [
            u for u in node.users if made and u.op == "output" or writes(u) and (made or u.args[0] != node)
        ]
        if not users or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        with region.graph.inserting_after(node):
            detached = region.graph.call_function(DETACH, (node,))
        detached.meta = dict(node.meta)
        for user in users:
            user.replace_input_with(node, detached)
    for node in region.graph.nodes:
        if node.target is COPY and getattr(node.args[0].meta.get("val"), "requires_grad", False):
            _pass_gradient(region.graph, node)
    region.recompile()


def _pass_gradient(graph: Any, copy: Any) -> None:
    """Copy such that what is written to keeps its gradient: weights that are replaced are still those that learn."""
    target, source = copy.args[:2]
    with graph.inserting_before(copy):
        detached = graph.call_function(DETACH, (target,))
        zero = graph.call_function(torch.ops.aten.sub.Tensor, (target, detached))
        copy.update_arg(1, graph.call_function(torch.ops.aten.add.Tensor, (source, zero)))


def writes(node: Any) -> bool:
    """Whether an operator of a graph changes what it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
