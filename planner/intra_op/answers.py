"""What is known of a network when time is up."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """A choice and what is proven about it."""

    choice: dict[int, int]
    """Strategy of each node, by its original number."""
    cost: float
    lower_bound: float
    """No choice that fits costs less."""


NOTHING = NetworkAnswer({}, np.inf, -np.inf)
"""No choice, and nothing proven."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with the best ``answer`` known by then."""

    def __init__(self, answer: NetworkAnswer) -> None:
        super().__init__("interrupted")
        self.answer = answer
