"""What an operator moves for itself alone, and the memory that it takes while it runs.

Weights that are stored in shards and gathered on use are such arrays. An operator finds an operand as it lies, or has a
copy of its own, as long as it runs. Where memory is not short nobody decides about these copies: they follow from the
layouts at both ends. Where they would exceed the limit, they become nodes, so that the limit can count them.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from planner.tracing.layouts import share
from planner.tracing.solving.nodes import (
    Copy,
    Link,
    NodeOption,
    Nodes,
    Slot,
    given_layout,
    wanted_layout,
)
from planner.tracing.solving.pricing import ProgramPricer


class Moved(NamedTuple):
    """An array in a copy of its reader's own."""

    value: str
    position: int
    """Of the operator that reads it, or before which it is read for a second run."""
    bytes_: float
    """On one device [B]."""


def moved(pricer: ProgramPricer, nodes: Nodes, chosen: Sequence[NodeOption]) -> Iterator[Moved]:
    """What operators move for themselves under the options ``chosen``, one per node."""
    for link in nodes.links:
        position = _position(nodes, link)
        if position is None or link.own:
            continue
        have, want = (
            given_layout(chosen[link.source.node], link),
            wanted_layout(chosen[link.target.node], link),
        )
        if have is not None and want is not None and have != want:
            yield Moved(link.value, position, pricer.full_bytes(link.value) * share(pricer.mesh, want))


def with_own_copies(nodes: Nodes, values: Collection[str]) -> Nodes:
    """The same with a node for every copy that a reader of one of ``values`` may have for itself."""
    count = sum(_gets_own(nodes, link, values) for link in nodes.links)

    def renumbered(slot: Slot) -> Slot:
        return slot._replace(node=slot.node + count) if slot.node >= nodes.first_again else slot

    copies, links = list(nodes.copies), list[Link]()
    first_copy = len(nodes.inputs) + len(nodes.operations)
    for link in nodes.links:
        source, target = renumbered(link.source), renumbered(link.target)
        position = _position(nodes, link)
        if position is None or not _gets_own(nodes, link, values):
            links.append(link._replace(source=source, target=target))
            continue
        own = Slot(first_copy + len(copies), 0)
        copies.append(Copy(link.value, position, position))
        links.append(link._replace(source=source, target=own, copied=True))
        links.append(Link(link.value, own, target, link.times, own=True))
    return nodes._replace(copies=tuple(copies), links=tuple(links))


def _gets_own(nodes: Nodes, link: Link, values: Collection[str]) -> bool:
    return link.value in values and not link.own and _position(nodes, link) is not None


def _position(nodes: Nodes, link: Link) -> int | None:
    """When a link's target has what it moves for itself; None where others have it too, or rows of it.

    What second runs read of one another is left out: of these the source need not be there.
    """
    if link.returned or link.kept or link.joint or link.stack or link.row or link.again:
        return None
    operation = link.target.node - len(nodes.inputs)
    if 0 <= operation < len(nodes.operations):
        return operation
    late = link.target.node - nodes.first_again
    return nodes.agains[late].first if 0 <= late < len(nodes.agains) else None
