"""What is known of a network when time is up."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """A choice and what is proven about it."""

    choice: dict[int, int]
    """Strategy of each node, by its original number."""
    cost: float
    lower_bound: float
    """No choice that fits costs less."""

    @property
    def proven(self) -> bool:
        """Nothing is better: costs are whole numbers."""
        return self.lower_bound > self.cost - 1


NOTHING = NetworkAnswer({}, np.inf, -np.inf)
"""No choice, and nothing proven."""


def better(answer: NetworkAnswer, best: NetworkAnswer) -> NetworkAnswer:
    """The cheaper of two choices of one network, under the higher bound."""
    cheaper = min(best, answer, key=lambda known: known.cost)
    known = replace(cheaper, lower_bound=max(best.lower_bound, answer.lower_bound))
    return replace(known, lower_bound=known.cost) if known.proven else known


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with the best ``answer`` known by then."""

    def __init__(self, answer: NetworkAnswer) -> None:
        super().__init__("interrupted")
        self.answer = answer
