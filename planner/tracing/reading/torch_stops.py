"""Where a module stops gradients (``torch.no_grad``), kept for the derivative of its exported graph.

PyTorch drops both kinds of stop when it decomposes: regions without gradients become part of what is around them, and
``detach`` a view, which has a derivative. Regions that begin or end inside of ``torch.autocast`` are gone before.
"""

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._export.passes import replace_set_grad_with_hop_pass as regions

from planner.tracing.reading.torch_functions import replaced

DETACH = torch.ops.aten.detach.default
COPY = torch.ops.aten.copy_.default


@contextmanager
def kept_stops() -> Iterator[None]:
    """What is made without gradients is detached in what is exported meanwhile."""
    inference = torch.inference_mode

    def begin(region: Any) -> None:
        region.around = torch.set_grad_enabled(not region.mode)

    def end(region: Any, *error: Any) -> None:
        region.around.__exit__(*error)

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(replaced(regions, "replace_set_grad_with_hop_pass", _stopped))
        stack.enter_context(replaced(inference, "__enter__", begin))
        stack.enter_context(replaced(inference, "__exit__", end))
        yield


def _stopped(module: Any, signature: Any) -> tuple[Any, Any]:
    """In place of PyTorch's pass that makes regions parts of the module."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            with part._set_replace_hook(signature.get_replace_hook()):
                _detach_made(part.graph, signature.inputs_to_parameters)
            part.recompile()
    return module, signature


def _detach_made(graph: Any, parameters: Container[str]) -> None:
    """What leaves a region, or is written in place there; what is written to keeps the gradient that it had."""
    enabled, silent = True, dict[Any, None]()
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach_.default:
            node.target = DETACH
            node.args[0].replace_all_uses_with(node, delete_user_cb=node.__lt__)
        if node.target is torch._C._set_grad_enabled:
            enabled = node.args[0]
            graph.erase_node(node)
        elif not enabled and node.op == "call_function":
            silent[node] = None
    written = [node for node in silent if writes(node)]
    for node in dict.fromkeys([*silent, *(source for w in written for source in w.all_input_nodes)]):
        made = node in silent and not writes(node)
        users = [
            u
            for u in node.users
            if (made and u not in silent) or (u in written and (made or u.args[0] is not node))
        ]
        if users and isinstance(node.meta.get("val"), torch.Tensor):
            _detach(graph, node, users)
    for node in written:
        learned = node.args[0].name in parameters or node.args[0].meta["val"].requires_grad
        if node.target is COPY and learned:
            _pass_gradient(graph, node)


def _detach(graph: Any, node: Any, users: list[Any]) -> None:
    """Give ``users`` of a node the same without a gradient."""
    with graph.inserting_after(node):
        detached = graph.call_function(DETACH, (node,))
    place = users[0] if node.op == "placeholder" else node
    detached.meta = {**place.meta, "val": node.meta["val"]}
    node.replace_all_uses_with(detached, delete_user_cb=lambda user: user in users)


def _pass_gradient(graph: Any, copy: Any) -> None:
    """Copy such that what is written to keeps its gradient: weights that are replaced are still those that learn."""
    target, source = copy.args[:2]
    with graph.inserting_before(copy):
        detached = graph.call_function(DETACH, (target,))
        zero = graph.call_function(torch.ops.aten.sub.Tensor, (target, detached))
        moved = graph.call_function(torch.ops.aten.add.Tensor, (source, zero))
    for node in (detached, zero, moved):
        node.meta = dict(copy.meta)
    copy.update_arg(1, moved)


def writes(node: Any) -> bool:
    """Whether an operator of a graph changes what it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
