"""How published runs cut a model's layers into stages, where not evenly, and split a stage's operators otherwise."""

from collections.abc import Sequence
from itertools import accumulate

from cluster_specs.cluster import ClusterSpec
from planner.errors import InputError
from planner.evaluation.cuts import ENDS, even_cuts, sizes_of, stage_plans, stages_of
from planner.evaluation.megatron_layout import read_layout
from planner.graph import Block, Graph
from planner.operators import operator_rule
from planner.plans import Parallelism, StagePlan
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.spec import Sizes


def printed_layers(text: str) -> tuple[int, ...]:
    """Layers of each stage of a layout as Megatron writes it (``Et*4|(t*4|)*14tmL``); () where it is not one."""
    try:
        return sizes_of(read_layout(text))
    except InputError:
        return ()


def filled_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of stages that are full but for the last, which has the head, and the first where that is not enough.

    () where they divide, embedding and head counted or not, or are too few for that.
    Source: NVIDIA-NeMo/Megatron-Bridge@067f987 recipes/deepseek/h100/deepseek_v3.py (61 layers: fifteen stages of 4
    and one of 1) and perf_recipes/deepseek/h100/deepseek_v3.py (1, thirty of 2, none).
    """
    each = -(-layers // stages)
    rest = layers - each * (stages - 1)
    even = layers % stages == 0 or (layers + ENDS) % stages == 0
    return () if even or each + rest < 0 else (each + min(0, rest), *(each,) * (stages - 2), max(0, rest))


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
    return () if 0 in counts[:-1] else stages_of(counts, plan)


def with_whole_logits(graph: Graph, cluster: ClusterSpec, plan: Parallelism) -> tuple[StagePlan, ...]:
    """Stages of ``plan``, of which the last takes the loss of all words on every tensor rank, not each of its own."""
    if graph.last is None:
        return plan.stages
    head = graph.block[graph.last]
    sizes = Sizes(graph, Mesh(cluster, plan.axes), plan.micro_batch * plan.data)
    layout = named_layout(head, sizes, plan.sequence_parallel, plan.experts_over_tensor)
    whole = {op.name for op in head.ops if op.kind == "cross_entropy"}
    sharding = {
        op: {axis: dim for axis, dim in strategy if op not in whole or axis != "tensor"}
        for op, strategy in layout.items()
    }
    stages = plan.stages or stage_plans(
        plan, even_cuts(graph.num_layers, plan.pipeline * plan.virtual_stages)
    )
    return (*stages[:-1], stages[-1].model_copy(update={"sharding": {graph.last: sharding}}))


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
