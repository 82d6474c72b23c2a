"""Which operators do the same in repeated blocks: found by what they are and what is around them.

Two nodes are alike if they have the same loops and arrays, and so have their neighbours, to a few steps away
(colour refinement). Alike nodes take the same option, so that a model of eighty layers costs little more than
one of a few; nodes near both ends of the model stay by themselves.

Source: Weisfeiler and Leman, "The reduction of a graph to canonical form" (1968).
"""

from collections.abc import Sequence

from planner.tracing.program import Program
from planner.tracing.solving.nodes import NodeOptions, Nodes

STEPS = 4
"""How far neighbours are looked at."""


def alike(program: Program, nodes: Nodes, options: Sequence[NodeOptions]) -> list[int]:
    """Per node the first node that is like it."""
    colours = [hash_of(key) for key in _own(program, nodes, options)]
    for _ in range(STEPS):
        around: list[list[tuple[object, ...]]] = [[] for _ in colours]
        for link in nodes.links:
            ends = (link.source.place, link.target.place, *link[5:])
            around[link.source.node].append(("to", *ends, colours[link.target.node]))
            around[link.target.node].append(("from", *ends, colours[link.source.node]))
        colours = [hash_of((c, tuple(sorted(near)))) for c, near in zip(colours, around, strict=True)]
    first: dict[object, int] = {}
    return [first.setdefault((c, id(o)), i) for i, (c, o) in enumerate(zip(colours, options, strict=True))]


def _own(program: Program, nodes: Nodes, options: Sequence[NodeOptions]) -> list[tuple[object, ...]]:
    value = program.value
    found: list[tuple[object, ...]] = [
        ("input", value[n].role, value[n].shape, value[n].dtype) for n in nodes.inputs
    ]
    for op in nodes.operations:
        arrays = tuple((value[n].shape, value[n].dtype) for n in (*op.inputs, *op.outputs))
        found.append((op.primitive, op.sizes, op.reads, op.writes, op.times, arrays))
    found += [("copy", value[c.value].shape, value[c.value].dtype) for c in nodes.copies]
    found += [("again", *found[len(nodes.inputs) + a.operation]) for a in nodes.agains]
    return found + [("joint", joint.patterns, joint.saved) for joint in nodes.joints]


def hash_of(key: tuple[object, ...]) -> int:
    """A number for a nested tuple of plain values, the same in every process."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest())
