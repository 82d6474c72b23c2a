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
        return bool(self.lower_bound > self.cost - 1)


NOTHING = NetworkAnswer({}, np.inf, -np.inf)
"""No choice, and nothing proven."""


def combined(one: NetworkAnswer, other: NetworkAnswer) -> NetworkAnswer:
    """What two answers to one network say together: the cheaper choice, under the higher bound."""
    cheaper = min(other, one, key=lambda answer: answer.cost)
    known = replace(cheaper, lower_bound=max(one.lower_bound, other.lower_bound))
    return replace(known, lower_bound=known.cost) if known.proven else known


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with the best ``answer`` known by then."""

    def __init__(self, answer: NetworkAnswer) -> None:
        super().__init__("interrupted")
        self.answer = answer
