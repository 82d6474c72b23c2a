"""Exchange of tokens between experts by a dispatcher that sends each token once to every node, and to every device.

A plain all-to-all sends one copy per chosen expert. A dispatcher such as DeepEP or HybridEP sends a token over the
network once to each node that holds any of its experts, and forwards it there once to each rank that does; sums travel
back the same way. Its kernels do not reach what large collectives do.

Source: DeepSeek-V3, arXiv:2412.19437, section 3.2.2; deepseek-ai/DeepEP@dd758ca README (forwarding from RDMA
to NVLink), csrc/kernels/intranode.cu and internode.cu (a token is sent to ranks that it is marked for, not to experts).
"""

import math
from dataclasses import replace
from typing import Literal, NamedTuple

from cluster_specs.topology import CommGroup, Level
from cost_models.collectives import all_to_all
from cost_models.costs import CommTime


class Groups(NamedTuple):
    """Groups of experts, and how many of them a token's experts are in."""

    number: int = 1
    chosen: int = 1


UNGROUPED = Groups()

Library = Literal["deepep", "hybridep"]
"""Dispatchers whose rates are known apart: fields of `cluster_specs.topology.Dispatching`."""


def reachable_nodes(nodes: int, groups: Groups) -> float:
    """Nodes that hold any of a token's groups, drawn at random; groups lie one after the other.

    ``N (1 - C(G - g, t) / C(G, t))`` for ``t`` of ``G`` groups, ``g = max(1, G / N)`` of which touch a node.
    Source: DeepSeek-V3, arXiv:2412.19437, section 2.1.2 (node-limited routing).
    """
    each = max(1, groups.number // nodes)
    missed = math.comb(groups.number - each, groups.chosen) / math.comb(groups.number, groups.chosen)
    return nodes * (1 - missed)


def once_per_node_share(copies: float, nodes: int, groups: Groups = UNGROUPED) -> float:
    """Tokens sent over copies chosen: ``N (1 - (1 - 1/N)^k) / k`` for ``k`` copies to ``N`` nodes, or ranks, at random.

    Of these those count that a token's ``groups`` of experts let it reach.
    """
    if nodes <= 1 or copies <= 1:
        return 1.0
    reached = max(1.0, reachable_nodes(nodes, groups))
    missed: float = (1 - 1 / reached) ** copies
    return reached * (1 - missed) / copies


def in_turn_share(copies: int, parts: int, experts: int) -> float:
    """Parts that hold a token's experts over copies, where tokens are given ``copies`` of ``experts`` in turn.

    ``(1 + (k - gcd(k, e)) / e) / k`` with ``e`` experts in each of ``parts``: runs of ``k`` that begin at any multiple
    of ``gcd(k, e)`` cross so many bounds in the mean, and end in another part than they began in.
    """
    each = max(1, experts // parts)
    return (1 + (copies - math.gcd(copies, each)) / each) / copies


def once_per_node(
    full_bytes: float,
    group: CommGroup,
    copies: float,
    groups: Groups = UNGROUPED,
    in_turn: int | None = None,
    library: Library = "hybridep",
) -> CommTime:
    """All-to-all of ``full_bytes`` a rank, whose tokens nodes, and ranks, receive once, not ``copies`` times [s].

    The network carries what nodes receive, the links inside the node what ranks do; both at once. Experts are drawn, or
    given to tokens in turn, ``in_turn`` of them in all. Kernels of ``library`` send them over both.
    """
    levels = group.active_levels
    if not levels:
        return all_to_all(full_bytes, group)

    def share(parts: int) -> float:
        if in_turn is None:
            return once_per_node_share(copies, parts, groups)
        return in_turn_share(round(copies), parts, in_turn)

    def through(level: Level) -> Level:
        # What kernels reach is measured as they chunk tokens, whatever a plain exchange makes of its messages.
        rate = level.bandwidth * getattr(level.dispatching, library)
        return replace(level, bandwidth=rate, exchange_message=0.0)

    links = through(levels[0])
    inside = all_to_all(full_bytes * share(group.size), CommGroup(links.size, (links,)))
    if len(levels) < 2:
        return inside
    network = CommGroup(group.size, (levels[0], *map(through, levels[1:])))
    outside = all_to_all(full_bytes * share(group.size // links.size), network)
    return max(inside, outside, key=lambda time: time.seconds)
