"""A traced program as a `Model` that plans of pipelines, data parallelism and ZeRO take."""

from collections.abc import Sequence

from planner.graph import Block, Graph, Run, count_parameters
from planner.models.model import Model
from planner.tracing.lifting.kernels import kernels_of
from planner.tracing.lifting.mixtures import write_mixtures
from planner.tracing.lifting.naming import Naming, follows
from planner.tracing.lifting.plain import copy_first_states, no_graph, plain
from planner.tracing.lifting.recurrences import write_recurrences
from planner.tracing.lifting.spread import spread_weights
from planner.tracing.lifting.stages import stages_of
from planner.tracing.lifting.unmapped import NOTE
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
        notes=(NOTE,) if any(op.manual is not None for op in program.operations) else (),
    )


def graph_of(program: Program) -> Graph:
    """``program`` as blocks: what comes first, layers that are alike folded, what comes last."""
    found = plain(program)
    write_mixtures(found)
    found.cut_alike()
    write_recurrences(found)
    copy_first_states(found)
    spread_weights(found)
    lifted = kernels_of(found)
    first, layers, last = stages_of(lifted)
    naming = Naming(lifted, [first, *layers, last])
    blocks: dict[str, Block] = {}
    names: list[str] = []
    owners: dict[str, list[str]] = {}
    ends: list[str | None] = []
    for stage in (first, *layers, last):
        end = stage is first or stage is last
        writer = BlockWriter(naming, stage, "first" if stage is first else "last" if end else "layer")
        block = writer.block()
        if end and not block.ops:
            ends.append(None)
            continue
        name = _known(blocks, block)
        names += [] if end else [name] * stage.count
        ends += [name] if end else []
        for parameter, tensor in writer.weights.items():
            owners.setdefault(parameter, []).append(f"{name}.{tensor}")
    graph = Graph(
        name=program.name,
        dims={"seq": 1, **naming.sizes},  # without positions an input is one token
        follows=follows(naming),
        blocks=tuple(blocks.values()),
        layers=_folded(names),
        first=ends[0],
        last=ends[1],
        tied=tuple((owner, other) for owner, *others in owners.values() for other in others),
    )
    _check_parameters(found.program, graph)
    return graph


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
    """No parameter that is read may be lost or counted twice."""
    ours = sum(
        elements(v.shape) for v in program.values if v.role == "parameter" and v.name in program.readers
    )
    theirs = count_parameters(graph)
    if ours != theirs:
        why = (
            "layers share weights"
            if theirs > ours
            else "some are read in a way that no operator of a block has"
        )
        raise no_graph(f"program {program.name} has {ours:,} parameters, its blocks {theirs:,}: {why}")
