"""How software that balances its pipelines by cost cuts a model's layers into stages."""

from collections.abc import Sequence
from itertools import accumulate

from planner.graph import Block, Graph
from planner.operators import operator_rule
from planner.plans import Parallelism, StagePlan


def balanced_stages(graph: Graph, plan: Parallelism) -> tuple[StagePlan, ...]:
    """Stages of about the same multiplied weights, as nanotron cuts them; () where one would stay empty.

    Blocks go to a stage until their sum reaches the stage's part of the whole; the head counts as a block, so that
    the last stage has fewer layers. The source cited goes on where the sum is exactly the part; published runs of
    which that is true (a head of four layers' weights beside 16 layers) took the time and the memory of stages that
    end there.
    Source: huggingface/nanotron@67c5ebb src/nanotron/models/base.py build_model, models/llama.py.
    """
    layers = [_multiplied(graph, graph.block[name]) for name in graph.sequence]
    head = _multiplied(graph, graph.block[graph.last]) if graph.last else 0
    counts = layers_of_stages(layers, head, plan.pipeline)
    if 0 in counts[:-1]:
        return ()
    ends = list(accumulate(counts))
    each = plan.num_devices // plan.pipeline
    sizes = {"tensor": plan.tensor, "context": plan.context, "expert": plan.expert}
    mesh = sizes | {"data": plan.data // plan.expert}
    return tuple(
        StagePlan(blocks=(end - count, end), devices=(s * each, (s + 1) * each), mesh=mesh)
        for s, (end, count) in enumerate(zip(ends, counts, strict=True))
    )


def layers_of_stages(layers: Sequence[float], head: float, stages: int) -> tuple[int, ...]:
    """Layers of each stage, cut where their running sum first reaches a stage's share of layers and head."""
    counts, stage, total = [0] * stages, 0, sum(layers) + head
    for reached in accumulate(layers):
        counts[stage] += 1
        if reached >= total * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return tuple(counts)


def _multiplied(graph: Graph, block: Block) -> float:
    """Elements of the weights that multiply activations."""
    products = (op for op in block.ops if operator_rule(op).arithmetic == "matmul")
    return sum(graph.elements(block.tensor[name]) for op in products for name in op.weights)
