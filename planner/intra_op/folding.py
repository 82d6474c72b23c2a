"""Nodes of one or two neighbours, taken out of a network of classes before messages are sent.

Whatever the neighbours choose, such a node takes what is cheapest beside them, and a table between the two says what
that costs. Messages have fewer nodes to go through then, and see what they lost in cycles through these. A node stays
where that table takes longer to find than it saves.

Source: Bertele and Brioschi, Nonserial Dynamic Programming (1972).
"""

import math

from planner.intra_op.compact import Compact
from planner.intra_op.problem import Array

MOST_SUMS, MOST_SUMS_OF_A_PART = 2**18, 2**20
"""Of one strategy of the node and one class of each neighbour, up to which it is taken out."""


def fold(network: Compact, most_sums: int = MOST_SUMS) -> None:
    """Take out small nodes without memory until none is left; what cannot be had is ``inf`` afterwards."""
    waiting, known = sorted(network.nodes), dict[object, Array]()
    while waiting:
        around = set[int]()
        for v in waiting:
            if _may_go(network, v, most_sums):
                around |= network.tables[v].keys()
                network.eliminate(v, known)
        waiting = sorted(around & network.nodes)


def _may_go(network: Compact, v: int, most_sums: int) -> bool:
    tables = network.tables[v].values()
    if network.pieces[v] or not 1 <= len(tables) <= 2:
        return False
    sums = network.costs[v].size * math.prod(len(table.T) for table in tables)
    return sums <= most_sums
