"""Who reads a copy that several operators may share, once layouts are chosen."""

from collections.abc import Mapping, Sequence

from planner.tracing.solving.nodes import CopyOption, NodeOption, Nodes, given_layout, wanted_layout


def readers_of_copies(nodes: Nodes, chosen: Sequence[NodeOption]) -> Mapping[int, tuple[str, ...]]:
    """Node of every copy that holds something of its own -> operators that read it, first ones first.

    One that wants the value as it lies anyway reads the value: the move is not its own, even if it comes first.
    """
    held = {i for i, option in enumerate(chosen) if isinstance(option, CopyOption) and option.held}
    lies = {
        link.target.node: given_layout(chosen[link.source.node], link)
        for link in nodes.links
        if link.target.node in held
    }
    found: dict[int, dict[str, bool]] = {node: {} for node in held}
    for link in nodes.links:
        if link.source.node in held:
            moved = wanted_layout(chosen[link.target.node], link) != lies[link.source.node]
            readers = found[link.source.node]
            name = nodes.operators[link.target.node]
            readers[name] = readers.get(name, False) or moved
    return {
        node: tuple(n for n, moved in readers.items() if moved or not any(readers.values()))
        for node, readers in found.items()
    }
