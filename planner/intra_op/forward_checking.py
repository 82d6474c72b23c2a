"""A choice made node by node, each time followed by what it forces on others.

Strategies that no longer have a partner across some edge go at once, and so on from there; what would leave a node
without any, or take too much memory even where all others take their least, is not taken. Nothing that was taken is
given up again.

Source: Mackworth, "Consistency in networks of relations", Artificial Intelligence 8 (1977), for the propagation;
Haralick and Elliott, "Increasing tree search efficiency for constraint satisfaction problems", Artificial
Intelligence 14 (1980), for looking ahead.
"""

from collections import deque

import numpy as np

from planner.intra_op.local_polytope import Positions
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import Found
from planner.intra_op.network import Network
from planner.intra_op.shrinking import Mask


def look_ahead(relaxation: Relaxation) -> Found | None:
    """A choice that fits, of what looks cheapest by the messages; None where it ends at a node that is left without.

    The network must be arc consistent.
    """
    network = relaxation.network
    domains = _Domains(network)
    choice: Positions = {}
    for v in sorted(network.nodes):
        scores = np.where(domains.left[v], relaxation.scores(v, choice), np.inf)
        cheapest = (int(s) for s in np.argsort(scores, kind="stable") if scores[s] < np.inf)
        taken = next((s for s in cheapest if domains.take(v, s)), None)
        if taken is None:
            return None
        choice[v] = taken
    return Found(choice, network.cost(choice))


class _Domains:
    """The strategies that are left of each node, and the memory that is left where all take their least."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.left: dict[int, Mask] = {
            v: np.ones(costs.size, dtype=np.bool_) for v, costs in network.costs.items()
        }
        self.partners = {
            v: [(w, np.isfinite(table)) for w, table in tables.items() if table.max() == np.inf]
            for v, tables in network.tables.items()
        }
        """Per node, the neighbours that do not go with everything, and what goes with what."""
        self.room = network.capacity.copy()
        for v in network.nodes:
            for (first, last), bytes_ in network.pieces[v].items():
                self.room[first:last] -= bytes_.min()

    def take(self, v: int, strategy: int) -> bool:
        """Leave one strategy of a node, if others have partners then and may fit; whether that is so."""
        before: dict[int, Mask] = {}
        only = np.zeros_like(self.left[v])
        only[strategy] = True
        if self._propagate(v, only, before) and self.room.min(initial=0.0) >= 0:
            return True
        for w, mask in before.items():
            self._leave(w, mask)
        return False

    def _propagate(self, v: int, only: Mask, before: dict[int, Mask]) -> bool:
        """Leave what goes with ``only`` these of a node; whether all have some. Notes what they had before."""
        before[v] = self.left[v]
        self._leave(v, only)
        changed = deque([v])
        while changed:
            v = changed.popleft()
            for w, partners in self.partners[v]:
                had = self.left[w]
                has = had & partners[self.left[v]].any(axis=0)
                if (has == had).all():
                    continue
                if not has.any():
                    return False
                before.setdefault(w, had)
                self._leave(w, has)
                changed.append(w)
        return True

    def _leave(self, v: int, mask: Mask) -> None:
        for (first, last), bytes_ in self.network.pieces[v].items():
            if more := bytes_[mask].min() - bytes_[self.left[v]].min():
                self.room[first:last] -= more
        self.left[v] = mask
