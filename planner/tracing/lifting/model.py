"""A traced program as a `Model` that plans of pipelines, data parallelism and ZeRO take."""

from collections.abc import Mapping, Sequence

from planner.graph import Block, Graph, Run, count_parameters
from planner.models.model import Model
from planner.tracing.lifting.kernels import kernels_of
from planner.tracing.lifting.naming import Naming, follows
from planner.tracing.lifting.plain import no_graph, plain
from planner.tracing.lifting.stages import Stage, stages_of
from planner.tracing.lifting.writing import BlockWriter
from planner.tracing.program import Program, elements


def model_of(program: Program, source: str = "") -> Model:
    """``program``, the loss of a model or what comes before it, as a model by its graph.

    Raises ``Unsupported`` with what a graph has no word for.
    """
    graph = graph_of(program)
    return Model(
        name=graph.name,
        family="graph",
        graph=graph,
        parameters=count_parameters(graph),
        source=source or program.source or f"traced program {program.name}",
    )


def graph_of(program: Program) -> Graph:
    """``program`` as blocks: what comes first, layers that are alike folded, what comes last."""
    lifted = kernels_of(plain(program))
    first, layers, last = stages_of(lifted)
    stages = [first, *layers, last]
    naming = Naming(lifted, stages)
    head, owners = _written(naming, first, "first")
    blocks: dict[str, Block] = {"first": head} if head.ops else {}
    names: list[str] = []
    for stage in layers:
        block, _ = _written(naming, stage, "layer")
        names += [_known(blocks, block)] * stage.count
    tail, readers = _written(naming, last, "last")
    if tail.ops:
        blocks["last"] = tail
    graph = Graph(
        name=program.name,
        dims={"seq": 1, **naming.sizes},  # without positions an input is one token
        follows=follows(naming),
        blocks=tuple(blocks.values()),
        layers=_folded(names),
        first="first" if "first" in blocks else None,
        last="last" if "last" in blocks else None,
        tied=tuple((f"first.{owners[p]}", f"last.{readers[p]}") for p in owners if p in readers),
    )
    _check_parameters(program, graph)
    return graph


def _written(naming: Naming, stage: Stage, name: str) -> tuple[Block, Mapping[str, str]]:
    writer = BlockWriter(naming, stage, name)
    return writer.block(), writer.weights


def _known(blocks: dict[str, Block], block: Block) -> str:
    """Name of a block like this one; a new one gets a number where there are others."""
    for name, other in blocks.items():
        if other.model_copy(update={"name": block.name}) == block:
            return name
    name = block.name if block.name not in blocks else f"{block.name}_{len(blocks)}"
    blocks[name] = block.model_copy(update={"name": name})
    return name


def _folded(names: Sequence[str]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for name in names:
        count = runs.pop().count + 1 if runs and runs[-1].block == name else 1
        runs.append(Run(block=name, count=count))
    return tuple(runs)


def _check_parameters(program: Program, graph: Graph) -> None:
    """No parameter may be lost or counted twice."""
    ours = sum(elements(v.shape) for v in program.values if v.role == "parameter")
    theirs = count_parameters(graph)
    if ours != theirs:
        raise no_graph(
            f"program {program.name} has {ours:,} parameters, its blocks {theirs:,} (weights that layers share)"
        )
