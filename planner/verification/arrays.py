"""A plan's model as a task for the programs in JAX: blocks in order, parameters as arrays, inputs.

Layers that follow each other and are alike are stacked into one array for each parameter, under the path of the
first of them, so that a program runs them as a loop.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from planner.exporters.placements import LAYER, Layout, Parameter
from planner.graph import BATCH, Block, Graph
from planner.plans import Plan


def task_of(layout: Layout, plan: Plan) -> dict[str, Any]:
    """What a program needs to know of the model, as JSON."""
    graph = layout.graph
    runs = list(_runs(layout))
    return {
        "graph": graph.model_dump(mode="json"),
        "runs": runs,
        "arrays": [entry for run in runs for entry in run["arrays"]],
        "data": _data(graph, plan.job.global_batch),
        "optimizer": plan.job.optimizer,
    }


def _runs(layout: Layout) -> Iterator[dict[str, Any]]:
    graph = layout.graph
    numbers = {name: list(found) for name, found in layout.layers.items()}
    if graph.first is not None:
        yield _run(layout, graph.block[graph.first], 1, None)
    for name, layers in groupby(graph.sequence):
        count = len(list(layers))
        yield _run(layout, graph.block[name], count, numbers[name][0])
        del numbers[name][:count]
    if graph.last is not None:
        yield _run(layout, graph.block[graph.last], 1, None)


def _run(layout: Layout, block: Block, count: int, number: int | None) -> dict[str, Any]:
    arrays = [
        _entry(layout, parameter, count, number)
        for parameter in layout.parameters
        if parameter.block == block.name
    ]
    return {
        "block": block.name,
        "layers": number is not None,
        "count": count,
        "arrays": arrays,
        "tied": dict(_tied(layout.graph, block)),
    }


def _entry(layout: Layout, parameter: Parameter, count: int, number: int | None) -> dict[str, Any]:
    """One array: its dims by name, inputs before outputs, and the graph's weights that lie in it.

    Several weights lie one after the other in the columns of each of the ranks among which they are ``dealt``: a rank's
    columns are its heads', as those of Megatron Core's ``linear_qkv`` are.
    """
    dims, fused = layout.graph.dims, len(parameter.weights) > 1
    others = {d.name for d in parameter.dims}
    weights = [
        {
            "name": w.name,
            "dims": list(w.dims),
            "sizes": [dims[d] for d in w.dims],
            "fused": math.prod(dims[d] for d in w.dims if fused and d not in others),
        }
        for w in parameter.weights
    ]
    return {
        "path": parameter.path.replace(LAYER, str(number)),
        "count": count,
        "dims": [d.name for d in parameter.dims],
        "sizes": [d.extent for d in parameter.dims],
        "dealt": math.prod(layout.axes[a] for a in parameter.dims[-1].axes) if fused else 1,
        "weights": weights,
    }


def _tied(graph: Graph, block: Block) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Weight -> path of the parameter that it shares, and the dims of that one in the weight's order."""
    for first, second in graph.tied:
        owner, name = first.split(".", 1)
        reader, weight = second.split(".", 1)
        if reader == block.name:
            shared = graph.block[owner].tensor[name]
            yield weight, (shared.path, list(shared.dims))


def _data(graph: Graph, global_batch: int) -> dict[str, dict[str, Any]]:
    """Inputs of the model by name; integers are ``below`` the size of what they look up."""
    found: dict[str, dict[str, Any]] = {}
    for block, _ in graph.instances():
        for tensor in block.tensors:
            if tensor.role != "input" or tensor.name in found or tensor.dims[:1] != (BATCH,):
                continue
            found[tensor.name] = {
                "dims": list(tensor.dims),
                "sizes": [global_batch, *(graph.dims[d] for d in tensor.dims[1:])],
                "dtype": tensor.dtype,
                "below": _range(graph, block, tensor.name),
            }
    return found


def _range(graph: Graph, block: Block, name: str) -> int:
    """Numbers that an integer input may take: rows of the table, or classes of the loss, that reads it."""
    for op in block.ops:
        if name in op.inputs and op.kind == "embedding":
            return graph.dims[block.tensor[op.weights[0]].dims[0]]
        if name in op.inputs and op.kind == "cross_entropy":
            return graph.dims[block.tensor[op.inputs[0]].dims[-1]]
    return 2
